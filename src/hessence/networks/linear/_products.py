r"""The Hessian of a product of matrices, from moments alone.

With :math:`M = W_L \cdots W_1` and P, S as in :mod:`hessence.networks.linear._chain`, the second
variation of a loss ℓ(M), or of a loss of M plus a constant, is

.. math:: \nabla^2\ell[dM, dM] + 2\sum_{k>l} \langle G, S_k\, dW_k\, W_{k-1}\cdots W_{l+1}\, dW_l\,
          P_l\rangle, \qquad G = \partial\ell/\partial M.

Products with it are one pass forward and one back over matrices, whatever the number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Self

import array_api_compat as api
import numpy as np

from hessence._common.arrays import (
    Array,
    constant,
    epsilon,
    largest,
    like,
    stack_rows,
    to_numpy,
    transpose,
)
from hessence.data.matrix_objectives import Dense, LossHessian, Separable
from hessence.data.rounding import DerivativeErrors, terms
from hessence.networks.linear._chain import Chain
from hessence.spectra.hessian import Hessian, Part, positive_norm


@dataclass(frozen=True, eq=False, repr=False)
class LinearProducts(Hessian):
    """Products with the Hessian of a loss of W_L ⋯ W_1, first layer first, each row by row."""

    weights: tuple[Array, ...]  # the factors (..., d_ℓ, d_{ℓ−1}), first to act first
    gradient: Array  # (..., d_L, d_0): that of the loss in the end-to-end matrix, G
    loss_hessian: LossHessian  # its second derivative, a symmetric map of d_L × d_0 matrices
    # Bounds the rounding of both, if each step on the way to M is off by a share of its terms.
    derivatives: Callable[[float], DerivativeErrors] | None = None
    part: Part = "hessian"

    @cached_property
    def chain(self) -> Chain:
        """The product of the factors and its derivatives."""
        return Chain(self.weights)

    @property
    def dims(self) -> tuple[int, ...]:
        """The widths (d_0, …, d_L)."""
        return self.chain.dims

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.gradient.shape[:-2], self.chain.size, self.chain.size)

    def pick(self, index: Any) -> Self:
        """Return the Hessians at an index into the batch dimension."""
        second = self.loss_hessian
        if not isinstance(second, Separable):
            second = Dense(second.entries[index])
        layers = tuple(w[index] for w in self.weights)
        return replace(self, weights=layers, gradient=self.gradient[index], loss_hessian=second)

    @property
    def reference(self) -> Array:
        return self.weights[0]

    @property
    def zero(self) -> Array:
        """An eigenvalue (1,) that is zero: PyTorch's gradients of it are zero, and not missing."""
        xp = api.array_namespace(*self.weights)
        entries = [0 * xp.reshape(w, (-1,))[:1] for w in self.weights]
        return xp.sum(xp.stack(entries), axis=0)

    def times(self, columns: Array) -> Array:
        return self.chain.join(self.multiply(self.chain.split(columns)))

    def multiply(self, changes: list[Array]) -> list[Array]:
        """Multiply changes (..., n, d_ℓ, d_{ℓ−1}) of the layers."""
        # Pearlmutter's R-operator: `d…` is the derivative along the given direction of the forward
        # products P and of the backward products Sᵀ G.
        xp, chain = api.array_namespace(*changes), self.chain
        d_before = chain.push(changes)
        back, d_back = self.gradient[..., None, :, :], self.loss_hessian(d_before[-1])
        out = []
        for i in reversed(range(1, len(self.weights))):
            step = xp.matmul(d_back, transpose(chain.before[i])[..., None, :, :])
            if self.part != "ggn":
                step = step + xp.matmul(back, transpose(d_before[i]))
            out.append(step)
            w = self.weights[i][..., None, :, :]
            if self.part == "ggn":
                d_back = xp.matmul(transpose(w), d_back)
                continue
            # Wᵀ d_back + dWᵀ back, as one product.
            d_back = xp.matmul(transpose(stack_rows(w, changes[i])), stack_rows(d_back, back))
            back = xp.matmul(transpose(w), back)
        # Nothing comes before the first layer, P_1 = I.
        out.append(d_back)
        return out[::-1]

    # Bounds, from the norms of layers.

    def ggn_bounds(self) -> tuple[float, float]:
        """Return two numbers that hold the largest eigenvalue of the Gauss–Newton part.

        With the mean-squared error it is at least the largest of ‖P_ℓ Σ^½‖² ‖S_ℓ‖², and at most the
        sum of them over the layers. Otherwise at most d_0 d_L eigenvalues share the trace.
        """
        if not isinstance(self.loss_hessian, Separable):
            trace = largest(self.trace())
            return trace / (self.dims[0] * self.dims[-1]), trace
        xp, terms = api.array_namespace(self.gradient), []
        for p, s in zip(self.chain.before, self.chain.after, strict=True):
            triangle = xp.linalg.qr(p)[1]
            data = xp.matmul(xp.matmul(triangle, self.loss_hessian.variance), transpose(triangle))
            terms.append(spectral_norm(data) * spectral_norm(s) ** 2)
        return max(terms), sum(terms)

    def functional_bound(self) -> float:
        """Return an upper bound on the norm of the functional part.

        Each term of it is tr(P_l Gᵀ S_k dW_k W_{k−1} ⋯ W_{l+1} dW_l), at most
        ‖P_l Gᵀ S_k‖ ‖W_{k−1} ⋯ W_{l+1}‖ times ‖dW_k‖ ‖dW_l‖: the norm of the L × L matrix of these
        numbers bounds it.
        """
        xp, depth = api.array_namespace(self.gradient), len(self.weights)
        table = np.zeros((depth, depth))
        for k in range(1, depth + 1):
            for l in range(1, k):  # noqa: E741 - the papers' letter
                before, after = self.chain.before[l - 1], self.chain.after[k - 1]
                outer = xp.matmul(xp.matmul(before, transpose(self.gradient)), after)
                middle = self.chain.between(k, l)
                size = spectral_norm(outer) * (1.0 if middle is None else spectral_norm(middle))
                table[k - 1, l - 1] = table[l - 1, k - 1] = size
        return float(np.linalg.norm(table, 2))

    def rounding(self) -> float:
        """Return a bound for the spectral norm of what rounding has done to the operator.

        Running error analysis: all that is added up on the way to an entry is added up with
        positive signs, by the same products.
        """
        if self.derivatives is None:
            return 0.0
        share = self._share
        errors = self.derivatives(share)
        first = errors.gradient + share * np.abs(to_numpy(self.gradient))
        second: LossHessian
        if isinstance(self.loss_hessian, Separable):
            # The same for all outputs: that of one does, and is not (d_0 d_L)² numbers.
            one = errors._replace(size=errors.size[:1], spread=errors.spread[:1])
            second = Separable(like(one.second(share)[0, :, 0, :], self.gradient))
        else:
            # Outputs that the loss does not couple stay apart.
            apart = np.eye(self.dims[-1])[:, None, :, None]
            coupled = np.any(to_numpy(self.loss_hessian.entries) * (1 - apart))
            second = Dense(like(errors.second(share) * (1 if coupled else apart), self.gradient))
        if self.part == "functional":
            second = 0 * second
        weights = tuple(abs(constant(w)) for w in self.weights)
        gradient = like(first if self.part != "ggn" else 0 * first, self.gradient)
        sizes = replace(self, weights=weights, gradient=gradient, loss_hessian=second)
        return min(float(positive_norm(sizes)), self._rounding_of_norms())

    def _rounding_of_norms(self) -> float:
        r"""Bound the same by norms of layers, which is less where these are large and dense.

        A product A B, computed, is off by at most γ |A| |B| entry by entry, with γ for sums of its
        length, and so by γ ‖A‖_F ‖B‖_F in the Frobenius norm (Higham, 2002, §3.5). What follows
        passes that on by spectral norms. With ρ the largest ‖W‖_F / ‖W‖ of all layers, products of
        layers have Frobenius norms of at most ρ times the product of their spectral ones.
        """
        data = getattr(self.derivatives, "norms", lambda: None)()
        if data is None:
            return math.inf
        depth, sizes = len(self.weights), [spectral_norm(w) for w in self.weights]
        wide = [
            frobenius_norm(w) / size if size else 1.0
            for w, size in zip(self.weights, sizes, strict=True)
        ]
        one, rho = terms(2 * max(self.dims)), max(wide)
        # Some 2 L products one after another, of which some join two sums.
        each = (2 * depth + 4) * one * rho * rho

        def without(*layers: int) -> float:
            return math.prod(size for m, size in enumerate(sizes) if m not in layers)

        # E[x xᵀ] as it was summed, as a factor, and all other factors around it.
        sums = terms(data.samples)
        inputs = sums * data.trace + rho * one * data.frobenius + each * data.norm
        squares = sum(without(k) * without(k) for k in range(depth))
        ggn = 2 * squares * inputs * (self.part != "functional")
        lost = without() * inputs + sums * data.targets + each * frobenius_norm(self.gradient)
        pairs = [[without(k, m) * (k != m) for m in range(depth)] for k in range(depth)]
        functional = lost * spectral_norm(np.asarray(pairs)) * (self.part != "ggn")
        bound = float(epsilon(self.gradient) * (ggn + functional))
        return math.inf if math.isnan(bound) else bound

    @property
    def _share(self) -> float:
        """What rounding may do to one step of a product, relative to the sizes in it."""
        modest = 64 + 8 * len(self.weights) + 2 * terms(max(self.dims))
        return modest * epsilon(self.gradient)

    # Invariants, from the entries.

    def trace(self) -> Array:
        """Return Σ_ℓ tr(S_ℓ S_ℓᵀ) tr(P_ℓ Σ P_ℓᵀ), or its like for another loss."""
        xp = api.array_namespace(self.weights[0])
        if isinstance(second := self.loss_hessian, Dense):
            return xp.sum(second.entries * self.chain.gram(), axis=(-4, -3, -2, -1))
        return sum(
            xp.sum(xp.matmul(p, second.variance) * p, axis=(-2, -1)) * _square(s)
            for p, s in zip(self.chain.before, self.chain.after, strict=True)
        )

    def squared_norm(self) -> Array:
        """Return the squared Frobenius norms of all pairs of layers, summed."""
        xp = api.array_namespace(self.weights[0])
        total = self._ggn_squared_norm()
        if self.part == "ggn":
            return total
        layers = range(1, len(self.weights) + 1)
        for k in layers:
            for l in range(1, k):  # noqa: E741
                p, s = self.chain.before[l - 1], self.chain.after[k - 1]
                middle = self.chain.between(k, l)
                outer = xp.matmul(xp.matmul(p, transpose(self.gradient)), s)
                size = self.dims[l] if middle is None else _square(middle)
                total = total + 2 * _square(outer) * size
                if self.part == "hessian":
                    total = total + 4 * self._overlap(k, l, outer, middle)
        return total

    def _ggn_squared_norm(self) -> Array:
        xp = api.array_namespace(self.weights[0])
        if isinstance(second := self.loss_hessian, Dense):
            *batch, outputs, inputs, _, _ = second.entries.shape
            size = (*batch, outputs * inputs, outputs * inputs)
            both = xp.matmul(*(xp.reshape(a, size) for a in (second.entries, self.chain.gram())))
            return xp.sum(both * transpose(both), axis=(-2, -1))
        grams = [
            (xp.matmul(s, transpose(s)), xp.matmul(second.variance, xp.matmul(transpose(p), p)))
            for p, s in zip(self.chain.before, self.chain.after, strict=True)
        ]
        return sum(
            xp.sum(a * c, axis=(-2, -1)) * xp.sum(b * transpose(d), axis=(-2, -1))
            for (a, b), (c, d) in product(grams, repeat=2)
        )

    def _overlap(self, k: int, l: int, outer: Array, middle: Array | None) -> Array:  # noqa: E741
        """Return the inner product of the two parts' blocks for layers k > l."""
        xp = api.array_namespace(self.weights[0])
        before, after = self.chain.before, self.chain.after
        if isinstance(self.loss_hessian, Separable):
            left = xp.matmul(transpose(after[k - 1]), after[l - 1])
            data = xp.matmul(before[k - 1], self.loss_hessian.variance)
            right = xp.matmul(data, transpose(before[l - 1]))
            if middle is not None:
                right = xp.matmul(transpose(middle), right)
            chain = xp.matmul(xp.matmul(outer, left), right)
            return xp.sum(xp.linalg.diagonal(chain), axis=-1)
        # The functional block maps dW_l to Sₖᵀ G Pₗᵀ dW_lᵀ (middle)ᵀ. Where it meets J_kᵀ B J_l,
        # hidden dimensions are summed over first: that leaves matrices of the product's shape.
        far = xp.matmul(xp.matmul(after[k - 1], transpose(outer)), before[l - 1])
        near = after[l - 1] if middle is None else xp.matmul(after[l - 1], transpose(middle))
        near = transpose(xp.matmul(near, before[k - 1]))
        met = far[..., :, None, None, :] * near[..., None, :, :, None]
        return xp.sum(self.loss_hessian.entries * met, axis=(-4, -3, -2, -1))


def spectral_norm(matrix: Array) -> float:
    """Return the largest singular value, infinity where entries have overflowed."""
    own = to_numpy(matrix)
    return float(np.linalg.norm(own, 2)) if np.isfinite(own).all() else float("inf")


def frobenius_norm(matrix: Array) -> float:
    """Return the square root of the sum of squares."""
    return float(np.linalg.norm(to_numpy(matrix)))


def _square(matrix: Array) -> Array:
    return api.array_namespace(matrix).sum(matrix * matrix, axis=(-2, -1))
