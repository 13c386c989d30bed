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

import math
from functools import cached_property
from typing import Any, Self

import numpy as np

from hessence._common.arrays import (
    Array,
    Numbers,
    floating,
    like,
    require_same_shape,
    require_shape,
    to_numpy,
)
from hessence.data.losses import CrossEntropy, PointwiseLoss, as_loss
from hessence.networks.attention.matrix_attention_hessian import (
    LocalHessian,
    MatrixAttentionHessian,
)


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
    sink : float
        Added to all scores of the first token, see :meth:`with_sink`.

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

    def __init__(self, W_v: Array, W_q: Array, W_k: Array, *, sink: float = 0.0) -> None:
        _, self.W_v, self.W_q, self.W_k = floating(W_v=W_v, W_q=W_q, W_k=W_k)
        require_shape("W_q", self.W_q, ("d", "d_K"), batch=False)
        require_same_shape(W_q=self.W_q, W_k=self.W_k)
        require_shape("W_v", self.W_v, (int(self.W_q.shape[0]), "d_V"), batch=False)
        self.sink = float(sink)
        if not math.isfinite(self.sink):
            raise ValueError(f"sink must be finite, got {sink}.")

    def with_sink(self, strength: float) -> Self:
        """Return the network whose scores for the first token are raised by `strength`."""
        return type(self)(self.W_v, self.W_q, self.W_k, sink=strength)

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
            ``"mse"``, ``"cross-entropy"``, or what :mod:`hessence.data.losses` describes.
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
        return type(self)(*pieces, sink=self.sink)

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
        scores[..., 0] += self.sink
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
