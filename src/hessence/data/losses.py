"""Pointwise losses: what a prediction costs, with the first two derivatives in the prediction.

The loss of a network is the mean of these over the samples (and their sum over the outputs). Any
object with the three methods of :class:`PointwiseLoss` will do in ``net.hessian(x, y, loss=...)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, identity, like, to_numpy


@runtime_checkable
class PointwiseLoss(Protocol):
    """A twice-differentiable loss of one prediction and one target, applied elementwise."""

    def value(self, prediction: Array, target: Array) -> Array:
        """Return the loss."""

    def first(self, prediction: Array, target: Array) -> Array:
        """Return its first derivative in the prediction."""

    def second(self, prediction: Array, target: Array) -> Array:
        """Return its second derivative in the prediction."""


@dataclass(frozen=True)
class Squared:
    """Half the squared residual, ½ (f − y)²: the papers' loss, and the default."""

    def value(self, prediction: Array, target: Array) -> Array:
        """Return ½ (f − y)²."""
        residual = prediction - target
        return residual * residual / 2

    def first(self, prediction: Array, target: Array) -> Array:
        """Return f − y."""
        return prediction - target

    def second(self, prediction: Array, target: Array) -> Array:
        """Return 1."""
        xp = api.array_namespace(prediction)
        return xp.ones_like(prediction - target)


@dataclass(frozen=True)
class Logistic:
    """The logistic loss log(1 + exp(−y f)) of labels y = ±1."""

    def value(self, prediction: Array, target: Array) -> Array:
        """Return log(1 + exp(−y f)), without overflow."""
        xp = api.array_namespace(prediction)
        margin = _signs(target) * prediction
        # Not through the absolute value, which has no derivative at 0.
        wrong = margin < 0
        linear = xp.where(wrong, -margin, 0 * margin)
        return linear + xp.log1p(xp.exp(xp.where(wrong, margin, -margin)))

    def first(self, prediction: Array, target: Array) -> Array:
        """Return −y / (1 + exp(y f))."""
        target = _signs(target)
        return -target * sigmoid(-target * prediction)

    def second(self, prediction: Array, target: Array) -> Array:
        """Return 1 / ((1 + exp(f)) (1 + exp(−f)))."""
        _signs(target)
        return sigmoid(prediction) * sigmoid(-prediction) + 0 * target


@dataclass(frozen=True)
class Huber:
    """Quadratic up to a threshold, ½ r², and linear beyond, t (abs(r) − t/2).

    The second derivative at the threshold itself, where none exists, is taken to be 1.
    """

    threshold: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.threshold < float("inf"):
            raise ValueError(f"threshold must be a positive number, got {self.threshold}.")

    def value(self, prediction: Array, target: Array) -> Array:
        """Return the loss of r = f − y."""
        xp = api.array_namespace(prediction)
        size = xp.abs(prediction - target)
        t = self.threshold
        return xp.where(size <= t, size * size / 2, t * (size - t / 2))

    def first(self, prediction: Array, target: Array) -> Array:
        """Return r, clipped to the threshold."""
        xp = api.array_namespace(prediction)
        return xp.clip(prediction - target, -self.threshold, self.threshold)

    def second(self, prediction: Array, target: Array) -> Array:
        """Return 1 up to the threshold and 0 beyond."""
        xp = api.array_namespace(prediction)
        residual = prediction - target
        return xp.astype(xp.abs(residual) <= self.threshold, residual.dtype)


