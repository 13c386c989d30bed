r"""Davidson's iteration: the top of a symmetric operator from a good start and a stale model of it.

Lanczos grows a space by residuals; Davidson (J. Comput. Phys. 17, 1975) by corrections, residuals
put through an approximate inverse. What was learnt of the operator before it moved makes a good
one: where Lanczos from the last eigenvector takes eight products, this takes four.

Nothing rests on the stale model but the choice of directions. Ritz values come from products with
the operator as it is, and the iteration ends on the residuals ‖Hz − θz‖, not on an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessence._common.arrays import Numbers, epsilon, like
from hessence.krylov.findings import ROUNDING
from hessence.krylov.inner import inner_products, lengths, subtract
from hessence.krylov.projected import eigensystem
from hessence.krylov.recollection import Recollection

DEPENDENT = 1e-3
"""Where less than this share of a correction is outside of the space, the residual is taken."""


class Space:
    """Orthonormal vectors as rows, with their images under an operator."""

    def __init__(self, H: Any, reference: Tensor, size: int) -> None:
        self._H = H
        self.rows = self.images = reference.new_zeros((0, size))
        self.inside: Numbers = np.zeros((0, 0))
        self.norm = 0.0

    def __len__(self) -> int:
        """Return the number of vectors, that is of products."""
        return int(self.rows.shape[0])

    def complement(self, vector: Tensor) -> tuple[Tensor, float]:
        """Return what is outside of the space, as a unit vector, and its share of the vector."""
        column = vector[:, None]
        before = float(lengths(column)[0])
        for _ in range(2 if len(self) else 0):
            _, column = subtract(self.rows, column)
        after = float(lengths(column)[0])
        return column[:, 0] / (after or 1.0), after / (before or 1.0)

    def extend(self, rows: Tensor) -> None:
        """Multiply orthonormal rows (b, n), orthogonal to the space, and take them in."""
        columns = rows.mT
        image = self._H @ (columns[:, 0] if len(rows) == 1 else columns)
        image = image[None, :] if len(rows) == 1 else image.mT.contiguous()
        self.rows = torch.cat([self.rows, rows])
        self.images = torch.cat([self.images, image])
        inside = inner_products(self.rows, self.images.mT)
        self.inside = (inside + inside.T) / 2
        self.norm = max(self.norm, float(lengths(image.mT).max()))


@dataclass(frozen=True)
class Outcome:
    """The top Ritz pairs of a space, descending.

    Attributes
    ----------
    values : array (k,)
        Ritz values.
    rows, residuals : Tensor (k, n)
        Ritz vectors and Hz − θz.
    errors : array (k,)
        The norms of the residuals, with an allowance for rounding.
    resolved : array of bool (k,)
        Whether the residuals are as small as they were asked to be.
    """

    values: Numbers
    rows: Tensor
    residuals: Tensor
    errors: Numbers
    resolved: Numbers


def search(
    space: Space, start: Tensor, recollection: Recollection, k: int, tol: float, room: int
) -> Outcome:
    """Find the k largest eigenvalues.

    Parameters
    ----------
    space : Space
        Empty; in the end it holds all products that were made.
    start : Tensor (b, n)
        Approximate eigenvectors, k or more, as rows; need not be orthogonal.
    recollection : Recollection
        What is known of the operator from before.
    k : int
        How many eigenvalues.
    tol : float
        Stop when all residuals are at most tol · ‖H‖.
    room : int
        Give up when the space has so many vectors.
    """
    space.extend(orthonormal(start))
    while True:
        outcome = _ritz(space, k, tol)
        if outcome.resolved.all() or len(space) >= room:
            return outcome
        worst = int(np.argmax(outcome.errors))
        residual = outcome.residuals[worst]
        rest = recollection.beside(space.rows)
        correction = rest.correction(float(outcome.values[worst]), residual, space.norm)
        direction, share = space.complement(correction)
        if not share > DEPENDENT:
            direction, _ = space.complement(residual)
        # Once more: what is small beside what was taken out is not quite orthogonal to it.
        space.extend(space.complement(direction)[0][None, :])


def orthonormal(rows: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of independent rows."""
    return torch.linalg.qr(torch.linalg.qr(rows.mT)[0])[0].mT.contiguous()


def _ritz(space: Space, k: int, tol: float) -> Outcome:
    values, turn = eigensystem(space.inside, space.rows)
    space.norm = max(space.norm, float(np.abs(values).max()))
    values, turn = values[::-1][:k].copy(), turn[:, ::-1][:, :k]
    weights = like(np.array(turn.T), space.rows)
    rows = weights @ space.rows
    residuals = weights @ space.images - like(values[:, None], rows) * rows
    norms = lengths(residuals.mT)
    rounding = ROUNDING * epsilon(rows) * space.norm
    return Outcome(values, rows, residuals, norms + rounding, norms <= tol * space.norm)
