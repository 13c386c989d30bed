r"""The Hessian of Linear layers with biases anywhere, one after the other.

A layer :math:`h \mapsto W h + b` is the matrix :math:`\hat W = [[W, b], [0, 1]]` on (h, 1), so a
chain of them is a product of matrices of which only the blocks W and b are parameters: its Hessian
is part of the Hessian of the product. With :math:`\hat P` the product of the matrices before a
layer and S that of the weights after it, a change dV = [dW, db] matters only through
:math:`dV \hat P` or S dV.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hessence.networks.linear.hessian import LinearHessian
from hessence.networks.linear.range_reduction import RangeReduction, range_size
from hessence.spectra.operators import Operator
from hessence.spectra.spectrum import Spectrum


@dataclass(frozen=True, eq=False, repr=False)
class AffineChain(Operator):
    """The Hessian in the matrices V = [W, b], or W where there is no bias, each row by row.

    Attributes
    ----------
    product : LinearHessian
        The Hessian in the whole matrices Ŵ; of the last only [W, b].
    biased : tuple of bool
        Which of the layers have a bias.
    """

    product: LinearHessian
    biased: tuple[bool, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix."""
        return len(self._places), len(self._places)

    @property
    def _reference(self) -> Tensor:
        return self.product.gradient

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The shape of each V."""
        *hidden, last = self.product.weights
        heights = [*(int(w.shape[0]) - 1 for w in hidden), int(last.shape[0])]
        widths = [
            int(w.shape[1]) - (not biased)
            for w, biased in zip(self.product.weights, self.biased, strict=True)
        ]
        return list(zip(heights, widths, strict=True))

    @property
    def around(self) -> tuple[list[Tensor], list[Tensor]]:
        """What of the products before and after each layer its V meets."""
        before, after = self.product.chain.before, self.product.chain.after
        return (
            [p[:width] for p, (_, width) in zip(before, self.sizes, strict=True)],
            [s[:, :rows] for s, (rows, _) in zip(after, self.sizes, strict=True)],
        )

    @property
    def size(self) -> int:
        """The size of the eigenproblem that the spectrum leaves to a dense solver."""
        return range_size(*self.around)

    def spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors."""
        before, after = self.around
        families = RangeReduction(self, before, after).families()
        return Spectrum(families, "range reduction", operator=self)

    def split(self, columns: Tensor) -> list[Tensor]:
        """Cut parameter vectors (p, n) into matrices (n, d_ℓ, d_{ℓ−1})."""
        pieces = columns.split([rows * width for rows, width in self.sizes])
        return [piece.T.reshape(-1, *size) for piece, size in zip(pieces, self.sizes, strict=True)]

    def join(self, pieces: list[Tensor]) -> Tensor:
        """Stack matrices (n, d_ℓ, d_{ℓ−1}) to parameter vectors (p, n)."""
        return torch.cat([piece.flatten(1).T for piece in pieces])

    @cached_property
    def _places(self) -> Tensor:
        """Where the parameters are among all entries of the matrices Ŵ."""
        places, start = [], 0
        for weight, (rows, width) in zip(self.product.weights, self.sizes, strict=True):
            own = torch.arange(start, start + weight.numel(), device=weight.device)
            places.append(own.reshape(weight.shape)[:rows, :width].reshape(-1))
            start += weight.numel()
        return torch.cat(places)

    def _apply(self, columns: Tensor) -> Tensor:
        raised = columns.new_zeros(self.product.shape[-1], columns.shape[1])
        raised[self._places] = columns
        return self.product._apply(raised)[self._places]
