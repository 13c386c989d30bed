r"""Gradient descent of self-attention in three numbers.

The gradient in the query weights is γ times the key weights and the other way round, so
:math:`w_Q + w_K` is multiplied by :math:`1 - \eta\gamma` and :math:`w_Q - w_K` by
:math:`1 + \eta\gamma` at any key dimension, while :math:`w_V` moves by itself. Heavy-ball
momentum, from rest, keeps to the same lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hessence._common.arrays import Array, Numbers, like, to_numpy
from hessence.data.losses import PointwiseLoss
from hessence.networks.attention.attention_hessian import Scalars, outlier_block
from hessence.networks.attention.attention_network import Sequences
from hessence.networks.descent import Descent, Moving
from hessence.networks.scalar.descent import OPPOSITE, gram_along
from hessence.networks.scalar.gram import Gram
from hessence.spectra.small_eigen import eigenvalues

CHUNK = 512
"""How many points are measured at a time."""


class AttentionDescent(Descent):
    """Gradient descent of self-attention, on w_V and the multiples of w_Q ± w_K."""

    method = "lines"

    def __init__(self, net: Any, data: Sequences, loss: PointwiseLoss) -> None:
        super().__init__(net, x=data, loss=loss)
        self._data, self._loss = data, loss
        self._first = Gram(*(np.asarray(to_numpy(n), np.float64) for n in net._gram))
        value = to_numpy(net.w_v).astype(np.float64)
        self.start = Moving((value, np.ones((*value.shape, 2))))
        self.state_bytes = 6 * value.nbytes

    def gradient(self, coordinates: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the gradient in w_V, and ±γ times the multiples of w_Q ± w_K."""
        value, multiples = coordinates
        w = like(value, self.reference)
        inner = like(gram_along(self._first, multiples).inner, self.reference)
        on_value, on_scores = self._net._gradient_at(self._data, self._loss, w, inner)
        gamma = to_numpy(on_scores).astype(np.float64)
        return to_numpy(on_value).astype(np.float64), gamma[..., None] * OPPOSITE * multiples

    def network(self, state: Moving) -> Any:
        """Return the network at a state."""
        value, multiples = state.coordinates
        alpha, beta = multiples[..., :1], multiples[..., 1:]
        mean, half = (alpha + beta) / 2, (alpha - beta) / 2
        q, k = self._start_weights
        weights = {"w_v": value, "w_q": mean * q + half * k, "w_k": half * q + mean * k}
        return self._net._rebuild(
            {name: like(weight, self.reference) for name, weight in weights.items()}
        )

    def measure(self, states: Iterable[Moving]) -> dict[str, Any]:
        """Return loss, trace, sharpness, outliers, bulk, w_V and the other weights' norms."""
        points = list(states)
        chunks = [points[start : start + CHUNK] for start in range(0, len(points), CHUNK)]
        parts = [self._measure(chunk) for chunk in chunks]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _measure(self, states: list[Moving]) -> dict[str, Numbers]:
        value, multiples = (np.stack([s.coordinates[i] for s in states]) for i in range(2))
        numbers = gram_along(self._first, multiples)
        w, inner = like(value, self.reference), like(numbers.inner, self.reference)
        first, second = self._net._scalars(self._data, self._loss, w, inner)
        s = Scalars(*map(to_numpy, first.plus(second)))
        matrix = outlier_block(s, numbers)
        finite = np.isfinite(matrix).all(axis=(-2, -1))
        safe = np.where(finite[..., None, None], matrix, 0.0)
        outliers = np.where(finite[..., None], eigenvalues(safe), np.nan)
        single = self.reference.shape[-1] == 1  # then there is no bulk
        floor = -np.inf if single else np.abs(s.gamma)
        # ‖w_Q‖² − ‖w_K‖² = ⟨w_Q + w_K, w_Q − w_K⟩ is multiplied by αβ.
        q, k = self._start_weights
        gap = np.prod(multiples, axis=-1) * np.sum((q + k) * (q - k), axis=-1)
        return {
            "loss": to_numpy(self._net._loss_at(self._data, self._loss, w, inner)),
            "trace": s.alpha + s.zeta * numbers.norm,
            "sharpness": np.maximum(outliers[..., 0], floor),
            "outliers": outliers,
            "bulk": np.full_like(s.gamma, np.nan) if single else s.gamma,
            "value": value,
            "query_norm": np.sqrt(np.clip((numbers.norm + gap) / 2, 0, None)),
            "key_norm": np.sqrt(np.clip((numbers.norm - gap) / 2, 0, None)),
        }

    @property
    def _start_weights(self) -> tuple[Numbers, Numbers]:
        q, k = (to_numpy(a).astype(np.float64) for a in (self._net.w_q, self._net.w_k))
        return q, k
