r"""Gradient descent of self-attention in three numbers.

The gradient in the query weights is γ times the key weights and the other way round, so
:math:`w_Q + w_K` is multiplied by :math:`1 - \eta\gamma` and :math:`w_Q - w_K` by
:math:`1 + \eta\gamma` at any key dimension, while :math:`w_V` moves by itself. Heavy-ball
momentum, from rest, keeps to the same lines.
"""

from __future__ import annotations

import numpy as np

from hessence._common.arrays import Array, Numbers, like, to_numpy
from hessence.dynamics.trajectory import Trajectory
from hessence.networks.attention.attention_hessian import Scalars, outlier_block
from hessence.networks.attention.self_attention import SelfAttention
from hessence.networks.attention.sequences import Sequences
from hessence.networks.scalar.products import Gram
from hessence.spectra.small_eigen import eigenvalues
from hessence.spectra.spectrum import Spectrum

CHUNK = 512
"""How many points are measured at a time."""

_OPPOSITE = np.asarray([1.0, -1.0])


class AttentionTrajectory(Trajectory):
    """A self-attention layer through training.

    Attributes
    ----------
    outliers : array (steps + 1, ..., 3)
        The three outliers, largest first.
    bulk : array (steps + 1, ...)
        γ: the bulk is at +γ and −γ.
    value, query_norm, key_norm : array (steps + 1, ...)
        w_V, ‖w_Q‖ and ‖w_K‖.
    """

    def __init__(
        self,
        net: SelfAttention,
        data: Sequences,
        lr: float,
        steps: int,
        momentum: float,
    ) -> None:
        self.lr = lr
        self._net, self._data = net, data
        self._start = Gram(*(to_numpy(getattr(net._gram, name)) for name in _NAMES))
        with np.errstate(over="ignore", invalid="ignore"):
            value, multiples = self._run(lr, steps, momentum)
            self._multiples, self._values = multiples, value
            self._measure(value, self._gram_along(multiples))

    def _run(self, lr: float, steps: int, momentum: float) -> tuple[Numbers, Numbers]:
        """Return w_V (steps + 1, ...) and the multiples of w_Q ± w_K, (steps + 1, ..., 2)."""
        value = to_numpy(self._net.w_v).astype(np.float64)
        multiples = np.ones((*value.shape, 2))
        speed_value, speed = np.zeros_like(value), np.zeros_like(multiples)
        values, points = [value], [multiples]
        for _ in range(steps):
            on_value, pull = self._forces(value, self._gram_along(multiples).inner)
            speed_value = momentum * speed_value + on_value
            speed = momentum * speed + pull[..., None] * _OPPOSITE * multiples
            value, multiples = value - lr * speed_value, multiples - lr * speed
            values.append(value)
            points.append(multiples)
        return np.stack(values), np.stack(points)

    def _gram_along(self, multiples: Numbers) -> Gram:
        alpha, beta = multiples[..., 0] ** 2, multiples[..., 1] ** 2
        first = self._start
        inner = first.inner * (alpha + beta) / 2 + first.norm * (alpha - beta) / 4
        plus, minus = alpha * first.plus, beta * first.minus
        return Gram(inner, (plus + minus) / 2, plus, minus)

    def _forces(self, value: Numbers, inner: Numbers) -> tuple[Numbers, Numbers]:
        """Return the gradient in w_V and γ."""
        w = like(value, self._net.w_q)
        h, slope, _ = self._net._responses(self._data, like(inner, self._net.w_q))
        residual = w[..., None, None] * h - self._data.y
        on_value = self._data.average(residual * h)
        return to_numpy(on_value), to_numpy(w * self._data.average(residual * slope))

    def _measure(self, value: Numbers, numbers: Gram) -> None:
        net, kept = self._net, []
        for start in range(0, len(value), CHUNK):
            own = slice(start, start + CHUNK)
            kept.append(
                self._measure_some(value[own], Gram(*(_get(numbers, n)[own] for n in _NAMES)))
            )
        loss, gamma, trace, outliers = (np.concatenate([k[i] for k in kept]) for i in range(4))
        bulk = np.abs(gamma) if net.w_q.shape[-1] > 1 else np.full_like(gamma, -np.inf)
        largest = np.maximum(outliers[..., 0], bulk)
        finite = np.isfinite(loss) & np.isfinite(largest)
        bad = ~finite.reshape(len(finite), -1).all(axis=-1)
        self.diverged = int(np.argmax(bad)) if bad.any() else None
        reference = net.w_q
        self.loss, self.trace = like(loss, reference), like(trace, reference)
        self.outliers, self.bulk = like(outliers, reference), like(gamma, reference)
        self._sharpness = like(largest, reference)
        self.value = like(value, reference)
        # ‖w_Q‖² − ‖w_K‖² = ⟨w_Q + w_K, w_Q − w_K⟩ is multiplied by αβ.
        q, k = (to_numpy(a).astype(np.float64) for a in (net.w_q, net.w_k))
        gap = np.prod(self._multiples, axis=-1) * np.sum((q + k) * (q - k), axis=-1)
        for name, sign in (("query_norm", 1), ("key_norm", -1)):
            square = np.clip((numbers.norm + sign * gap) / 2, 0, None)
            setattr(self, name, like(np.sqrt(square), reference))

    def _measure_some(self, value: Numbers, numbers: Gram) -> tuple[Numbers, ...]:
        net, data = self._net, self._data
        w, inner = like(value, net.w_q), like(numbers.inner, net.w_q)
        first, second = net._scalars(data, w, inner)
        total = first.plus(second)
        s = Scalars(*(to_numpy(a) for a in (total.alpha, total.beta, total.gamma, total.zeta)))
        residual = w[..., None, None] * net._responses(data, inner)[0] - data.y
        loss = to_numpy(data.average(residual * residual)) / 2
        matrix = outlier_block(s, numbers)
        finite = np.isfinite(matrix).all(axis=(-2, -1))
        safe = np.where(finite[..., None, None], matrix, 0.0)
        outliers = np.where(finite[..., None], eigenvalues(safe), np.nan)
        return loss, s.gamma, s.alpha + s.zeta * numbers.norm, outliers

    @property
    def sharpness(self) -> Array:
        """The largest eigenvalue at each point."""
        return self._sharpness

    def _network(self, step: int) -> SelfAttention:
        net, pair = self._net, self._multiples[step][..., None, :]
        mean, half = (pair[..., 0] + pair[..., 1]) / 2, (pair[..., 0] - pair[..., 1]) / 2
        q, k = (to_numpy(a).astype(np.float64) for a in (net.w_q, net.w_k))
        weights = {
            "w_v": self._values[step],
            "w_q": mean * q + half * k,
            "w_k": half * q + mean * k,
        }
        return net._like(**{name: like(value, net.w_q) for name, value in weights.items()})

    def _spectrum(self, net: SelfAttention) -> Spectrum:
        return net._hessian_of(self._data).spectrum()


_NAMES = ("inner", "norm", "plus", "minus")


def _get(numbers: Gram, name: str) -> Numbers:
    return np.asarray(getattr(numbers, name))


def train_attention(
    net: SelfAttention, x: Array, y: Array, lr: float, steps: int, momentum: float, mask: Array
) -> AttentionTrajectory:
    """Train a self-attention layer; the arguments are those of ``gradient_descent``, checked."""
    data = net._sequences(x, y, mask)
    return AttentionTrajectory(net, data, lr, steps, momentum)
