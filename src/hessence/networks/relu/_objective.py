"""The loss of a network as a function of its predictions f (n, K), with two derivatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat as api

from hessence._common.arrays import (
    Array,
    floating,
    identity,
    like,
    require_shape,
    to_numpy,
    transpose,
)
from hessence.data.linear_objective import AnyLoss, TorchLoss, linear_objective
from hessence.data.losses import CrossEntropy, PointwiseLoss, as_loss, one_hot
from hessence.data.rounding import moved_derivatives


@dataclass(frozen=True)
class LossHessian:
    """A symmetric map of changes (..., n, K) of the predictions."""

    entries: Array
    """(n, K) if it acts on each prediction alone, (n, K, K) on each sample, else (n, K, n, K)."""

    def __call__(self, df: Array) -> Array:
        """Apply the map."""
        xp, entries = api.array_namespace(df), self.entries
        if entries.ndim == 2:
            return df * entries
        if entries.ndim == 3:
            return xp.matmul(df[..., None, :], entries)[..., 0, :]
        size = int(entries.shape[0] * entries.shape[1])
        flat = xp.reshape(df, (*df.shape[:-2], size))
        return xp.reshape(xp.matmul(flat, xp.reshape(entries, (size, size))), tuple(df.shape))

    def __rmul__(self, factor: float) -> LossHessian:
        return LossHessian(factor * self.entries)


@dataclass(frozen=True)
class SampleLoss:
    """The mean over samples of a loss of each prediction and its target y (n, K)."""

    y: Array
    loss: PointwiseLoss

    def value(self, f: Array) -> Array:
        """Return the loss."""
        return api.array_namespace(f).sum(self.loss.value(f, self.y)) / f.shape[0]

    def gradient(self, f: Array) -> Array:
        """Return its gradient."""
        return self.loss.first(f, self.y) / f.shape[0]

    def hessian(self, f: Array) -> LossHessian:
        """Return its Hessian."""
        return LossHessian(self.loss.second(f, self.y) / f.shape[0])

    def errors(self, f: Array, reach: Array) -> tuple[Array, LossHessian]:
        """Return bounds for the errors of gradient and Hessian if f is off by at most `reach`."""
        (_, first), (_, second) = moved_derivatives(self.loss, f, self.y, to_numpy(reach))
        return like(first / len(first), f), LossHessian(like(second / len(first), f))


@dataclass(frozen=True)
class UserLoss:
    """A user's PyTorch loss of all predictions and targets, as one of fᵀ times the identity."""

    of_transpose: TorchLoss

    def value(self, f: Array) -> Array:
        """Return the loss."""
        return self.of_transpose.value(transpose(f))

    def gradient(self, f: Array) -> Array:
        """Return its gradient."""
        return transpose(self.of_transpose.gradient(transpose(f)))

    def hessian(self, f: Array) -> LossHessian:
        """Return its Hessian."""
        entries = self.of_transpose.hessian(transpose(f)).entries
        return LossHessian(api.array_namespace(f).permute_dims(entries, (1, 0, 3, 2)))

    def errors(self, f: Array, reach: Array) -> tuple[Array, LossHessian]:
        """Return what is known for any loss: a change of f moves the gradient by the Hessian."""
        hessian = LossHessian(abs(self.hessian(f).entries))
        return hessian(reach), 0 * hessian


Objective = SampleLoss | UserLoss


def prediction_loss(
    y: Any, loss: AnyLoss, shape: tuple[int, int], reference: tuple[str, Array]
) -> Objective:
    """Return the loss of predictions of a shape (n, K).

    Targets have that shape; ``"cross-entropy"`` also takes class indices (n,), and a PyTorch loss
    whatever it is for. `reference` names an array whose kind and device they must share.
    """
    n, outputs = shape
    if not isinstance(loss, (str, PointwiseLoss)) and callable(loss):
        found = linear_objective(identity(n, reference[1]), y, loss, (outputs, n), reference)
        assert isinstance(found, TorchLoss)
        return UserLoss(found)
    known = as_loss(loss, coupled=True)
    if isinstance(known, CrossEntropy):
        y = one_hot(y, 1, outputs, reference[1])
    if y is None:
        raise ValueError("y is missing: give the targets.")
    _, y = floating(reference, y=y)
    require_shape("y", y, shape, batch=False)
    return SampleLoss(y, known)
