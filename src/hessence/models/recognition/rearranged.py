"""A Hessian of ours in the order and the scale of a PyTorch model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hessence.spectra.operators import Operator
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Isometry, Subspaces


@dataclass(frozen=True, eq=False, repr=False)
class Rearranged(Operator):
    """An operator times a positive number, with its coordinates in another order.

    Coordinate i is coordinate ``order[i]`` of the inner operator; the order is kept where None.
    """

    inner: Any
    factor: float
    order: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix."""
        p = int(self.inner.shape[-1])
        return p, p

    @property
    def _reference(self) -> Tensor:
        return self.inner._reference

    def spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors."""
        found = self.inner.spectrum()
        families = [family.mapped(self._arrange, self.factor) for family in found.families]
        return Spectrum(families, found.method, exact=found.exact)

    def trace(self) -> Tensor:
        """Return the sum of the diagonal."""
        return self.factor * self.inner.trace()

    def squared_norm(self) -> Tensor:
        """Return the sum of all squared entries."""
        return self.factor**2 * self.inner.squared_norm()

    def _apply(self, columns: Tensor) -> Tensor:
        if self.order is not None:
            columns = columns[..., torch.argsort(self.order), :]
        return self.factor * self._arrange(self.inner._apply(columns))

    def _arrange(self, columns: Tensor) -> Tensor:
        return columns if self.order is None else columns[..., self.order, :]


class OneLayer(Rearranged):
    """The Hessian I ⊗ Σ of the squared error of a single layer, the same for each output."""

    def spectrum(self) -> Spectrum:
        """Return all eigenvalues, each as often as there are outputs, and eigenvectors."""
        bend = self.inner.loss_hessian

        def carry(coordinates: Tensor, copies: Tensor) -> Tensor:
            both = copies[:, None, :] * coordinates[:, None]
            return self._arrange(both.flatten(0, 1))

        def isometry(_: int) -> Isometry:
            return carry

        labels = ("outlier",) * len(bend.variance)
        block = Subspaces(labels, isometry, bend.outputs, matrix=self.factor * bend.variance)
        return Spectrum([block], "closed form")
