"""Attention activations: what turns a row of scores into weights.

Each returns the weights and their first two derivatives along a direction of the scores, which is
all that the Hessian of a self-attention layer needs. An object of your own may act on single scores
(``value``, ``first``, ``second``) or on whole rows (``along``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array
from hessence.data.losses import sigmoid


@runtime_checkable
class ScoreActivation(Protocol):
    """An activation of single scores with its first two derivatives."""

    def value(self, scores: Array) -> Array:
        """Return the weights."""

    def first(self, scores: Array) -> Array:
        """Return their first derivatives."""

    def second(self, scores: Array) -> Array:
        """Return their second derivatives."""


@runtime_checkable
class RowActivation(Protocol):
    """An activation of rows of scores, (..., n, n)."""

    def along(self, scores: Array, direction: Array, keys: Array) -> tuple[Array, Array, Array]:
        """Return weights and two derivatives along a direction, all zero where not `keys`."""


@dataclass(frozen=True)
class Softmax:
    """The softmax of each row, computed without overflow."""

    def along(self, scores: Array, direction: Array, keys: Array) -> tuple[Array, Array, Array]:
        """Return A, A (d − m) and A ((d − m)² − v) with m, v the mean and variance of d under A."""
        xp = api.array_namespace(scores)
        weights, top = self.weights(scores, keys)
        gap = from_top(direction, top)
        gap = gap - xp.sum(weights * gap, axis=-1, keepdims=True)
        spread = xp.sum(weights * gap * gap, axis=-1, keepdims=True)
        return weights, weights * gap, weights * (gap * gap - spread)

    def weights(self, scores: Array, keys: Array) -> tuple[Array, Array]:
        """Return the softmax, and the place (..., n, 1) of the largest score in each row."""
        xp = api.array_namespace(scores)
        masked = scores if bool(xp.all(keys)) else xp.where(keys, scores, -xp.inf + 0 * scores)
        top = xp.argmax(masked, axis=-1, keepdims=True)
        raw = xp.exp(masked - xp.take_along_axis(masked, top, axis=-1))
        return raw / xp.sum(raw, axis=-1, keepdims=True), top

    def moments(self, scores: Array, tokens: Array, keys: Array) -> tuple[Array, Array, Array]:
        """Return mean, variance and third central moment of tokens under each row, (..., n)."""
        xp, (weights, top) = api.array_namespace(scores), self.weights(scores, keys)
        highest = xp.take_along_axis(xp.broadcast_to(tokens, scores.shape), top, axis=-1)
        gap = tokens - highest
        mean = xp.sum(weights * gap, axis=-1, keepdims=True)
        gap = gap - mean
        square = weights * gap * gap
        return (highest + mean)[..., 0], xp.sum(square, axis=-1), xp.sum(square * gap, axis=-1)


def from_top(values: Array, top: Array) -> Array:
    """Return how far values (..., n) are from that at one place of each row.

    Where a token has nearly all attention, means lie close to it, and what is left of them is small
    beside the values themselves: seen from that token they keep their digits.
    """
    xp = api.array_namespace(values)
    lead = np.broadcast_shapes(tuple(values.shape[:-1]), tuple(top.shape[:-1]))
    whole = xp.broadcast_to(values, (*lead, values.shape[-1]))
    return values - xp.take_along_axis(whole, xp.broadcast_to(top, (*lead, 1)), axis=-1)


def tokens_from_top(x: Array, top: Array) -> Array:
    """Return how far tokens (B, n, d) are from the one at the top of each row, (B, n, n, d)."""
    xp = api.array_namespace(x)
    at_top = xp.take_along_axis(x, xp.broadcast_to(top, x.shape), axis=-2)
    return x[:, None, :, :] - at_top[:, :, None, :]


@dataclass(frozen=True)
class _Rowwise:
    """An activation of single scores, as one of rows."""

    activation: ScoreActivation

    def along(self, scores: Array, direction: Array, keys: Array) -> tuple[Array, Array, Array]:
        """Return φ(s), φ′(s) d and φ″(s) d²."""
        xp = api.array_namespace(scores)
        parts = (
            self.activation.value(scores),
            self.activation.first(scores) * direction,
            self.activation.second(scores) * direction * direction,
        )
        weights, first, second = (xp.where(keys, part, 0 * part) for part in parts)
        return weights, first, second


@dataclass(frozen=True)
class Scorewise:
    """An activation of single scores, from three functions of them."""

    value: Callable[[Array], Array]
    first: Callable[[Array], Array]
    second: Callable[[Array], Array]


def _bell(scores: Array) -> Array:
    """Return σ(s) σ(−s), the derivative of the logistic function σ, to full relative accuracy."""
    return sigmoid(scores) * sigmoid(-scores)


def _tanh(scores: Array) -> Array:
    return api.array_namespace(scores).tanh(scores)


NAMED: dict[str, Any] = {
    "softmax": Softmax(),
    # Linear attention: the scores themselves.
    "identity": Scorewise(lambda s: s, lambda s: 0 * s + 1, lambda s: 0 * s),
    "sigmoid": Scorewise(sigmoid, _bell, lambda s: _bell(s) * (sigmoid(-s) - sigmoid(s))),
    "tanh": Scorewise(_tanh, lambda s: 4 * _bell(2 * s), lambda s: -8 * _tanh(s) * _bell(2 * s)),
}


def as_activation(activation: Any) -> RowActivation:
    """Look up an activation by name, or check that an object is one."""
    if isinstance(activation, str):
        if activation not in NAMED:
            known = ", ".join(map(repr, NAMED))
            raise ValueError(f"activation must be one of {known}, got {activation!r}.")
        activation = NAMED[activation]
    if isinstance(activation, RowActivation) and not isinstance(activation, type):
        return activation
    if isinstance(activation, ScoreActivation) and not isinstance(activation, type):
        return _Rowwise(activation)
    raise TypeError(
        "activation must be a name, or an object with the methods value, first and second of the "
        f"scores, or along of rows of scores, got {type(activation).__name__}."
    )
