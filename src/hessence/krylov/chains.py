r"""Lanczos' recurrence from several random vectors in lock-step, each with its own basis.

From a unit vector v the recurrence builds an orthonormal basis Q of the Krylov space and the
tridiagonal T with :math:`H Q = Q T + \beta_m q_{m+1} e_m^\top`. One product with a block of columns
serves all vectors at once; no vector looks at another one's basis.

How this differs from ``basis``: there is no restart, nothing is exchanged, and a recurrence that
has found an invariant space ends there, because what would follow belongs to another start and
has no part in the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, epsilon, like
from hessence.krylov.gram_schmidt import take_out
from hessence.krylov.inner import subtract
from hessence.krylov.probes import Probes
from hessence.krylov.scaling import ScaledProduct

NEGLIGIBLE = 32
"""A remainder below this many ε · ‖H‖ is rounding: the recurrence has found all there is."""

WORKSPACE = 6
"""How many vectors a recurrence needs beside its basis, while it takes a step."""


@dataclass(frozen=True)
class Chain:
    """The coefficients of one recurrence, in units of the product's scale.

    Attributes
    ----------
    diagonal : array (m,)
        The α of T, m being the number of steps until the recurrence ended.
    couplings : array (m,)
        The β: m − 1 of T, and the one that leads out of the basis, zero if nothing does.
    norm : float
        The longest image of a basis vector, a lower bound of ‖H‖.
    defect : float
        How far HQ is from QT + βq eᵀ, in the Frobenius norm: rounding, or that H is not symmetric.
    """

    diagonal: Numbers
    couplings: Numbers
    norm: float
    defect: float


def grow_chains(
    product: ScaledProduct, probes: Probes, members: Sequence[int], steps: int
) -> list[Chain]:
    """Run the recurrence from each of the members among the probes, `steps` steps at most."""
    growing = _Growing(probes, members, steps)
    while growing.steps < steps and not growing.ended.all():
        growing.advance(product)
    return growing.finished()


class _Growing:
    """Recurrences on their way. One that has ended stays where it is, as zeros."""

    def __init__(self, probes: Probes, members: Sequence[int], steps: int) -> None:
        start = probes.draw(members[0])
        self._xp = xp = api.array_namespace(start)
        shape = (len(members), steps, int(start.shape[0]))
        # Not zeros: memory is touched as the basis grows.
        self._vectors = xp.empty(shape, dtype=start.dtype, device=api.device(start))
        for i, member in enumerate(members):
            self._vectors[i, 0, :] = probes.draw(member)
        self.steps = 0
        self.ended = np.zeros(len(members), dtype=bool)
        self._lengths = np.full(len(members), steps)
        self._diagonal, self._couplings = (np.zeros((len(members), steps)) for _ in range(2))
        self._norm, self._defect = (np.zeros(len(members)) for _ in range(2))
        self._negligible = NEGLIGIBLE * epsilon(start)

    def advance(self, product: ScaledProduct) -> None:
        """Take the next step: a product with the newest vectors, and what it has outside."""
        j, (_, steps, size) = self.steps, self._vectors.shape
        first = max(j - 1, 0)
        # By symmetry the images meet the last two vectors only; the whole basis is taken out of
        # what they leave, which rounding has made necessary.
        near, rest = subtract(self._vectors[:, first : j + 1, :], self._images(product))
        along, rest, left = take_out(self._vectors[:, : j + 1, :], rest)
        along, coupling = along[..., 0], left[:, 0]
        along[:, first:] += near[..., 0]
        self._norm = np.maximum(self._norm, np.hypot(np.linalg.norm(along, axis=1), coupling))
        if j:
            along[:, j - 1] -= self._couplings[:, j - 1]
        self._defect = np.hypot(self._defect, np.linalg.norm(along[:, :j], axis=1))
        ends = (coupling <= self._negligible * self._norm) | (j + 1 == size)
        self._lengths = np.where(ends & ~self.ended, j + 1, self._lengths)
        self.ended = self.ended | ends
        self._diagonal[:, j] = along[:, j]
        self._couplings[:, j] = np.where(self.ended, 0.0, coupling)
        self.steps = j + 1
        if self.steps < steps:
            divisor = np.where(self.ended, np.inf, coupling)[:, None]
            self._vectors[:, self.steps, :] = rest[..., 0] / like(divisor, rest)

    def finished(self) -> list[Chain]:
        """Return the coefficients of each."""
        return [
            Chain(self._diagonal[i, :m], self._couplings[i, :m], self._norm[i], self._defect[i])
            for i, m in enumerate(self._lengths)
        ]

    def _images(self, product: ScaledProduct) -> Array:
        """Multiply the newest vectors, all at once, where recurrences go on: (probes, n, 1)."""
        newest = self._vectors[:, self.steps, :]
        if not self.ended.any():
            return product(newest.mT).mT[..., None]
        alive = [i for i, ended in enumerate(self.ended) if not ended]
        images = self._xp.asarray(newest, copy=True)
        columns = product(self._xp.stack([newest[i, :] for i in alive]).mT)
        for column, i in enumerate(alive):
            images[i, :] = columns[:, column]
        return images[..., None]
