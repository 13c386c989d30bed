"""Self-attention of embedding dimension 1, with any key dimension."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import array_api_compat as api

from hessence._common.arguments import as_positive
from hessence._common.arrays import Array, floating, picked, require_same_shape, require_shape
from hessence.data.losses import PointwiseLoss
from hessence.networks.attention._descent import AttentionDescent
from hessence.networks.attention._rounding import scalar_errors
from hessence.networks.attention.activations import Softmax, as_activation
from hessence.networks.attention.attention_hessian import AttentionBounds, AttentionHessian, Scalars
from hessence.networks.attention.attention_network import AttentionNetwork, Sequences
from hessence.networks.attention.edge import Edge, find_edge
from hessence.networks.scalar.gram import Gram, gram

CACHE = 2**15
"""How many attention weights one group of networks may have."""


@dataclass(frozen=True)
class AttentionStatistics:
    """What a batch of sequences leaves in the Hessian.

    Attributes
    ----------
    alpha, beta, gamma, zeta : array
        The four scalars of the Hessian, averaged over the sequences.
    m1, m2, m3 : array (..., sequences, n), or None
        Mean, variance and third central moment of the tokens under each row of the attention; None
        for another activation than softmax.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> net = hs.SelfAttention(1.0, w_q=[1.0, 0.5], w_k=[0.5, 1.0])
    >>> x = np.asarray([[1.0, -1.0, 0.5]])
    >>> statistics, s = net.statistics(x, x[:, ::-1]), net.hessian(x, x[:, ::-1]).spectrum()
    >>> bool(np.isclose(s["bulk"][0].value, abs(statistics.gamma)))
    True
    """

    alpha: Array
    beta: Array
    gamma: Array
    zeta: Array
    m1: Array | None
    m2: Array | None
    m3: Array | None


class SelfAttention(AttentionNetwork):
    r"""f(x) = w_V A(x) x with A = softmax(x ⟨w_Q, w_K⟩ xᵀ/√d_K) row by row.

    The loss is 1/(2n) ‖f − y‖² for a sequence of n tokens, averaged over a batch of sequences, or
    any other pointwise loss. With the attention's moments m₁, m₂, m₃ at each token, the residual
    δ = f − y, and all sums over tokens divided by n, :math:`\alpha = \|m_1\|^2`,
    :math:`\beta = (w_V m_1 + \delta)^\top(x\odot m_2)/\sqrt{d_K}`,
    :math:`\gamma = w_V\delta^\top(x\odot m_2)/\sqrt{d_K}` and
    :math:`\zeta = (w_V^2\|x\odot m_2\|^2 + w_V\delta^\top(x\odot x\odot m_3))/d_K` give all 2 d_K
    + 1 eigenvalues: three outliers and the bulk ±γ (*Cracking the Hessian*, Theorem 3.5).

    Parameters
    ----------
    w_v : array (...) or (..., 1)
        The value weight, a number for each network.
    w_q, w_k : array (..., d_K)
        Query and key weights. Leading dimensions are a batch of networks.
    score_bias : array (n, n), optional
        Added to the scores before the activation; it ties the network to sequences of length n.
    activation : str or object
        ``"softmax"``, ``"identity"``, ``"sigmoid"``, ``"tanh"``, or an object as
        :mod:`hessence.networks.attention.activations` describes.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> rng = np.random.default_rng(0)
    >>> net = hs.SelfAttention(1.0, *rng.normal(size=(2, 100)) / 10)
    >>> x = rng.normal(size=(8, 5))
    >>> s = net.hessian(x, x[:, ::-1]).spectrum()
    >>> len(s), [space.multiplicity for space in s["bulk"]]
    (201, [99, 99])
    """

    def __init__(
        self,
        w_v: Array,
        w_q: Array,
        w_k: Array,
        score_bias: Array = None,
        activation: Any = "softmax",
        *,
        sink: Array = None,
    ) -> None:
        more = {"score_bias": score_bias, "sink": sink}
        given = {"w_v": w_v, "w_q": w_q, "w_k": w_k}
        given |= {name: array for name, array in more.items() if array is not None}
        xp, *arrays = floating(**given)
        checked = dict(zip(given, arrays, strict=True))
        self.w_v, self.w_q, self.w_k = arrays[:3]
        require_shape("w_q", self.w_q, ("d_K",), batch=True)
        require_same_shape(w_q=self.w_q, w_k=self.w_k)
        batch = tuple(self.w_q.shape[:-1])
        if tuple(self.w_v.shape) == (*batch, 1):
            self.w_v = self.w_v[..., 0]
        if tuple(self.w_v.shape) not in (batch, ()):
            raise ValueError(
                f"w_v must have shape {batch}, one number for each network, "
                f"got {tuple(self.w_v.shape)}."
            )
        self.w_v = xp.broadcast_to(self.w_v, batch)
        self.score_bias = checked.get("score_bias")
        shape = () if self.score_bias is None else tuple(self.score_bias.shape)
        if shape != shape[-1:] * 2:
            raise ValueError(f"score_bias must be square, (n, n), got shape {shape}.")
        self.sink = checked.get("sink")
        if self.sink is not None and tuple(self.sink.shape) not in (batch, ()):
            raise ValueError(
                f"sink must be a number or have shape {batch}, got {tuple(self.sink.shape)}."
            )
        self.activation = activation
        self._rows = as_activation(activation)

    rank: ClassVar[int] = 1

    @property
    def _weights(self) -> dict[str, Array]:
        return {"w_v": self.w_v, "w_q": self.w_q, "w_k": self.w_k}

    def _rebuild(self, weights: dict[str, Array]) -> Self:
        return self._like(**weights)

    def _like(self, **changes: Any) -> Self:
        fields = {"score_bias": self.score_bias, "activation": self.activation, "sink": self.sink}
        return type(self)(**(self._weights | fields | changes))

    def with_sink(self, strength: Array) -> Self:
        """Return the network whose scores for the first token are raised by `strength`.

        A number, or one for each network of a batch. It comes on top of any ``score_bias``.
        """
        return self._like(sink=strength)

    def __getitem__(self, index: Any) -> Self:
        """Return the networks at an index into the batch dimensions."""
        if self.sink is None or not self.sink.ndim:
            return super().__getitem__(index)
        chosen = self._weights | {"sink": self.sink}
        return self._like(**{name: picked(array, index) for name, array in chosen.items()})

    def gradient(
        self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse", *, mask: Array = None
    ) -> Array:
        """Return the gradient of the loss, flat, in the order (w_V, w_Q, w_K)."""
        xp = api.array_namespace(self.w_q)
        batch, pointwise = self._with_targets(x, y, loss, mask)
        on_value, on_scores = (a[..., None] for a in self._gradient_at(batch, pointwise))
        return xp.concat([on_value, on_scores * self.w_k, on_scores * self.w_q], axis=-1)

    def descent(
        self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse", *, mask: Array = None
    ) -> AttentionDescent:
        """Return how gradient descent moves the layer: w_V, and along w_Q + w_K and w_Q − w_K."""
        return AttentionDescent(self, *self._with_targets(x, y, loss, mask))

    def statistics(self, x: Array, y: Array, *, mask: Array = None) -> AttentionStatistics:
        """Return the scalars α, β, γ, ζ of the Hessian and the attention's moments."""
        batch, pointwise = self._with_targets(x, y, "mse", mask)
        first, second = self._scalars(batch, pointwise)
        moments: tuple[Any, ...] = (None, None, None)
        if isinstance(self._rows, Softmax):
            scores, _ = self._scores(batch, self._gram.inner, self.sink)
            moments = self._rows.moments(scores, batch.x[:, None, :], batch.keys)
        return AttentionStatistics(*first.plus(second), *moments)

    def bounds(self, x: Array, y: Array, *, mask: Array = None) -> AttentionBounds:
        """Return the paper's bounds on outliers, sharpness and condition number."""
        return self._hessian_of(*self._with_targets(x, y, "mse", mask)).bounds()

    def edge(self, x: Array, y: Array, lr: float, *, mask: Array = None) -> Edge:
        """Return the flattest minimum, and whether gradient descent with rate `lr` can rest there.

        It depends on the data, on d_K and on the activation, not on the weights.

        Examples
        --------
        >>> import hessence as hs
        >>> net = hs.SelfAttention(0.1, [0.1, 0.1], [0.1, -0.1])
        >>> [net.edge([a, -a], [-a, a], lr=2.3).lasts for a in (0.98, 0.985)]
        [False, True]
        """
        if self.batch_shape:
            raise ValueError("edge is for one network; pick one of the batch, as in net[0].")
        rate = as_positive("lr", lr)
        return find_edge(self, self._with_targets(x, y, "mse", mask)[0], rate)

    def __repr__(self) -> str:
        sink = [] if self.sink is None else ["with a sink"]
        return self._described({"d_K": int(self.w_q.shape[-1])}, *sink)

    @property
    def _sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (), ()

    def _sequences(self, x: Any, y: Any = None, mask: Any = None) -> Sequences:
        batch = super()._sequences(x, y, mask)
        n = int(batch.x.shape[-1])
        if self.score_bias is not None and int(self.score_bias.shape[0]) != n:
            raise ValueError(
                f"x must have the {int(self.score_bias.shape[0])} tokens that score_bias is for, "
                f"got {n}."
            )
        return batch

    def _attention(self, batch: Sequences) -> Array:
        scores, direction = self._scores(batch, self._gram.inner, self.sink)
        return self._rows.along(scores, direction, batch.keys)[0]

    def _predict(self, batch: Sequences) -> Array:
        return self.w_v[..., None, None] * self._responses(batch)[0]

    def _hessian_of(self, batch: Sequences, loss: PointwiseLoss) -> AttentionHessian:
        return AttentionHessian(
            self.w_q, self.w_k, *self._scalars(batch, loss), self._gram,
            errors=partial(scalar_errors, self, batch, loss),
        )  # fmt: skip

    # How the predictions depend on t = ⟨w_Q, w_K⟩.

    @cached_property
    def _gram(self) -> Gram:
        return gram(self.w_k, self.w_q)

    def _scores(self, batch: Sequences, inner: Array, sink: Array) -> tuple[Array, Array]:
        """Return the scores and their derivative in t, (..., sequences, n, n)."""
        scale = int(self.w_q.shape[-1]) ** -0.5
        direction = scale * batch.x[:, :, None] * batch.x[:, None, :]
        scores = inner[..., None, None, None] * direction
        if self.score_bias is not None:
            scores = scores + self.score_bias
        if sink is not None:
            scores = scores + sink[..., None, None, None] * batch.first
        return scores, direction

    def _responses(
        self, batch: Sequences, inner: Array = None, sink: Array = None
    ) -> tuple[Array, Array, Array]:
        """Return h = A x and its first two derivatives in t, (..., sequences, n)."""
        xp = api.array_namespace(self.w_q)
        inner = self._gram.inner if inner is None else inner
        sink = self.sink if sink is None else sink
        # Networks are taken in groups whose attention matrices fit in the cache.
        count = int(inner.shape[0]) if inner.ndim else 1
        rest = max(1, math.prod(inner.shape[1:])) * math.prod(batch.x.shape) * batch.x.shape[1]
        stride = max(1, CACHE // rest)
        if count > stride:
            own = [slice(i, min(i + stride, count)) for i in range(0, count, stride)]
            sinks = [sink if sink is None or not sink.ndim else sink[i, ...] for i in own]
            some = [
                self._responses(batch, inner[i, ...], s) for i, s in zip(own, sinks, strict=True)
            ]
            h, first, second = (xp.concat(part, axis=0) for part in zip(*some, strict=True))
            return h, first, second
        scores, direction = self._scores(batch, inner, sink)
        tokens = batch.x[:, None, :]
        if isinstance(self._rows, Softmax):
            h, variance, third = self._rows.moments(scores, tokens, batch.keys)
            scaled = int(self.w_q.shape[-1]) ** -0.5 * batch.x
            return h, scaled * variance, scaled * scaled * third
        parts = self._rows.along(scores, direction, batch.keys)
        h, first, second = (xp.sum(a * tokens, axis=-1) for a in parts)
        return h, first, second

    # The loss and its derivatives in (w_V, t), here or at other values of the two.

    def _loss_at(self, batch: Sequences, loss: PointwiseLoss, w: Array, inner: Array) -> Array:
        return batch.average(
            loss.value(w[..., None, None] * self._responses(batch, inner)[0], batch.y)
        )

    def _gradient_at(
        self, batch: Sequences, loss: PointwiseLoss, w: Array = None, inner: Array = None
    ) -> tuple[Array, Array]:
        """Return the gradient in w_V and in t, the second of which is γ."""
        h, first, _ = self._responses(batch, inner)
        w = self.w_v if w is None else w
        residual = loss.first(w[..., None, None] * h, batch.y)
        return batch.average(residual * h), w * batch.average(residual * first)

    def _scalars(
        self, batch: Sequences, loss: PointwiseLoss, w: Array = None, inner: Array = None
    ) -> tuple[Scalars, Scalars]:
        """Return the scalars of the Gauss–Newton and of the functional part."""
        h, first, second = self._responses(batch, inner)
        w = self.w_v if w is None else w
        f = w[..., None, None] * h
        residual, loss_hessian = loss.first(f, batch.y), loss.second(f, batch.y)
        zero, on_inner = 0 * w, batch.average(residual * first)
        return (
            Scalars(
                batch.average(loss_hessian * h * h),
                w * batch.average(loss_hessian * h * first),
                zero,
                w * w * batch.average(loss_hessian * first * first),
            ),
            Scalars(zero, on_inner, w * on_inner, w * batch.average(residual * second)),
        )
