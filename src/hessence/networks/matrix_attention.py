r"""Self-attention of any embedding dimension, through its narrow twin.

The loss depends on the query and key weights only through :math:`M = W_Q W_K^\top` (d × d), beside
:math:`W_V`. With :math:`A` the attention, :math:`h_i, C_i, T_i` the mean, covariance and third
central moment of the tokens under its row i, and :math:`z_i = dM^\top x_i/\sqrt{d_K}`,

.. math:: dh_i = C_i z_i, \qquad d^2h_i = T_i[z_i, z_i],

so the Hessian in :math:`(W_V, M)` is a sum over tokens. The Hessian in the weights is the twin's,
with inner width r ≤ 2d, and a bulk :math:`\pm\sigma_i(\partial\ell/\partial M)`, each d_K − r
times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from hessence.arrays import Array, floating, like, require_same_shape, require_shape, to_numpy
from hessence.blocks import Block, Isometry
from hessence.frames import Frame
from hessence.losses import CrossEntropy, PointwiseLoss, as_loss
from hessence.networks.ggn_blocks import DENSE_LIMIT
from hessence.networks.products import HALF, Part
from hessence.operators import Hessian
from hessence.spectra import Spectrum
from hessence.twin import narrow_twin

Numbers = np.ndarray[Any, np.dtype[Any]]


class MatrixAttention:
    """f(X) = softmax(X W_Q W_Kᵀ Xᵀ/√d_K) X W_V, with parameters ordered (W_V, W_Q, W_K).

    The loss is the mean over all tokens of all sequences of ½ ‖f − y‖², or of the cross-entropy
    over the outputs.

    Parameters
    ----------
    W_v : array (d, d_V)
        Value weights.
    W_q, W_k : array (d, d_K)
        Query and key weights.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> rng = np.random.default_rng(0)
    >>> W_q, W_k = rng.normal(size=(2, 3, 50)) / 7
    >>> net = hs.MatrixAttention(rng.normal(size=(3, 2)), W_q, W_k)
    >>> x, y = rng.normal(size=(4, 5, 3)), rng.normal(size=(4, 5, 2))
    >>> s = net.hessian(x, y).spectrum()
    >>> len(s), s.method, [space.multiplicity for space in s["bulk"]]
    (306, 'narrow twin', [44, 44, 44, 44, 44, 44])
    """

    def __init__(self, W_v: Array, W_q: Array, W_k: Array) -> None:
        _, self.W_v, self.W_q, self.W_k = floating(W_v=W_v, W_q=W_q, W_k=W_k)
        require_shape("W_q", self.W_q, ("d", "d_K"), batch=False)
        require_same_shape(W_q=self.W_q, W_k=self.W_k)
        require_shape("W_v", self.W_v, (int(self.W_q.shape[0]), "d_V"), batch=False)

    def __call__(self, x: Array) -> Array:
        """Return the predictions (batch, n, d_V), or (n, d_V) for a single sequence."""
        tokens, single = self._tokens(x)
        f = self._mean(tokens)[1] @ self._plain[0]
        return like(f[0] if single else f, self.W_v)

    def attention(self, x: Array) -> Array:
        """Return the attention matrices (batch, n, n), or (n, n) for a single sequence."""
        tokens, single = self._tokens(x)
        weights = self._mean(tokens)[0]
        return like(weights[0] if single else weights, self.W_v)

    def loss(self, x: Array, y: Array, loss: str | PointwiseLoss = "mse") -> Array:
        """Return the mean loss over all tokens."""
        tokens, targets, pointwise = self._data(x, y, loss)
        f = self._flat(self._mean(tokens)[1]) @ self._plain[0]
        return like(pointwise.value(f, targets).sum() / len(f), self.W_v)[()]

    def gradient(self, x: Array, y: Array, loss: str | PointwiseLoss = "mse") -> Array:
        """Return the gradient of the loss, flat, in the order (W_V, W_Q, W_K)."""
        local = self._local(x, y, loss)
        _, W_q, W_k = self._plain
        parts = (local.value_slope, local.slope @ W_k, local.slope.T @ W_q)
        return like(np.concatenate([part.ravel() for part in parts]), self.W_v)

    def hessian(
        self, x: Array, y: Array, loss: str | PointwiseLoss = "mse"
    ) -> MatrixAttentionHessian:
        """Return the Hessian of the loss as an operator.

        Parameters
        ----------
        x : array (batch, n, d) or (n, d)
            Sequences of tokens.
        y : array (batch, n, d_V) or (n, d_V)
            Targets; class indices (batch, n) will do for the cross-entropy.
        loss : str or object
            ``"mse"``, ``"cross-entropy"``, or what :mod:`hessence.losses` describes.
        """
        return MatrixAttentionHessian(self.W_v, self.W_q, self.W_k, self._local(x, y, loss))

    def parameters(self) -> Array:
        """Return all parameters as one vector."""
        return like(np.concatenate([a.ravel() for a in self._plain]), self.W_v)

    def with_parameters(self, theta: Array) -> Self:
        """Return the network of this shape whose parameter vector is `theta`."""
        xp, theta = floating(("W_v", self.W_v), theta=theta)
        shapes = [tuple(w.shape) for w in (self.W_v, self.W_q, self.W_k)]
        sizes = [int(np.prod(shape)) for shape in shapes]
        require_shape("theta", theta, (sum(sizes),), batch=False)
        ends = np.cumsum([0, *sizes])
        pieces = [
            xp.reshape(theta[int(a) : int(b)], shape)
            for a, b, shape in zip(ends[:-1], ends[1:], shapes, strict=True)
        ]
        return type(self)(*pieces)

    def __repr__(self) -> str:
        d, keys = (int(s) for s in self.W_q.shape)
        return f"MatrixAttention(d={d}, d_K={keys}, d_V={int(self.W_v.shape[1])})"

    @cached_property
    def _plain(self) -> tuple[Numbers, Numbers, Numbers]:
        a, b, c = (to_numpy(w).astype(np.float64) for w in (self.W_v, self.W_q, self.W_k))
        return a, b, c

    def _tokens(self, x: Any) -> tuple[Numbers, bool]:
        _, x = floating(("W_v", self.W_v), x=x)
        single = x.ndim == 2
        shape: tuple[int | str, ...] = ("n", int(self.W_q.shape[0]))
        require_shape("x", x, shape if single else ("batch", *shape), batch=False)
        plain = to_numpy(x).astype(np.float64)
        return (plain[None] if single else plain), single

    def _data(self, x: Any, y: Any, loss: Any) -> tuple[Numbers, Numbers, PointwiseLoss]:
        tokens, _ = self._tokens(x)
        pointwise = as_loss(loss, coupled=True)
        outputs = int(self.W_v.shape[1])
        if y is None:
            raise ValueError("y is missing: give the targets.")
        shape = np.shape(x) if not hasattr(x, "shape") else tuple(x.shape)
        raw = np.asarray(to_numpy(y) if hasattr(y, "shape") else y)
        if isinstance(pointwise, CrossEntropy) and raw.dtype.kind in "iu":
            require_shape("y", raw, shape[:-1], batch=False)
            if raw.size and (raw.min() < 0 or raw.max() >= outputs):
                raise ValueError(f"y must hold class indices from 0 to {outputs - 1}.")
            targets = np.eye(outputs)[raw]
        else:
            targets = to_numpy(floating(("W_v", self.W_v), y=y)[1]).astype(np.float64)
            require_shape("y", targets, (*shape[:-1], outputs), batch=False)
        return tokens, targets.reshape(-1, outputs), pointwise

    def _mean(self, tokens: Numbers) -> tuple[Numbers, Numbers]:
        """Return the attention (B, n, n) and the mean tokens h (B, n, d)."""
        _, W_q, W_k = self._plain
        scores = tokens @ (W_q @ W_k.T) @ tokens.swapaxes(1, 2) / W_q.shape[1] ** 0.5
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights, weights @ tokens

    @staticmethod
    def _flat(tokens: Numbers) -> Numbers:
        return tokens.reshape(-1, tokens.shape[-1])

    def _local(self, x: Any, y: Any, loss: Any) -> LocalHessian:
        """Return first and second derivatives of the loss in (W_V, M)."""
        tokens, targets, pointwise = self._data(x, y, loss)
        W_v, W_q, _ = self._plain
        weights, mean = self._mean(tokens)
        scale = W_q.shape[1] ** -0.5
        gap = tokens[:, None, :, :] - mean[:, :, None, :]
        covariance = np.einsum("bij,bijc,bije->bice", weights, gap, gap, optimize=True)
        count = tokens.shape[0] * tokens.shape[1]
        h, x_flat = self._flat(mean), self._flat(tokens)
        spread = covariance.reshape(count, *covariance.shape[2:])
        f = h @ W_v
        first = pointwise.first(f, targets) / count
        second = pointwise.second(f, targets) / count
        if second.ndim == 2:
            second = second[:, :, None] * np.eye(second.shape[1])
        pull = (first @ W_v.T).reshape(mean.shape)
        # The third moment is only needed along the pull of the residual.
        along = np.einsum("bijc,bic->bij", gap, pull, optimize=True)
        skew = np.einsum("bij,bij,bijc,bije->bice", weights, along, gap, gap, optimize=True)
        return LocalHessian.assemble(
            x_flat, h, spread, skew.reshape(spread.shape), W_v, first, second, scale
        )


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
        if size > DENSE_LIMIT:
            raise ValueError(
                f"the narrow twin of this layer has {size} parameters, more than the "
                f"{DENSE_LIMIT} that a dense solver is given; call hs.eigenpairs(H, k) for the "
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

        twin = Block(like(self._twin_matrix, self.W_v), ("twin",) * size, lambda _: carry)
        return Spectrum([twin, *self._bulk_blocks()], "narrow twin")

    def _bulk_blocks(self) -> list[Block]:
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
            Block(
                like(sign * sigma[:, None, None], self.W_v), (label,), isometry(sign), spare, names
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
