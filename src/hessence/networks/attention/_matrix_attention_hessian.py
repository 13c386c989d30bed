"""The Hessian of a self-attention layer of any embedding dimension, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import array_api_compat as api

from hessence._common.arrays import Array, constant, identity, transpose
from hessence.networks.twin import TwinSubspaces
from hessence.spectra.hessian import Hessian, Part, positive_norm
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import LARGEST_BLOCK, Columns, Subspaces

CACHE = 2**16
"""How many numbers about all tokens one product forms at once."""


@dataclass(frozen=True)
class TokenMoments:
    """What the Hessian in (W_V, M) needs of the T tokens of a batch.

    Attributes
    ----------
    x, mean : array (T, d)
        The tokens, and what they attend to: h = A x.
    covariance, skew : array (T, d, d)
        The covariance C of the tokens under the attention, and their third central moment
        contracted with the gradient W_V φ′ of the loss in h.
    first : array (T, d_V)
        The gradient φ′ of the loss in the predictions, over the number of tokens.
    second : array (T, d_V) or (T, d_V, d_V)
        Its second derivative, over the number of tokens; a matrix where the loss couples outputs.
    W_v : array (d, d_V)
        The value weights.
    scale : float
        1/√d_K.
    """

    x: Array
    mean: Array
    covariance: Array
    skew: Array
    first: Array
    second: Array
    W_v: Array
    scale: float

    @classmethod
    def of(
        cls,
        x: Array,
        attention: Array,
        gap: Array,
        first: Array,
        second: Array,
        W_v: Array,
        scale: float,
    ) -> TokenMoments:
        """Return the moments from tokens (B, n, d), and their gaps from the mean (B, n, n, d)."""
        xp = api.array_namespace(x)
        weighted = attention[..., None] * gap
        # The third moment is only needed along the gradient in h, W_V φ′.
        along = xp.matmul(gap, xp.matmul(first, transpose(W_v))[..., None])
        covariance = xp.matmul(transpose(gap), weighted)
        skew = xp.matmul(transpose(gap), along * weighted)
        parts = (x, xp.matmul(attention, x), covariance, skew, first, second)
        x, mean, covariance, skew, first, second = (
            xp.reshape(part, (-1, *part.shape[2:])) for part in parts
        )
        return cls(x, mean, covariance, skew, first, second, W_v, scale)

    def of_part(self, part: Part) -> TokenMoments:
        """Return what the Hessian has, or one of its two parts: other derivatives are zero."""
        without = {"ggn": ("first", "skew"), "functional": ("second",)}.get(part, ())
        return replace(self, **{name: 0 * getattr(self, name) for name in without})

    @cached_property
    def response(self) -> Array:
        """C W_V/√d_K: how the predictions change with dMᵀ x, (T, d, d_V)."""
        return self.scale * api.array_namespace(self.x).matmul(self.covariance, self.W_v)

    @property
    def value_gradient(self) -> Array:
        """∂ℓ/∂W_V, (d, d_V)."""
        return api.array_namespace(self.x).matmul(transpose(self.mean), self.first)

    @cached_property
    def gradient(self) -> Array:
        """G = ∂ℓ/∂M, (d, d)."""
        xp = api.array_namespace(self.x)
        return xp.matmul(transpose(self.x), xp.matmul(self.response, self.first[..., None])[..., 0])

    def loss_hessian(self, df: Array) -> Array:
        """Apply the loss's second derivative to changes (T, d_V, k) of the predictions."""
        if self.second.ndim == 2:
            return self.second[..., None] * df
        return api.array_namespace(df).matmul(self.second, df)


