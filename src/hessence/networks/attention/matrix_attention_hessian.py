"""The Hessian of a self-attention layer of any embedding dimension, token by token."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import array_api_compat as api

from hessence._common.arrays import Array, constant, transpose
from hessence.networks.twin import narrow_twin
from hessence.spectra.frames import Frame
from hessence.spectra.operators import Hessian
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import LARGEST_BLOCK, Columns, Isometry, Subspaces

HALF = 0.5**0.5


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

    def bend(self, df: Array) -> Array:
        """Apply the loss's second derivative to changes (T, d_V, k) of the predictions."""
        if self.second.ndim == 2:
            return self.second[..., None] * df
        return api.array_namespace(df).matmul(self.second, df)


@dataclass(frozen=True, eq=False, repr=False)
class MatrixAttentionHessian(Hessian):
    """The Hessian of a self-attention layer, with parameters ordered (W_V, W_Q, W_K)."""

    W_v: Array
    W_q: Array
    W_k: Array
    moments: TokenMoments
    part: Literal["hessian", "ggn", "functional"] = "hessian"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix."""
        p = math.prod(self.W_v.shape) + 2 * math.prod(self.W_q.shape)
        return (p, p)

    @property
    def ggn(self) -> MatrixAttentionHessian:
        """The Gauss–Newton part."""
        return replace(self, part="ggn")

    @property
    def functional(self) -> MatrixAttentionHessian:
        """The functional part."""
        return replace(self, part="functional")

    @property
    def _reference(self) -> Array:
        return self.W_v

    def _apply(self, columns: Array) -> Array:
        xp, t = api.array_namespace(columns), self.moments
        dV, dQ, dK = self._split(columns)
        dM = _times(dQ, transpose(self.W_k)) + _act(self.W_q, xp.permute_dims(dK, (1, 0, 2)))
        z = t.scale * _act(t.x, dM)
        dh = xp.matmul(t.covariance, z)
        on_value, on_z = 0 * dV, 0 * z
        if self.part != "functional":
            df = _act(t.mean, dV) + xp.matmul(transpose(self.W_v), dh)
            bent = t.bend(df)
            on_value = on_value + _act(transpose(t.mean), bent)
            on_z = on_z + xp.matmul(t.covariance, xp.matmul(self.W_v, bent))
        if self.part != "ggn":
            swapped = xp.permute_dims(dV, (1, 0, 2))
            on_value = on_value + xp.permute_dims(_act(transpose(t.first), dh), (1, 0, 2))
            pull = xp.matmul(t.covariance, _act(t.first, swapped))
            on_z = on_z + pull + xp.matmul(t.skew, z)
        on_scores = t.scale * _act(transpose(t.x), on_z)
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

    def trace(self) -> Array:
        """Return the trace; the swap of dW_Q and dW_K with G has no diagonal."""
        xp, t = api.array_namespace(self.W_v), self.moments
        x, x_q = t.x, xp.matmul(t.x, self.W_q)
        long, turned = xp.sum(x * x, axis=-1), xp.sum(x_q * x_q, axis=-1)
        total = xp.zeros_like(long[0])
        if self.part != "functional":
            # |h|² tr φ″, and with R = C W_V/√d_K: tr(φ″ RᵀR) and tr(φ″ Rᵀ W_K W_Kᵀ R).
            outputs = t.response.shape[-1]
            eye = xp.eye(outputs, dtype=self.dtype, device=api.device(self.W_v))
            squares = xp.sum(t.mean * t.mean, axis=-1)
            total = total + xp.sum(squares * xp.sum(t.bend(eye[None, ...]) * eye, axis=(-2, -1)))
            for weights, factor in ((turned, t.response), (long, self._through_keys(t.response))):
                bent = t.bend(transpose(factor))
                total = total + xp.sum(weights * xp.sum(transpose(factor) * bent, axis=(-2, -1)))
        if self.part != "ggn":
            keys = xp.matmul(self.W_k, transpose(self.W_k))
            skew = turned * xp.sum(xp.linalg.diagonal(t.skew), axis=-1)
            skew = skew + long * xp.sum(t.skew * keys, axis=(-2, -1))
            total = total + t.scale**2 * xp.sum(skew)
        return total

    def _through_keys(self, response: Array) -> Array:
        return api.array_namespace(response).matmul(transpose(self.W_k), response)

    def squared_norm(self) -> Array:
        """Return the sum of all squared entries: of H on the twin, and of the swap outside it."""
        xp = api.array_namespace(self.W_v)
        eye = xp.eye(self._twin_size, dtype=self.dtype, device=api.device(self.W_v))
        inside = self @ self._embed(eye)
        total = xp.sum(inside * inside)
        if self.part == "ggn":
            return total
        spare = int(self.W_q.shape[1]) - self._frame.rank
        return total + 2 * spare * xp.sum(self.moments.gradient**2)

    @cached_property
    def _frame(self) -> Frame:
        """A basis of the key directions in use and of those that are not."""
        return Frame(narrow_twin(transpose(constant(self.W_k)), constant(self.W_q)).basis)

    @property
    def _twin_size(self) -> int:
        d, outputs = (int(size) for size in self.W_v.shape)
        return d * outputs + 2 * d * self._frame.rank

    def spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors."""
        if self._twin_size > LARGEST_BLOCK:
            raise ValueError(
                f"the narrow twin of this layer has {self._twin_size} parameters, more than the "
                f"{LARGEST_BLOCK} that a dense solver is given; call hs.eigenpairs(H, k) for the "
                "extreme eigenvalues."
            )
        twin = Subspaces(("twin",) * self._twin_size, lambda _: Columns(self._embed))
        return Spectrum([twin, *self._bulk()], "narrow twin", operator=self)

    def _embed(self, coordinates: Array) -> Array:
        """Embed parameters of the twin (·, k): W_V as it is, dW_Q and dW_K in the span."""
        xp = api.array_namespace(coordinates)
        d, width = int(self.W_q.shape[0]), self._frame.rank
        values, k = math.prod(self.W_v.shape), int(coordinates.shape[-1])
        rows = xp.reshape(coordinates[values:, :], (2 * d, width, k))
        return xp.concat(
            [coordinates[:values, :], xp.reshape(self._frame.span(rows), (-1, k))], axis=0
        )

    def _bulk(self) -> list[Subspaces]:
        """Return ±σ_i(G) on dW_Q = u_i cᵀ, dW_K = ±v_i cᵀ, with c outside the twin."""
        xp = api.array_namespace(self.W_v)
        d, keys = (int(s) for s in self.W_q.shape)
        spare = keys - self._frame.rank
        if not spare:
            return []
        gradient = self.moments.gradient * (0.0 if self.part == "ggn" else 1.0)
        left, sigma, right = xp.linalg.svd(gradient)

        def isometry(sign: int, i: int) -> Isometry:
            def embed(coordinates: Array, copies: Array) -> Array:
                hidden = self._frame.complement(HALF * coordinates[..., None] * copies)
                on_q = left[:, i][:, None, None] * hidden
                on_k = sign * right[i, :][:, None, None] * hidden
                n = int(hidden.shape[-1])
                none = xp.zeros((*self.W_v.shape, n), dtype=self.dtype, device=api.device(hidden))
                return self._join(none, on_q, on_k)

            return embed

        label = "bulk" if bool(xp.any(sigma > 0)) else "flat"
        return [
            Subspaces(
                (label,),
                lambda i, sign=sign: isometry(sign, i),  # type: ignore[misc]
                spare,
                [f"/{i}" for i in range(d)],
                values=sign * sigma[:, None],
            )
            for sign in (1, -1)
        ]


def _act(matrix: Array, columns: Array) -> Array:
    """Multiply (a, b) by (b, c, k) along b."""
    xp = api.array_namespace(matrix)
    flat = xp.matmul(matrix, xp.reshape(columns, (columns.shape[0], -1)))
    return xp.reshape(flat, (flat.shape[0], *columns.shape[1:]))


def _times(columns: Array, matrix: Array) -> Array:
    """Multiply (a, b, k) by (b, c) along b."""
    return api.array_namespace(matrix).matmul(transpose(matrix), columns)
