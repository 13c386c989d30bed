r"""The Hessian of a product of matrices, from moments alone.

With :math:`M = W_L \cdots W_1`, :math:`P_\ell = W_{\ell-1}\cdots W_1` and
:math:`S_\ell = W_L\cdots W_{\ell+1}`, a change of the weights changes M by
:math:`dM = \sum_\ell S_\ell\, dW_\ell\, P_\ell`, and the second variation of a loss ℓ(M) is

.. math:: \nabla^2\ell[dM, dM] + 2\sum_{k>l} \langle G, S_k\, dW_k\, W_{k-1}\cdots W_{l+1}\, dW_l\,
          P_l\rangle, \qquad G = \partial\ell/\partial M.

Products with it are one pass forward and one back over matrices, whatever the number of samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import array_api_compat as api

from hessence._common.arrays import Array, transpose
from hessence.data.matrix_objectives import Dense, LossHessian, Separable
from hessence.krylov.eigenpairs_result import Eigenpairs
from hessence.networks.scalar.products import Part
from hessence.spectra.operators import Hessian
from hessence.spectra.spectrum import Spectrum


@dataclass(frozen=True, eq=False, repr=False)
class LinearHessian(Hessian):
    """The Hessian of a loss of the product W_L ⋯ W_1, first layer first, each row by row.

    Attributes
    ----------
    weights : tuple of array (..., d_ℓ, d_{ℓ−1})
        The factors, first to act first.
    gradient : array (..., d_L, d_0)
        The gradient G of the loss in the product.
    loss_hessian : LossHessian
        Its second derivative, a symmetric map of d_L × d_0 matrices.
    noise : float
        How much of the gradient may be rounding; what is smaller counts as zero.
    part : str
        Which of the Hessian and its two parts this is.
    """

    weights: tuple[Array, ...]
    gradient: Array
    loss_hessian: LossHessian
    noise: float = 0.0
    part: Part = "hessian"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix, batch dimensions in front."""
        p = sum(math.prod(w.shape[-2:]) for w in self.weights)
        return (*self.gradient.shape[:-2], p, p)

    @property
    def ggn(self) -> LinearHessian:
        """The Gauss–Newton part."""
        return replace(self, gradient=0 * self.gradient, part="ggn")

    @property
    def functional(self) -> LinearHessian:
        """The functional part."""
        return replace(self, loss_hessian=self.loss_hessian.scaled(0.0), part="functional")

    @property
    def _reference(self) -> Array:
        return self.weights[0]

    @property
    def dims(self) -> tuple[int, ...]:
        """The widths (d_0, …, d_L)."""
        return (int(self.weights[0].shape[-1]), *(int(w.shape[-2]) for w in self.weights))

    def top(self, k: int = 1, which: str = "LA", **options: Any) -> Eigenpairs:
        """Return extreme eigenpairs by Lanczos; the arguments are those of ``hs.eigenpairs``.

        Works on a batch of networks too, all at once. A wide two-layer network is sought through
        its narrow twin where the bulk that this leaves out is not among the answers.
        """
        from hessence.networks.linear.twin_top import top_of_stack, top_of_twin

        return top_of_twin(self, k, which, options) or top_of_stack(self, k, which, options)

    def pick(self, index: Any) -> LinearHessian:
        """Return the Hessians at an index into the batch dimension."""
        loss_hessian = (
            self.loss_hessian
            if isinstance(self.loss_hessian, Separable)
            else Dense(self.loss_hessian.tensor()[index])
        )
        layers = tuple(w[index] for w in self.weights)
        return replace(
            self, weights=layers, gradient=self.gradient[index], loss_hessian=loss_hessian
        )

    def spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors.

        Raises
        ------
        ValueError
            If no exact route brings the problem down to a size that can be solved; ``top`` then
            still finds the ends of the spectrum.
        """
        from hessence.networks.linear.linear_routes import spectrum_of

        return spectrum_of(self)

    @cached_property
    def before(self) -> tuple[Array, ...]:
        """The products P_1 = I, …, P_{L+1} = M."""
        xp = api.array_namespace(self.weights[0])
        products = [xp.eye(self.dims[0], dtype=self.dtype, device=api.device(self._reference))]
        for w in self.weights:
            products.append(xp.matmul(w, products[-1]))
        return tuple(products)

    @cached_property
    def after(self) -> tuple[Array, ...]:
        """The products S_0 = M, S_1, …, S_L = I."""
        xp = api.array_namespace(self.weights[0])
        products = [xp.eye(self.dims[-1], dtype=self.dtype, device=api.device(self._reference))]
        for w in reversed(self.weights):
            products.insert(0, xp.matmul(products[0], w))
        return tuple(products)

    def between(self, k: int, l: int) -> Array | None:  # noqa: E741 - the papers' letter
        """Return W_{k−1} ⋯ W_{l+1} for layers k > l, counted from 1; None for the identity."""
        xp = api.array_namespace(self.weights[0])
        if k == l + 1:
            return None
        product = self.weights[l]
        for w in self.weights[l + 1 : k - 1]:
            product = xp.matmul(w, product)
        return product

    def split(self, columns: Array) -> list[Array]:
        """Cut parameter vectors (..., p, n) into matrices (..., n, d_ℓ, d_{ℓ−1})."""
        xp = api.array_namespace(columns)
        rows = xp.matrix_transpose(columns)
        pieces, start = [], 0
        for w in self.weights:
            shape = tuple(w.shape[-2:])
            end = start + math.prod(shape)
            pieces.append(xp.reshape(rows[..., start:end], (*rows.shape[:-1], *shape)))
            start = end
        return pieces

    def join(self, pieces: list[Array]) -> Array:
        """Stack matrices (..., n, d_ℓ, d_{ℓ−1}) to parameter vectors (..., p, n)."""
        xp = api.array_namespace(*pieces)
        flat = [
            xp.reshape(piece, (*piece.shape[:-2], math.prod(piece.shape[-2:]))) for piece in pieces
        ]
        lead = max((tuple(f.shape[:-1]) for f in flat), key=len)
        flat = [xp.broadcast_to(f, (*lead, int(f.shape[-1]))) for f in flat]
        return xp.matrix_transpose(xp.concat(flat, axis=-1))

    def pull(self, dM: Array) -> Array:
        """Carry matrices (..., n, d_L, d_0) back to parameters: the adjoint of weights to dM."""
        xp = api.array_namespace(dM)
        pieces = [
            xp.matmul(
                xp.matmul(transpose(self.after[i + 1])[..., None, :, :], dM),
                transpose(self.before[i])[..., None, :, :],
            )
            for i in range(len(self.weights))
        ]
        return self.join(pieces)

    def _apply(self, columns: Array) -> Array:
        # Pearlmutter's R-operator: `d…` is the derivative along the given direction of the forward
        # products P and of the backward products Sᵀ G.
        xp = api.array_namespace(columns)
        changes = self.split(columns)
        d_before = self._forward(changes)
        back, d_back = self.gradient[..., None, :, :], self.loss_hessian(d_before[-1])
        out = []
        for i in reversed(range(len(self.weights))):
            before = self.before[i][..., None, :, :]
            step = xp.matmul(d_back, transpose(before))
            if self.part != "ggn":
                step = step + xp.matmul(back, transpose(d_before[i]))
            out.append(step)
            w = self.weights[i][..., None, :, :]
            d_back = xp.matmul(transpose(w), d_back)
            if self.part != "ggn":
                d_back = d_back + xp.matmul(transpose(changes[i]), back)
                back = xp.matmul(transpose(w), back)
        return self.join(out[::-1])

    def _forward(self, changes: list[Array]) -> list[Array]:
        xp = api.array_namespace(*changes)
        first = self.before[0]
        running = [xp.zeros_like(first)[..., None, :, :]]
        for i, w in enumerate(self.weights):
            moved = xp.matmul(changes[i], self.before[i][..., None, :, :])
            running.append(moved + xp.matmul(w[..., None, :, :], running[-1]))
        return running

    # Invariants, from the entries.

    def trace(self) -> Array:
        """Return Σ_ℓ tr(S_ℓ S_ℓᵀ) tr(P_ℓ Σ P_ℓᵀ), or its like for another loss."""
        xp = api.array_namespace(self.weights[0])
        if isinstance(self.loss_hessian, Separable):
            total = 0
            for i in range(len(self.weights)):
                p, s = self.before[i], self.after[i + 1]
                data = xp.sum(xp.matmul(p, self.loss_hessian.variance) * p, axis=(-2, -1))
                total = total + data * xp.sum(s * s, axis=(-2, -1))
            return total
        tensor = self.loss_hessian.tensor()
        return xp.sum(tensor * self._jacobian_gram(), axis=(-4, -3, -2, -1))

    def squared_norm(self) -> Array:
        """Return the squared Frobenius norms of all pairs of layers, summed."""
        xp = api.array_namespace(self.weights[0])
        total = self._ggn_squared_norm()
        if self.part == "ggn":
            return total
        layers = range(1, len(self.weights) + 1)
        for k in layers:
            for l in range(1, k):  # noqa: E741
                p, s, middle = self.before[l - 1], self.after[k], self.between(k, l)
                outer = xp.matmul(xp.matmul(p, transpose(self.gradient)), s)
                size = self.dims[l] if middle is None else _square(middle)
                total = total + 2 * _square(outer) * size
                if self.part == "hessian":
                    total = total + 4 * self._overlap(k, l, outer, middle)
        return total

    def _ggn_squared_norm(self) -> Array:
        xp = api.array_namespace(self.weights[0])
        if not isinstance(self.loss_hessian, Separable):
            *batch, outputs, inputs, _, _ = self.loss_hessian.tensor().shape
            size = (*batch, outputs * inputs, outputs * inputs)
            both = xp.matmul(
                xp.reshape(self.loss_hessian.tensor(), size),
                xp.reshape(self._jacobian_gram(), size),
            )
            return xp.sum(both * transpose(both), axis=(-2, -1))
        total = 0
        outer = [xp.matmul(s, transpose(s)) for s in self.after[1:]]
        inner = [
            xp.matmul(self.loss_hessian.variance, xp.matmul(transpose(p), p))
            for p in self.before[:-1]
        ]
        for a, b in zip(outer, inner, strict=True):
            for c, d in zip(outer, inner, strict=True):
                total = total + xp.sum(a * c, axis=(-2, -1)) * xp.sum(
                    b * transpose(d), axis=(-2, -1)
                )
        return total

    def _overlap(self, k: int, l: int, outer: Array, middle: Array | None) -> Array:  # noqa: E741
        """Return the inner product of the two parts' blocks for layers k > l."""
        xp = api.array_namespace(self.weights[0])
        if isinstance(self.loss_hessian, Separable):
            left = xp.matmul(transpose(self.after[k]), self.after[l])
            data = xp.matmul(self.before[k - 1], self.loss_hessian.variance)
            right = xp.matmul(data, transpose(self.before[l - 1]))
            if middle is not None:
                right = xp.matmul(transpose(middle), right)
            chain = xp.matmul(xp.matmul(outer, left), right)
            return xp.sum(xp.linalg.diagonal(chain), axis=-1)
        # The functional block maps dW_l to Sₖᵀ G Pₗᵀ dW_lᵀ (middle)ᵀ. Where it meets J_kᵀ B J_l,
        # hidden dimensions are summed over first: that leaves matrices of the product's shape.
        far = xp.matmul(xp.matmul(self.after[k], transpose(outer)), self.before[l - 1])
        near = self.after[l] if middle is None else xp.matmul(self.after[l], transpose(middle))
        near = transpose(xp.matmul(near, self.before[k - 1]))
        met = far[..., :, None, None, :] * near[..., None, :, :, None]
        return xp.sum(self.loss_hessian.tensor() * met, axis=(-4, -3, -2, -1))

    def _jacobian_gram(self) -> Array:
        """Return J Jᵀ = Σ_ℓ S_ℓ S_ℓᵀ ⊗ P_ℓᵀ P_ℓ as an array (..., K, D, K, D)."""
        xp = api.array_namespace(self.weights[0])
        total = 0
        for i in range(len(self.weights)):
            outer = xp.matmul(self.after[i + 1], transpose(self.after[i + 1]))
            inner = xp.matmul(transpose(self.before[i]), self.before[i])
            total = total + outer[..., :, None, :, None] * inner[..., None, :, None, :]
        return total


def _square(matrix: Array) -> Array:
    return api.array_namespace(matrix).sum(matrix * matrix, axis=(-2, -1))