@dataclass(frozen=True, eq=False, repr=False)
class MatrixAttentionHessian(Hessian):
    """The Hessian of a self-attention layer, with parameters ordered (W_V, W_Q, W_K).

    `sizes` returns moments without signs, see :mod:`hessence.networks.attention._rounding`.
    """

    W_v: Array
    W_q: Array
    W_k: Array
    moments: TokenMoments
    part: Part = "hessian"
    sizes: Callable[[], TokenMoments] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        p = math.prod(self.W_v.shape) + 2 * math.prod(self.W_q.shape)
        return (p, p)

    @property
    def reference(self) -> Array:
        return self.W_v

    def _only(self, part: Part, without: str) -> Self:
        return replace(self, part=part, moments=self.moments.of_part(part))

    def times(self, columns: Array) -> Array:
        count = int(columns.shape[-1])
        step = max(1, CACHE // math.prod(self.moments.x.shape))
        parts = [
            self._apply_some(columns[:, start : min(start + step, count)])
            for start in range(0, count, step)
        ]
        return parts[0] if len(parts) == 1 else api.array_namespace(columns).concat(parts, axis=-1)

    def _apply_some(self, columns: Array) -> Array:
        xp, t = api.array_namespace(columns), self.moments
        dV, dQ, dK = self._split(columns)
        dM = _times(dQ, transpose(self.W_k)) + _act(self.W_q, xp.permute_dims(dK, (1, 0, 2)))
        z = t.scale * _act(t.x, dM)
        dh = xp.matmul(t.covariance, z)
        on_value = on_h = on_z = 0.0
        if self.part != "functional":
            df = _act(t.mean, dV) + xp.matmul(transpose(self.W_v), dh)
            d_first = t.loss_hessian(df)
            on_value = _act(transpose(t.mean), d_first)
            on_h = xp.matmul(self.W_v, d_first)
        if self.part != "ggn":
            on_value = on_value + xp.permute_dims(_act(transpose(t.first), dh), (1, 0, 2))
            on_h = on_h + _act(t.first, xp.permute_dims(dV, (1, 0, 2)))
            on_z = xp.matmul(t.skew, z)
        on_scores = t.scale * _act(transpose(t.x), xp.matmul(t.covariance, on_h) + on_z)
        on_q = _times(on_scores, self.W_k)
        on_k = _times(xp.permute_dims(on_scores, (1, 0, 2)), self.W_q)
        if self.part != "ggn":
            on_q = on_q + _act(t.gradient, dK)
            on_k = on_k + _act(transpose(t.gradient), dQ)
        return self._join(on_value, on_q, on_k)

    def _split(self, columns: Array) -> list[Array]:
        """Cut parameter vectors (p, k) into (d, d_V, k), (d, d_K, k) and (d, d_K, k)."""
        xp, pieces, start = api.array_namespace(columns), [], 0
        for weight in (self.W_v, self.W_q, self.W_k):
            end = start + math.prod(weight.shape)
            pieces.append(xp.reshape(columns[start:end, :], (*weight.shape, -1)))
            start = end
        return pieces

    def _join(self, *pieces: Array) -> Array:
        xp = api.array_namespace(*pieces)
        return xp.concat([xp.reshape(piece, (-1, piece.shape[-1])) for piece in pieces], axis=0)

    def rounding(self) -> Any:
        """Return the norm of the operator that adds up all errors with positive signs."""
        if self.sizes is None:
            return 0.0
        weights = {name: abs(constant(getattr(self, name))) for name in ("W_v", "W_q", "W_k")}
        return positive_norm(replace(self, moments=self.sizes().of_part(self.part), **weights))

    def trace(self) -> Array:
        """Return the trace; the swap of dW_Q and dW_K with G has no diagonal."""
        xp, t = api.array_namespace(self.W_v), self.moments
        x, x_q = t.x, xp.matmul(t.x, self.W_q)
        long, turned = xp.sum(x * x, axis=-1), xp.sum(x_q * x_q, axis=-1)
        keys = xp.matmul(self.W_k, transpose(self.W_k))
        skew = turned * xp.sum(xp.linalg.diagonal(t.skew), axis=-1)
        total = t.scale**2 * xp.sum(skew + long * xp.sum(t.skew * keys, axis=(-2, -1)))
        if self.part == "functional":
            return total
        # |h|² tr φ″, and with R = C W_V/√d_K: tr(φ″ RᵀR) and tr(φ″ Rᵀ W_K W_Kᵀ R).
        eye = identity(t.response.shape[-1], self.W_v)[None, ...]
        squares = xp.sum(t.mean * t.mean, axis=-1)
        through_keys = xp.matmul(transpose(self.W_k), t.response)
        for weights, factor in ((squares, eye), (turned, t.response), (long, through_keys)):
            change = transpose(factor)
            each = xp.sum(change * t.loss_hessian(change), axis=(-2, -1))
            total = total + xp.sum(weights * each)
        return total

    def squared_norm(self) -> Array:
        """Return the sum of all squared entries: of the twin's, and of the swap outside it."""
        xp = api.array_namespace(self.W_v)
        total = xp.sum(self._narrow.dense() ** 2)
        spare = int(self.W_q.shape[1]) - self._twin.twin.width
        return total + 2 * spare * xp.sum(self.moments.gradient**2)

    @cached_property
    def _twin(self) -> TwinSubspaces:
        """The twin of W_Q W_Kᵀ."""

        def place(dB: Array, dA: Array) -> Array:
            xp, shape = api.array_namespace(dA), (math.prod(self.W_v.shape), dA.shape[0])
            none = xp.zeros(shape, dtype=dA.dtype, device=api.device(dA))
            return self._side_by_side(none, dB, dA)

        return TwinSubspaces(transpose(self.W_k), self.W_q, self.moments.gradient, place)

    @cached_property
    def _narrow(self) -> MatrixAttentionHessian:
        """The Hessian of the layer with the twin's weights."""
        twin = self._twin.twin
        return replace(self, W_q=twin.W2, W_k=transpose(twin.W1))

    def exact_spectrum(self) -> Spectrum:
        twin, narrow, values = self._twin, self._narrow, math.prod(self.W_v.shape)
        size = values + twin.size
        if size > LARGEST_BLOCK:
            raise ValueError(
                f"the narrow twin of this layer has {size} parameters that matter, more than the "
                f"{LARGEST_BLOCK} that a dense solver is given; call hs.eigenpairs(H, k) for the "
                "extreme eigenvalues."
            )

        def embed(coordinates: Array) -> Array:
            factors = twin.widen(*twin.embed(coordinates[values:, :]))
            return self._side_by_side(coordinates[:values, :], *factors)

        def products(coordinates: Array) -> Array:
            xp, factors = api.array_namespace(coordinates), twin.embed(coordinates[values:, :])
            image = narrow @ self._side_by_side(coordinates[:values, :], *factors)
            _, on_q, on_k = narrow._split(image)
            inside = twin.project(
                xp.permute_dims(on_k, (2, 1, 0)), xp.permute_dims(on_q, (2, 0, 1))
            )
            return xp.concat([image[:values, :], inside], axis=0)

        inside = Subspaces(("twin",) * size, lambda _: Columns(embed), products=products)
        return Spectrum([inside, *twin.outside()], "narrow twin", operator=self)

    @staticmethod
    def _side_by_side(on_values: Array, dB: Array, dA: Array) -> Array:
        """Stack changes (d · d_V, n) of W_V, dW_Kᵀ (n, ·, d) and dW_Q (n, d, ·) to columns."""
        xp, n = api.array_namespace(dA), int(dA.shape[0])
        rows = [xp.reshape(piece, (n, -1)) for piece in (dA, transpose(dB))]
        return xp.concat([on_values, *map(transpose, rows)], axis=0)


def _act(matrix: Array, columns: Array) -> Array:
    """Multiply (a, b) by (b, c, k) along b."""
    xp = api.array_namespace(matrix)
    flat = xp.matmul(matrix, xp.reshape(columns, (columns.shape[0], -1)))
    return xp.reshape(flat, (flat.shape[0], *columns.shape[1:]))


def _times(columns: Array, matrix: Array) -> Array:
    """Multiply (a, b, k) by (b, c) along b."""
    return api.array_namespace(matrix).matmul(transpose(matrix), columns)
