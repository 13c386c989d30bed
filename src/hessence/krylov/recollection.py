r"""What is still known of an operator that has changed a little: a stale model of its top.

From one measurement to the next the Hessian of a network in training moves, but its leading
eigenvectors do not go far. A recollection keeps approximate eigenvectors W with their values, as
they were last seen, and stands for

.. math:: H \approx W S W^\top

with nothing outside of W. A search in a space V, where products are exact, corrects the part of it
that V meets; the rest serves to turn a residual into a correction of the eigenvector. That costs
no products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hessence._common.arrays import Numbers, epsilon, like
from hessence.krylov.inner import inner_products
from hessence.krylov.projected import eigensystem

FLOOR = 0.1
"""Distances between eigenvalues count as no less than this share of ‖H‖: what is stale may not
tell them apart."""


@dataclass(frozen=True)
class Recollection:
    """Orthonormal vectors and what the operator was like among them.

    Attributes
    ----------
    rows : Tensor (m, n)
        The vectors W.
    inside : array (m, m)
        The coefficients S.
    """

    rows: Tensor
    inside: Numbers

    @classmethod
    def nothing(cls, reference: Tensor, size: int) -> Recollection:
        """Return the recollection of an operator of which nothing is known."""
        return cls(reference.new_zeros((0, size)), np.zeros((0, 0)))

    def __len__(self) -> int:
        """Return the number of vectors."""
        return int(self.rows.shape[0])

    def beside(self, known: Tensor) -> Recollection:
        """Return what is left of it in the complement of orthonormal rows (j, n)."""
        if not len(self) or not len(known):
            return self
        rows = self.rows
        overlaps = np.zeros((len(self), len(known)))
        for _ in range(2):
            part = inner_products(rows, known.mT)
            rows = rows - like(part, rows) @ known
            overlaps += part
        # What lies almost in the known space is mostly rounding once that is taken out.
        gram, turn = eigensystem(inner_products(rows, rows.mT), rows)
        kept = gram > epsilon(rows) ** 0.5
        turn = turn[:, kept] / np.sqrt(gram[kept])
        coordinates = turn.T @ (np.eye(len(self)) - overlaps @ overlaps.T)
        return Recollection(
            like(np.array(turn.T), rows) @ rows,
            coordinates @ self.inside @ coordinates.T,
        )

    def correction(self, value: float, residual: Tensor, norm: float) -> Tensor:
        r"""Return what a Ritz vector lacks: :math:`(\theta - W S W^\top)^{-1} r`.

        Outside of W the operator counts as zero. That is Davidson's step.

        Parameters
        ----------
        value : float
            The Ritz value θ.
        residual : Tensor (n,)
            The residual r = Hz − θz.
        norm : float
            The size of the operator, by which small denominators are judged.
        """
        outside = _at_least(np.asarray(value), FLOOR * norm)
        if not len(self):
            return residual / float(outside)
        values, turn = eigensystem(self.inside, self.rows)
        along = inner_products(self.rows, residual[:, None])[:, 0]
        weights = turn @ ((turn.T @ along) / _at_least(value - values, FLOOR * norm))
        weights -= along / outside
        return residual / float(outside) + like(weights, residual) @ self.rows

    def updated(self, known: Tensor, images: Tensor, inside: Numbers, most: int) -> Recollection:
        """Return what to keep after a search: the top of what is known exactly and what is stale.

        Parameters
        ----------
        known, images : Tensor (j, n)
            Orthonormal vectors and their images, as rows.
        inside : array (j, j)
            The operator's coefficients among them.
        most : int
            How many vectors to keep.
        """
        rest = self.beside(known)
        cross = inner_products(images, rest.rows.mT) if len(rest) else np.zeros((len(known), 0))
        everything = np.block([[inside, cross], [cross.T, rest.inside]])
        values, turn = eigensystem(everything, known)
        turn = turn[:, ::-1][:, :most]
        kept = like(np.array(turn.T), known) @ torch.cat([known, rest.rows])
        return Recollection(kept, np.diag(values[::-1][:most]))


def _at_least(numbers: Numbers, least: float) -> Numbers:
    """Move numbers away from zero, upwards where their sign is in doubt."""
    if not least > 0:
        return np.where(numbers == 0, 1.0, numbers)
    return np.where(np.abs(numbers) < least, least, numbers)
