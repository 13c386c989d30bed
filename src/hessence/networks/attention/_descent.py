r"""Gradient descent of self-attention in three numbers.

The gradient in the query weights is γ times the key weights and the other way round, so
:math:`w_Q \pm w_K` move along lines as :mod:`hessence.networks.scalar.lines` describes, at any key
dimension, while :math:`w_V` moves by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hessence._common.arrays import Numbers, like, to_double, to_numpy
from hessence.data.losses import PointwiseLoss
from hessence.networks.attention.attention_hessian import Scalars, outlier_block
from hessence.networks.attention.attention_network import Sequences
from hessence.networks.descent import Coordinates, Descent, Moving
from hessence.networks.scalar.lines import OPPOSITE, Lines, gram_of, squared_length
from hessence.spectra.small_eigen import eigenvalues


class AttentionDescent(Descent):
    """Gradient descent of self-attention, on w_V and the lengths of w_Q ± w_K."""

    method = "lines"

    def __init__(self, net: Any, data: Sequences, loss: PointwiseLoss) -> None:
        super().__init__(net, x=data, loss=loss)
        self._data, self._loss = data, loss
        value, q, k = map(to_double, net._weights.values())
        self._lines = Lines(q, k, np.ones((1, q.shape[-1])))
        self.start = Moving((value, self._lines.lengths[..., 0, :]))
        self.state_bytes = 6 * value.nbytes

    def gradient(self, coordinates: Coordinates) -> Coordinates:
        """Return the gradient in w_V, and ±γ times the lengths of w_Q ± w_K."""
        value, lengths = coordinates
        at = (like(a, self.reference) for a in (value, gram_of(lengths).inner))
        on_value, gamma = (
            to_double(a) for a in self._net._gradient_at(self._data, self._loss, *at)
        )
        return on_value, gamma[..., None] * OPPOSITE * lengths

    def length(self, change: Coordinates) -> Numbers:
        """Return how far the weights move."""
        return np.asarray(np.sqrt(change[0] ** 2 + squared_length(change[1])))

    def network(self, state: Moving) -> Any:
        """Return the network at a state."""
        value, lengths = state.coordinates
        w_q, w_k = self._lines.spread(lengths[..., None, :])
        weights = {"w_v": value, "w_q": w_q, "w_k": w_k}
        return self._net._rebuild(
            {name: like(weight, self.reference) for name, weight in weights.items()}
        )

    def measure(self, states: Iterable[Moving]) -> dict[str, Numbers]:
        """Return loss, trace, sharpness, outliers, bulk, w_V and the other weights' norms."""
        points = [state.coordinates for state in states]
        value, lengths = (np.stack(column) for column in zip(*points, strict=True))
        numbers = gram_of(lengths)
        w, inner = like(value, self.reference), like(numbers.inner, self.reference)
        first, second = self._net._scalars(self._data, self._loss, w, inner)
        s = Scalars(*map(to_numpy, first.plus(second)))
        matrix = outlier_block(s, numbers)
        finite = np.isfinite(matrix).all(axis=(-2, -1))
        safe = np.where(finite[..., None, None], matrix, 0.0)
        outliers = np.where(finite[..., None], eigenvalues(safe), np.nan)
        single = self.reference.shape[-1] == 1  # then there is no bulk
        floor = -np.inf if single else np.abs(s.gamma)
        # ‖w_Q‖² − ‖w_K‖² = ⟨w_Q + w_K, w_Q − w_K⟩ is multiplied as the two are.
        q, k = self._lines.w, self._lines.v
        multiples = self._lines.multiples(lengths[..., None, :])[..., 0, :]
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
