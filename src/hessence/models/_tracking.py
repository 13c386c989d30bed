"""The largest eigenvalues of an operator that moves, with as few products as the motion allows.

From one measurement to the next a tracker keeps the leading eigenvectors, their last motion, and a
warm start: the operator on the space around them. The next search starts where the eigenvectors
would be if they kept moving, and the warm start guides it.

How far they keep moving is fitted, for each eigenvector, to its last two motions. Smooth training
gives a factor near 1, the noise of small batches 0, the oscillation at the edge of stability −1.

A search never finds an eigenvector that is orthogonal to its start. So if another eigenvalue
overtakes those that are followed, only a search from a random vector is sure to notice it; see
``measure``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessence._common.arrays import Numbers, to_double, to_numpy
from hessence._common.schema import require_shapes
from hessence.krylov.davidson import Space, TopPairs, WarmStart, orthonormal, search
from hessence.krylov.eigenpairs import SMALL, eigenpairs
from hessence.krylov.eigenpairs_result import Eigenpairs
from hessence.krylov.request import attainable

LOOSEST = 1e-3
"""The tolerance without a warm start; with a looser one a search might find the second instead."""

SURE = 0.9
"""The confidence of one check. Checks are independent, so two of them have 0.99."""

COLLAPSE = 0.5
"""If the largest eigenvalue falls below this share of the last one, another may be larger."""

CLOSE = 0.97
"""The next eigenvalue is followed too if it was above this share of the least one wanted."""

JUMP = 0.5
"""A unit vector that has moved further is another eigenvector, and its motion means nothing."""

STATE = {
    "vectors": "k n", "moves": "k n", "pace": "k", "rows": "m n", "inside": "m m", "largest": "one"
}  # fmt: skip
"""What is kept, and the dimensions of each array."""


@dataclass(frozen=True)
class Top:
    """The k largest eigenvalues, descending, with error bounds, and what they took."""

    values: Numbers
    errors: Numbers
    products: int
    converged: bool
    checked: bool


class Tracker:
    """Follows the k largest eigenvalues of an operator.

    Parameters
    ----------
    k : int
        How many.
    tol : float
        Residuals are at most tol · ‖H‖.
    remember : int
        How many further vectors the warm start holds.
    """

    def __init__(self, k: int, tol: float, remember: int) -> None:
        self._k, self._tol, self._remember = k, tol, remember
        self._room = max(2 * k + 20, 40)
        self._vectors: Tensor | None = None
        self._moves: Tensor
        self._pace: Numbers
        self._past: WarmStart
        self._largest = 0.0

    @property
    def eigenvectors(self) -> Tensor | None:
        """The vectors that are followed (p, k), None before the first measurement."""
        return None if self._vectors is None else self._vectors.mT.clone()

    def measure(self, H: Any, rng: np.random.Generator, *, check: bool) -> Top:
        """Find the eigenvalues of the operator as it is now.

        Parameters
        ----------
        H : ModelOperator
            The operator.
        rng : numpy.random.Generator
            Where random vectors come from.
        check : bool
            Whether to search for an overlooked eigenvalue, from a random vector in the complement.
            It misses one with a probability of at most 0.1.
        """
        top = self._measured(H, rng, check)
        self._largest = float(top.values[0])
        return top

    def _measured(self, H: Any, rng: np.random.Generator, check: bool) -> Top:
        if self._vectors is None or H.shape[0] <= max(SMALL, self._room):
            return self._without_warm_start(H, rng)
        tol = max(self._tol, attainable(self._vectors))
        space = Space(H, self._vectors, H.shape[0])
        found = search(space, self._start(check), self._past, self._k, tol, self._room)
        if self._is_lost(found):
            top = self._without_warm_start(H, rng)
            return replace(top, products=top.products + len(space))
        self._past = self._past.updated(space.rows, space.images, space.inside, self._kept)
        resolved, products = found.resolved.all(), len(space)
        if check or not resolved:
            start, confidence = found.rows.mT, SURE if check else 0.0
            pairs = eigenpairs(H, self._k, "LA", tol, start, rng, confidence=confidence)
            products += pairs.products
            larger = to_numpy(pairs.eigenvalues) > found.values + tol * space.norm
            if not resolved or larger.any():
                self._learn(pairs)
                return _top(pairs, products, check)
        self._follow(self._improved(found, space.norm))
        return Top(found.values, found.errors, products, True, check)

    def state(self) -> dict[str, Numbers]:
        """Return what is kept, as arrays; an empty dictionary before the first measurement."""
        if self._vectors is None:
            return {}
        kept = (self._vectors, self._moves, self._pace, self._past.rows, self._past.inside)
        arrays = [*map(to_numpy, kept), np.asarray([self._largest])]
        return dict(zip(STATE, arrays, strict=True))

    def restore(self, state: Mapping[str, Numbers], reference: Tensor, size: int) -> None:
        """Continue from a state. One that is damaged, or of another size, is ignored."""
        try:
            require_shapes(STATE, state)
            vectors, moves, pace, rows, inside, largest = (state[name] for name in STATE)
        except (KeyError, ValueError):
            return
        finite = all(np.isfinite(state[name]).all() for name in STATE)
        if not finite or vectors.shape != (self._k, size) or not largest.size:
            return
        self._vectors, self._moves, known = (
            torch.as_tensor(a, dtype=reference.dtype, device=reference.device)
            for a in (vectors, moves, rows)
        )
        self._pace, self._past = pace.astype(float), WarmStart(known, inside.astype(float))
        self._largest = float(largest[0])

    @property
    def _kept(self) -> int:
        return self._k + self._remember

    def _without_warm_start(self, H: Any, rng: np.random.Generator) -> Top:
        pairs = eigenpairs(H, self._k, "LA", min(self._tol, LOOSEST), rng=rng)
        self._past = WarmStart.nothing(H.reference, H.shape[0])
        self._vectors = None
        self._learn(pairs)
        return _top(pairs, pairs.products, True)

    def _is_lost(self, found: TopPairs) -> bool:
        """Whether the largest eigenvalue is a fraction of what it was.

        When training diverges, the followed vectors may end up where the operator is zero; there
        residuals are small and mean nothing.
        """
        return bool(self._largest > 0 and found.values[0] < COLLAPSE * self._largest)

    def _start(self, check: bool) -> Tensor:
        assert self._vectors is not None
        pace = torch.as_tensor(self._pace, dtype=self._vectors.dtype, device=self._vectors.device)
        start = self._vectors + pace[:, None] * self._moves
        values = np.diag(self._past.inside)
        if len(values) > self._k:
            # The next eigenvector takes part in every check, and whenever it may soon overtake.
            wanted, following = values[self._k - 1 : self._k + 1]
            if check or following > CLOSE * max(wanted, 0.0):
                start = torch.cat([start, self._past.rows[self._k : self._k + 1]])
        return start

    def _improved(self, found: TopPairs, norm: float) -> Tensor:
        """Return the vectors after one more correction, which no product has tested."""
        rest = self._past.beside(found.rows)
        pairs = zip(found.values, found.residuals, strict=True)
        steps = [rest.correction(float(value), residual, norm) for value, residual in pairs]
        return orthonormal(found.rows + torch.stack(steps))

    def _learn(self, pairs: Eigenpairs) -> None:
        """Update the warm start by eigenpairs, whose images follow from their eigenvalues."""
        rows, values = pairs.eigenvectors.mT.contiguous(), to_double(pairs.eigenvalues)
        images = pairs.eigenvalues[:, None] * rows
        self._past = self._past.updated(rows, images, np.diag(values), self._kept)
        self._follow(rows)

    def _follow(self, vectors: Tensor) -> None:
        """Store the eigenvectors, their motion, and its ratio to their last motion.

        First rotate the old ones among themselves to be as near to the new ones as possible:
        eigenvectors may change sign, and those of close eigenvalues may mix.
        """
        if self._vectors is None:
            self._moves, self._pace = torch.zeros_like(vectors), np.zeros(self._k)
        else:
            left, _, right = torch.linalg.svd(vectors @ self._vectors.mT)
            turn = left @ right
            moves, before = vectors - turn @ self._vectors, turn @ self._moves
            squares, meeting, length = (
                to_double((a * b).sum(dim=1))
                for a, b in ((before, before), (moves, before), (moves, moves))
            )
            pace = np.clip(meeting / np.where(squares > 0, squares, 1.0), -1.0, 1.0)
            # After a jump, the vector is another eigenvector, which is followed from now on.
            self._moves, self._pace = moves, np.where(length < JUMP**2, pace, 0.0)
        self._vectors = vectors


def _top(pairs: Eigenpairs, products: int, checked: bool) -> Top:
    values, errors = map(to_double, (pairs.eigenvalues, pairs.errors))
    return Top(values, errors, products, pairs.converged, checked)
