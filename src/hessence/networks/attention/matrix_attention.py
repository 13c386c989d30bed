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
from functools import partial
from typing import ClassVar, Self

import array_api_compat as api

from hessence._common.arrays import Array, floating, require_same_shape, require_shape, transpose
from hessence.data.losses import PointwiseLoss
from hessence.networks.attention._matrix_attention_hessian import (
    MatrixAttentionHessian,
    TokenMoments,
)
from hessence.networks.attention._rounding import layer_sizes
from hessence.networks.attention.activations import Softmax, tokens_from_top
from hessence.networks.attention.attention_network import AttentionNetwork, Sequences


class MatrixAttention(AttentionNetwork):
    """f(X) = softmax(X W_Q W_Kᵀ Xᵀ/√d_K) X W_V, with parameters ordered (W_V, W_Q, W_K).

    The loss is the mean over the tokens of a sequence of ½ ‖f − y‖², or of the cross-entropy over
    the outputs, averaged over a batch of sequences.

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

    rank: ClassVar[int] = 2

    def __init__(self, W_v: Array, W_q: Array, W_k: Array, *, sink: float = 0.0) -> None:
        _, self.W_v, self.W_q, self.W_k = floating(W_v=W_v, W_q=W_q, W_k=W_k)
        require_shape("W_q", self.W_q, ("d", "d_K"), batch=False)
        require_same_shape(W_q=self.W_q, W_k=self.W_k)
        require_shape("W_v", self.W_v, (int(self.W_q.shape[0]), "d_V"), batch=False)
        self.sink = float(sink)
        if not math.isfinite(self.sink):
            raise ValueError(f"sink must be finite, got {sink}.")

    @property
    def _weights(self) -> dict[str, Array]:
        return {"W_v": self.W_v, "W_q": self.W_q, "W_k": self.W_k}

    def _rebuild(self, weights: dict[str, Array]) -> Self:
        return type(self)(**weights, sink=self.sink)

    def with_sink(self, strength: float) -> Self:
        """Return the network whose scores for the first token are raised by `strength`."""
        return type(self)(**self._weights, sink=strength)

    def gradient(
        self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse", *, mask: Array = None
    ) -> Array:
        """Return the gradient of the loss, flat, in the order (W_V, W_Q, W_K)."""
        moments = self._moments(*self._with_targets(x, y, loss, mask))
        xp, on_scores = api.array_namespace(self.W_v), moments.gradient
        parts = (
            moments.value_gradient,
            xp.matmul(on_scores, self.W_k),
            xp.matmul(transpose(on_scores), self.W_q),
        )
        return xp.concat([xp.reshape(part, (-1,)) for part in parts])

    def __repr__(self) -> str:
        (d, keys), outputs = map(int, self.W_q.shape), int(self.W_v.shape[1])
        sink = ["with a sink"] if self.sink else []
        return self._described({"d": d, "d_K": keys, "d_V": outputs}, *sink)

    @property
    def _sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        d, outputs = map(int, self.W_v.shape)
        return (d,), (outputs,)

    @property
    def _scale(self) -> float:
        return float(int(self.W_q.shape[1]) ** -0.5)

    def _attention(self, batch: Sequences) -> Array:
        return self._weights_and_top(batch)[0]

    def _weights_and_top(self, batch: Sequences) -> tuple[Array, Array]:
        """Return the attention (B, n, n), and where it is largest in each row, (B, n, 1)."""
        xp = api.array_namespace(batch.x)
        queries, keys = xp.matmul(batch.x, self.W_q), xp.matmul(batch.x, self.W_k)
        scores = self._scale * xp.matmul(queries, transpose(keys)) + self.sink * batch.first
        return Softmax().weights(scores, batch.keys)

    def _predict(self, batch: Sequences) -> Array:
        xp = api.array_namespace(batch.x)
        return xp.matmul(xp.matmul(self._attention(batch), batch.x), self.W_v)

    def _hessian_of(self, batch: Sequences, loss: PointwiseLoss) -> MatrixAttentionHessian:
        moments, sizes = self._moments(batch, loss), partial(layer_sizes, self, batch, loss)
        return MatrixAttentionHessian(self.W_v, self.W_q, self.W_k, moments, sizes=sizes)

    def _moments(self, batch: Sequences, loss: PointwiseLoss) -> TokenMoments:
        """Return what the Hessian needs of each of the T tokens."""
        xp = api.array_namespace(batch.x)
        attention, top = self._weights_and_top(batch)
        f = xp.matmul(xp.matmul(attention, batch.x), self.W_v)
        counts = batch.weights[..., None]
        first = counts * loss.first(f, batch.y)
        second = loss.second(f, batch.y)
        second = (counts if second.ndim == 3 else counts[..., None]) * second
        # Tokens from the one with most attention, then from their mean.
        gap = tokens_from_top(batch.x, top)
        gap = gap - xp.sum(attention[..., None] * gap, axis=-2, keepdims=True)
        return TokenMoments.of(batch.x, attention, gap, first, second, self.W_v, self._scale)
