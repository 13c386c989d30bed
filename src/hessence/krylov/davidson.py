r"""Davidson's iteration: the top of a symmetric operator from a good start and a stale model of it.

Lanczos grows a space by residuals; Davidson (J. Comput. Phys. 17, 1975) by corrections, residuals
multiplied by an approximate inverse. What is known of the operator from before it changed gives a
good one: where Lanczos from the last eigenvector takes eight products, this takes four.

The stale model only chooses directions. Ritz values come from products with the operator as it is,
and the iteration ends on the residuals ‖Hz − θz‖, not on an estimate.

The stale model is a ``WarmStart``. From one measurement to the next the Hessian of a network in
training changes, but its leading eigenvectors change little. With W the approximate eigenvectors
that were found last, and S the operator's coefficients among them at that time,

.. math:: H \approx W S W^\top .

A search replaces the part of this that lies in its space V, where products are exact. The rest
turns a residual into a correction of the eigenvector, without a product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessence._common.arrays import Numbers, epsilon, like
from hessence.krylov._linear_algebra import eigensystem, inner_products, lengths, orthogonalise
from hessence.krylov.request import ROUNDING

DEPENDENT = 1e-3
"""Where less than this share of a correction is outside of the space, the residual is taken."""

FLOOR = 0.1
"""Distances between eigenvalues count as at least this share of ‖H‖, as a stale model does not know
them better."""


@dataclass(frozen=True)
class WarmStart:
    """Orthonormal vectors W, as rows (m, n), and the operator's coefficients S among them."""

    rows: Tensor
    inside: Numbers

    @classmethod
    def nothing(cls, reference: Tensor, size: int) -> WarmStart:
        """Return the warm start for an operator of which nothing is known."""
        return cls(reference.new_zeros((0, size)), np.zeros((0, 0)))

    def __len__(self) -> int:
        """Return the number of vectors."""
        return int(self.rows.shape[0])

    def beside(self, known: Tensor) -> WarmStart:
        """Return its part in the complement of orthonormal rows (j, n)."""
        if not len(self) or not len(known):
            return self
        rows = self.rows
        overlaps = np.zeros((len(self), len(known)))
        for _ in range(2):
            part = inner_products(rows, known.mT)
            rows = rows - like(part, rows) @ known
            overlaps += part
        # A direction that lies almost in the known space is mostly rounding outside of it.
        gram, turn = eigensystem(inner_products(rows, rows.mT), rows)
        kept = gram > epsilon(rows) ** 0.5
        turn = turn[:, kept] / np.sqrt(gram[kept])
        coordinates = turn.T @ (np.eye(len(self)) - overlaps @ overlaps.T)
        return WarmStart(
            like(np.array(turn.T), rows) @ rows,
            coordinates @ self.inside @ coordinates.T,
        )

    def correction(self, value: float, residual: Tensor, norm: float) -> Tensor:
        r"""Return what a Ritz vector lacks, Davidson's step: :math:`(\theta - W S W^\top)^{-1} r`.

        Outside of W the operator counts as zero. Denominators small beside its norm are enlarged.
        """
        outside = _at_least(np.asarray(value), FLOOR * norm)
        if not len(self):
            return residual / float(outside)
        values, turn = eigensystem(self.inside, self.rows)
        along = inner_products(self.rows, residual[:, None])[:, 0]
        weights = turn @ ((turn.T @ along) / _at_least(value - values, FLOOR * norm))
        weights -= along / outside
        return residual / float(outside) + like(weights, residual) @ self.rows

    def updated(self, known: Tensor, images: Tensor, inside: Numbers, most: int) -> WarmStart:
        """Return the next warm start: the top of what is known exactly and what is stale.

        Known are orthonormal rows (j, n), their images, and the coefficients (j, j) among them.
        """
        rest = self.beside(known)
        cross = inner_products(images, rest.rows.mT) if len(rest) else np.zeros((len(known), 0))
        everything = np.block([[inside, cross], [cross.T, rest.inside]])
        values, turn = eigensystem(everything, known)
        turn = turn[:, ::-1][:, :most]
        kept = like(np.array(turn.T), known) @ torch.cat([known, rest.rows])
        return WarmStart(kept, np.diag(values[::-1][:most]))


def _at_least(numbers: Numbers, least: float) -> Numbers:
    """Move numbers away from zero, upwards where their sign is in doubt."""
    if not least > 0:
        return np.where(numbers == 0, 1.0, numbers)
    return np.where(np.abs(numbers) < least, least, numbers)


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
        _, column = orthogonalise(self.rows, column)
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
class TopPairs:
    """The top k Ritz pairs of a space, descending."""

    values: Numbers
    rows: Tensor  # the Ritz vectors (k, n)
    residuals: Tensor  # Hz − θz, (k, n)
    errors: Numbers  # the norms of these, with an allowance for rounding
    resolved: Numbers  # whether the residuals are as small as they were asked to be


def search(
    space: Space, start: Tensor, warm_start: WarmStart, k: int, tol: float, room: int
) -> TopPairs:
    """Find the k largest eigenvalues, until all residuals are at most tol · ‖H‖.

    The space is empty at first, and holds all products in the end, `room` of them at most. The
    start (b, n), k approximate eigenvectors or more as rows, need not be orthogonal.
    """
    space.extend(orthonormal(start))
    while True:
        outcome = _ritz(space, k, tol)
        if outcome.resolved.all() or len(space) >= room:
            return outcome
        worst = int(np.argmax(outcome.errors))
        residual = outcome.residuals[worst]
        rest = warm_start.beside(space.rows)
        correction = rest.correction(float(outcome.values[worst]), residual, space.norm)
        direction, share = space.complement(correction)
        if not share > DEPENDENT:
            direction, _ = space.complement(residual)
        # Once more: what is small beside what was taken out is not quite orthogonal to it.
        space.extend(space.complement(direction)[0][None, :])


def orthonormal(rows: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of independent rows."""
    return torch.linalg.qr(torch.linalg.qr(rows.mT)[0])[0].mT.contiguous()


def _ritz(space: Space, k: int, tol: float) -> TopPairs:
    values, turn = eigensystem(space.inside, space.rows)
    space.norm = max(space.norm, float(np.abs(values).max()))
    values, turn = values[::-1][:k].copy(), turn[:, ::-1][:, :k]
    weights = like(np.array(turn.T), space.rows)
    rows = weights @ space.rows
    residuals = weights @ space.images - like(values[:, None], rows) * rows
    norms = lengths(residuals.mT)
    rounding = ROUNDING * epsilon(rows) * space.norm
    return TopPairs(values, rows, residuals, norms + rounding, norms <= tol * space.norm)