@dataclass(frozen=True)
class CrossEntropy:
    """The cross-entropy −Σ_k y_k log softmax(f)_k of targets y: one-hot rows, or probabilities.

    It couples the outputs, so ``second`` returns a matrix for each sample: it is for networks with
    vector outputs.
    """

    coupled = True

    def value(self, prediction: Array, target: Array) -> Array:
        """Return −y_k log softmax(f)_k for each output, without overflow."""
        xp = api.array_namespace(prediction)
        _require_probabilities(target)
        # Relative to the largest output, so that a nearly certain one keeps its digits.
        top = prediction == xp.max(prediction, axis=-1, keepdims=True)
        first = xp.cumulative_sum(xp.astype(top, xp.int64), axis=-1) == 1
        top, zero = xp.logical_and(top, first), 0 * prediction
        largest = xp.sum(xp.where(top, prediction, zero), axis=-1, keepdims=True)
        apart = xp.where(top, zero, prediction - largest)
        others = xp.sum(xp.where(top, zero, xp.exp(apart)), axis=-1, keepdims=True)
        return -target * (apart - xp.log1p(others))

    def first(self, prediction: Array, target: Array) -> Array:
        """Return p Σ_k y_k − y with p = softmax(f), accurate also where one p is close to 1."""
        _require_probabilities(target)
        p = _softmax(prediction)
        # Σ_j (p_k y_j − y_k p_j) without j = k, which vanishes: a p_k close to 1 keeps its digits.
        return p * _sum_of_others(target) - target * _sum_of_others(p)

    def second(self, prediction: Array, target: Array) -> Array:
        """Return (diag(p) − p pᵀ) Σ_k y_k with p = softmax(f), (..., K, K)."""
        xp = api.array_namespace(prediction)
        p = _softmax(prediction)
        eye = identity(p.shape[-1], p)
        diagonal = (p * _sum_of_others(p))[..., None]
        spread = diagonal * eye - p[..., :, None] * p[..., None, :] * (1 - eye)
        return spread * xp.sum(target, axis=-1)[..., None, None]


NAMED: dict[str, PointwiseLoss] = {
    "mse": Squared(),
    "logistic": Logistic(),
    "huber": Huber(),
    "cross-entropy": CrossEntropy(),
}


def as_loss(loss: str | PointwiseLoss, *, coupled: bool = False) -> PointwiseLoss:
    """Look up a loss by name, or check that an object is one; coupled ones must be allowed."""
    if isinstance(loss, str):
        name = loss.replace("_", "-")
        if name not in NAMED:
            raise ValueError(f"loss must be one of {', '.join(map(repr, NAMED))}, got {name!r}.")
        loss = NAMED[name]
    if not isinstance(loss, PointwiseLoss) or isinstance(loss, type):
        raise TypeError(
            "loss must be a name or an object with the methods value, first and second of "
            f"(prediction, target), got {type(loss).__name__}."
        )
    if getattr(loss, "coupled", False) and not coupled:
        raise ValueError("loss must treat each output on its own here; cross-entropy does not.")
    return loss


def one_hot(y: Any, axes: int, classes: int, reference: Array) -> Any:
    """Turn class indices, told by their number of axes, into rows (..., classes)."""
    if y is None or getattr(y, "ndim", np.ndim(y)) != axes:
        return y
    labels = np.asarray(to_numpy(y) if api.is_array_api_obj(y) else y)
    if labels.size == 0:
        raise ValueError("y is empty: give one class index for each sample.")
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"y must hold class indices from 0 to {classes - 1}, or rows of {classes} "
            "probabilities, for the cross-entropy."
        )
    return like(np.eye(classes)[labels], reference)


def _softmax(logits: Array) -> Array:
    xp = api.array_namespace(logits)
    weights = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
    return weights / xp.sum(weights, axis=-1, keepdims=True)


def _sum_of_others(values: Array) -> Array:
    """Return Σ_{j≠k} v_j of values that are not negative, to full relative accuracy."""
    xp = api.array_namespace(values)
    total = xp.sum(values, axis=-1, keepdims=True)
    # Only a value above half of the total would cancel against it, and there is at most one.
    large = 2 * values > total
    rest = xp.sum(xp.where(large, 0 * values, values), axis=-1, keepdims=True)
    return xp.where(large, rest + 0 * values, total - values)


def sigmoid(t: Array) -> Array:
    """Return 1/(1 + exp(−t)) to full relative accuracy, without overflow."""
    xp = api.array_namespace(t)
    # Not through the absolute value, which has no derivative at 0.
    decay = xp.exp(xp.where(t < 0, t, -t))
    return xp.where(t < 0, decay, xp.ones_like(t)) / (1 + decay)


def _require_probabilities(target: Array) -> None:
    xp = api.array_namespace(target)
    if not bool(xp.all(target >= 0)):
        raise ValueError("y must not be negative for the cross-entropy.")


def _signs(target: Array) -> Array:
    xp = api.array_namespace(target)
    if not bool(xp.all(xp.abs(target) == 1)):
        raise ValueError("y must hold labels −1 and +1 for the logistic loss.")
    return target
