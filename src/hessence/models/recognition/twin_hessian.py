r"""The Hessian of a model with wide pairs of layers, from the derivatives of a small one.

With J the map from all parameters to the changes of the pairs' products and of the other parameters
ψ, T the second derivative of the loss in these and F the pairs' :math:`2\langle G, dA\,dB\rangle`,
the Hessian is :math:`J^\top T J + F`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hessence.models.recognition.model_pair import LayerPairReduction, Pair
from hessence.spectra.operators import Operator
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Isometry, Subspaces


@dataclass(frozen=True, eq=False, repr=False)
class TwinHessian(Operator):
    """The Hessian of a model with wide pairs of layers.

    Attributes
    ----------
    pairs : tuple of Pair
        The pairs.
    curvature : tensor (q, q)
        The second derivative T of the loss in the products of the pairs and the other parameters.
    rest : tensor of int
        Where the other parameters are in the parameter vector.
    """

    pairs: tuple[Pair, ...]
    curvature: Tensor
    rest: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix."""
        p = len(self.rest) + sum(pair.A.numel() + pair.B.numel() for pair in self.pairs)
        return p, p

    @property
    def _reference(self) -> Tensor:
        return self.curvature

    @property
    def names(self) -> str:
        """The names of the layers."""
        return ", ".join(repr(name) for pair in self.pairs for name in pair.names)

    def spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors."""
        blocks = [b for red in self._reductions for b in red.blocks(self.shape[0])]
        return Spectrum([*self._core(), *blocks], "narrow twin")

    def trace(self) -> Tensor:
        """Return tr(T J Jᵀ)."""
        return (self.curvature * self._gram).sum()

    def squared_norm(self) -> Tensor:
        """Return the squared norms of Jᵀ T J and of F, and twice their inner product."""
        bent = self.curvature @ self._gram
        total = (bent * bent.T).sum()
        start = 0
        for pair in self.pairs:
            own = slice(start, start + pair.size)
            total = total + 2 * (self.curvature[own, own] * pair.turned_swap()).sum()
            total = total + 2 * pair.A.shape[1] * (pair.slope * pair.slope).sum()
            start += pair.size
        return total

    def _apply(self, columns: Tensor) -> Tensor:
        changes = [pair.change(columns) for pair in self.pairs]
        bent = self.curvature @ torch.cat([*changes, columns[self.rest]])
        *of_pairs, of_rest = bent.split([*(len(c) for c in changes), len(self.rest)])
        out = torch.zeros_like(columns)
        out[self.rest] = of_rest
        for pair, piece in zip(self.pairs, of_pairs, strict=True):
            pair.pull(piece, columns, out)
        return out

    @cached_property
    def _reductions(self) -> list[LayerPairReduction]:
        return [LayerPairReduction(pair) for pair in self.pairs]

    @cached_property
    def _gram(self) -> Tensor:
        """J Jᵀ, in the order of T."""
        return torch.block_diag(*(pair.gram() for pair in self.pairs), self._rest_eye)

    @property
    def _rest_eye(self) -> Tensor:
        size = len(self.rest)
        return torch.eye(size, dtype=self.curvature.dtype, device=self.curvature.device)

    def _core(self) -> list[Subspaces]:
        reductions = self._reductions
        sizes = [*(reduction.size for reduction in reductions), len(self.rest)]
        if not sum(sizes):
            return []
        jacobian = torch.block_diag(*(red.jacobian for red in reductions), self._rest_eye)
        swap = torch.block_diag(*(red.swap for red in reductions), 0 * self._rest_eye)
        matrix = jacobian.T @ self.curvature @ jacobian + swap
        matrix = (matrix + matrix.T) / 2

        def carry(coordinates: Tensor, copies: Tensor) -> Tensor:
            *of_pairs, of_rest = (coordinates[:, None] * copies).split(sizes)
            out = copies.new_zeros(self.shape[0], copies.shape[1])
            out[self.rest] = of_rest
            for reduction, piece in zip(reductions, of_pairs, strict=True):
                reduction.carry(piece, out)
            return out

        def isometry(_: int) -> Isometry:
            return carry

        return [Subspaces(("twin",) * len(matrix), isometry, matrix=matrix)]
