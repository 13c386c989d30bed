"""The Hessian of a self-attention layer of any embedding dimension, and its narrow twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hessence._common.arrays import Array, Numbers, like, to_numpy
from hessence.networks.linear.ggn_blocks import LARGEST_BLOCK
from hessence.networks.scalar.products import HALF, Part
from hessence.networks.twin import narrow_twin
from hessence.spectra.frames import Frame
from hessence.spectra.operators import Hessian
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Isometry, Subspaces


@dataclass(frozen=True)
class LocalHessian:
    """First and second derivatives of a loss in (W_V, M), as dense matrices.

    Attributes
    ----------
    value_slope : array (d, d_V)
        ∂ℓ/∂W_V.
    slope : array (d, d)
        G = ∂ℓ/∂M.
    ggn, functional : array (d d_V + d², d d_V + d²)
        The two parts of the Hessian in (W_V, M).
    """

    value_slope: Numbers
    slope: Numbers
    ggn: Numbers
    functional: Numbers

    @classmethod
    def assemble(
        cls,
        x: Numbers,
        h: Numbers,
        spread: Numbers,
        skew: Numbers,
        W_v: Numbers,
        first: Numbers,
        second: Numbers,
        scale: float,
    ) -> LocalHessian:
        """Sum over tokens; `skew` is the third moment contracted with the pull W_V φ′."""
        d, outputs = W_v.shape
        tokens = len(x)
        carried = scale * spread @ W_v
        on_value = np.einsum("tc,kl->tkcl", h, np.eye(outputs)).reshape(tokens, outputs, -1)
        on_scores = np.einsum("ta,tbk->tkab", x, carried).reshape(tokens, outputs, d * d)
        jacobian = np.concatenate([on_value, on_scores], axis=-1)
        weighted = second @ jacobian
        size = jacobian.shape[-1]
        ggn = jacobian.reshape(-1, size).T @ weighted.reshape(-1, size)
        functional = np.zeros((size, size))
        split = d * outputs
        mixed = scale * np.einsum("tk,ta,tbc->abck", first, x, spread, optimize=True)
        functional[split:, :split] = mixed.reshape(d * d, split)
        functional[:split, split:] = functional[split:, :split].T
        bent = scale**2 * np.einsum("ta,te,tbf->abef", x, x, skew, optimize=True)
        functional[split:, split:] = bent.reshape(d * d, d * d)
        slope = np.einsum("ta,tbk,tk->ab", x, carried, first, optimize=True)
        return cls(h.T @ first, slope, (ggn + ggn.T) / 2, (functional + functional.T) / 2)


@dataclass(frozen=True, eq=False, repr=False)
class MatrixAttentionHessian(Hessian):
    """The Hessian of a self-attention layer, with parameters ordered (W_V, W_Q, W_K)."""

    W_v: Array
    W_q: Array
    W_k: Array
    local: LocalHessian
    part: Part = "hessian"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix."""
        p = int(np.prod(self.W_v.shape)) + 2 * int(np.prod(self.W_q.shape))
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

    @cached_property
    def _core(self) -> Numbers:
        match self.part:
            case "ggn":
                return self.local.ggn
            case "functional":
                return self.local.functional
        return self.local.ggn + self.local.functional

    @cached_property
    def _slope(self) -> Numbers:
        return self.local.slope if self.part != "ggn" else 0 * self.local.slope

    @cached_property
    def _weights(self) -> tuple[Numbers, Numbers]:
        q, k = (to_numpy(w).astype(np.float64) for w in (self.W_q, self.W_k))
        return q, k

    def _apply(self, columns: Array) -> Array:
        W_q, W_k = self._weights
        result = _multiply(self._core, self._slope, W_q, W_k, to_numpy(columns))
        return like(result, columns)

    def trace(self) -> Array:
        """Return tr(J Jᵀ H), H in (W_V, M); the swap of dW_Q and dW_K has no diagonal."""
        W_q, W_k = self._weights
        d = len(W_q)
        values = len(self._core) - d * d
        bent = self._core[values:, values:].reshape(d, d, d, d)
        scores = np.einsum("abae,be->", bent, W_k @ W_k.T) + np.einsum(
            "abeb,ae->", bent, W_q @ W_q.T
        )
        return like(np.trace(self._core[:values, :values]) + scores, self.W_v)[()]

    def squared_norm(self) -> Array:
        """Return the sum of all squared entries: those in the hidden span, and the swap outside."""
        twin = self._twin
        inside = self._twin_matrix
        spare = int(self.W_q.shape[1]) - twin.shape[1]
        outside = 2 * spare * float((self._slope**2).sum())
        return like((inside**2).sum() + outside, self.W_v)[()]

    def _reduced(self, W_q: Numbers, W_k: Numbers) -> tuple[Numbers, Numbers]:
        """Return Jᵀ H J and the swap with G, for weights of any inner width."""
        d, width = W_q.shape
        values = len(self._core) - d * d
        eye = np.eye(d)
        # dM = dW_Q W_Kᵀ + W_Q dW_Kᵀ, columns in the order (dW_Q, dW_K), each row by row.
        by_q = np.einsum("ae,bm->abem", eye, W_k).reshape(d * d, d * width)
        by_k = np.einsum("am,be->abem", W_q, eye).reshape(d * d, d * width)
        jacobian = np.zeros((len(self._core), values + 2 * d * width))
        jacobian[:values, :values] = np.eye(values)
        jacobian[values:, values:] = np.concatenate([by_q, by_k], axis=1)
        matrix = jacobian.T @ self._core @ jacobian
        swap = np.zeros_like(matrix)
        couple = np.einsum("ab,mn->ambn", self._slope, np.eye(width)).reshape(d * width, -1)
        middle = values + d * width
        swap[values:middle, middle:] = couple
        swap[middle:, values:middle] = couple.T
        return matrix, swap

    @cached_property
    def _twin(self) -> Numbers:
        """An orthonormal basis (d_K, r) of the key directions in use."""
        W_q, W_k = self._weights
        return np.asarray(narrow_twin(W_k.T, W_q).basis)

    @cached_property
    def _twin_matrix(self) -> Numbers:
        W_q, W_k = self._weights
        matrix, swap = self._reduced(W_q @ self._twin, W_k @ self._twin)
        return np.asarray(matrix + swap)

    def spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors."""
        d, keys = (int(s) for s in self.W_q.shape)
        basis = self._twin
        size = int(np.prod(self.W_v.shape)) + 2 * d * basis.shape[1]
        if size > LARGEST_BLOCK:
            raise ValueError(
                f"the narrow twin of this layer has {size} parameters, more than the "
                f"{LARGEST_BLOCK} that a dense solver is given; call hs.eigenpairs(H, k) for the "
                "extreme eigenvalues."
            )
        values = int(np.prod(self.W_v.shape))

        def carry(coordinates: Array, copies: Array) -> Array:
            c = to_numpy(coordinates)[:, None] * to_numpy(copies)
            middle = values + d * basis.shape[1]
            on_q, on_k = (
                np.einsum("emn,km->ekn", part.reshape(d, basis.shape[1], -1), basis)
                for part in (c[values:middle], c[middle:])
            )
            n = c.shape[1]
            parts = [c[:values], on_q.reshape(d * keys, n), on_k.reshape(d * keys, n)]
            return like(np.concatenate(parts), coordinates)

        twin = Subspaces(
            ("twin",) * size, lambda _: carry, matrix=like(self._twin_matrix, self.W_v)
        )
        return Spectrum([twin, *self._bulk_blocks()], "narrow twin")

    def _bulk_blocks(self) -> list[Subspaces]:
        d, keys = (int(s) for s in self.W_q.shape)
        values, spare = int(np.prod(self.W_v.shape)), keys - self._twin.shape[1]
        if not spare:
            return []
        left, sigma, right = np.linalg.svd(self._slope)

        def isometry(sign: int) -> Callable[[int], Isometry]:
            def of(i: int) -> Isometry:
                def carry(coordinates: Array, copies: Array) -> Array:
                    scaled = HALF * to_numpy(coordinates)[:, None] * to_numpy(copies)
                    hidden = Frame(self._twin).complement(scaled)
                    n = hidden.shape[1]
                    on_q = np.einsum("e,kn->ekn", left[:, i], hidden).reshape(d * keys, n)
                    on_k = np.einsum("e,kn->ekn", right[i], hidden).reshape(d * keys, n)
                    parts = [np.zeros((values, n)), on_q, sign * on_k]
                    return like(np.concatenate(parts), coordinates)

                return carry

            return of

        label = "bulk" if sigma.any() else "flat"
        names = [f"/{i}" for i in range(d)]
        return [
            Subspaces(
                (label,),
                isometry(sign),
                spare,
                names,
                matrix=like(sign * sigma[:, None, None], self.W_v),
            )
            for sign in (1, -1)
        ]


def _multiply(
    core: Numbers, slope: Numbers, W_q: Numbers, W_k: Numbers, columns: Numbers
) -> Numbers:
    """Multiply columns (p, n) by the Hessian in O(p) for each, beside products in (W_V, M)."""
    d, keys = W_q.shape
    values, n = len(core) - d * d, columns.shape[1]
    middle = values + d * keys
    dQ = columns[values:middle].reshape(d, keys, n)
    dK = columns[middle:].reshape(d, keys, n)
    dM = np.einsum("amn,bm->abn", dQ, W_k) + np.einsum("am,bmn->abn", W_q, dK)
    out = core @ np.concatenate([columns[:values], dM.reshape(d * d, n)])
    bent = out[values:].reshape(d, d, n)
    on_q = np.einsum("abn,bm->amn", bent, W_k) + np.einsum("ab,bmn->amn", slope, dK)
    on_k = np.einsum("abn,am->bmn", bent, W_q) + np.einsum("ab,amn->bmn", slope, dQ)
    return np.concatenate([out[:values], on_q.reshape(-1, n), on_k.reshape(-1, n)])
