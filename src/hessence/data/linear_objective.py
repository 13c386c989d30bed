"""What the loss of a linear network sees: data, a loss, and the end-to-end matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, floating, like, require_shape, to_numpy
from hessence.data.losses import CrossEntropy, Huber, PointwiseLoss, Squared, as_loss, one_hot
from hessence.data.matrix_objectives import Dense, MatrixLoss, MatrixQuadratic, matrix_objective
from hessence.data.moments import Moments, as_moments, samples_of

AnyLoss = Any
"""A name, a :class:`~hessence.data.losses.PointwiseLoss`, or a PyTorch loss of two arguments."""


def linear_objective(
    x: Any,
    y: Any,
    loss: AnyLoss,
    shape: tuple[int, int],
    reference: tuple[str, Array],
    scale: float = 1.0,
    constant: Array | None = None,
) -> MatrixQuadratic | MatrixLoss | TorchLoss:
    """Return the loss of the predictor f(x) = scale · (M + constant) x as a function of M (K, D).

    In place of the data x (n, D) and y (n, K), `x` alone may be a :class:`~hessence.Moments` or an
    objective made before; ``"cross-entropy"`` also takes class indices y (n,). The `reference` is
    the name and the value of an array whose kind the data must have.
    """
    if isinstance(x, (MatrixQuadratic, MatrixLoss, TorchLoss)):
        return x
    if not isinstance(loss, (str, PointwiseLoss)) and callable(loss):
        return _torch_objective(x, y, loss, shape[1], reference, scale, constant)
    known, offset = as_loss(loss, coupled=True), None
    if isinstance(known, CrossEntropy):
        y = one_hot(y, 1, shape[0], reference[1])
    data = as_moments(x, y, reference)
    if data.dimensions != shape[::-1]:
        raise ValueError(
            f"x must have shape (n, {shape[1]}) and y (n, {shape[0]}), one-hot rows for classes, "
            f"got (inputs, targets) = {data.dimensions}."
        )
    if constant is not None and isinstance(known, (Squared, Huber)):
        # A loss of the residual: subtracting the constant from the targets loses no digits.
        data = data.less(constant, scale)
    elif constant is not None:
        xp = api.array_namespace(constant)
        offset = scale * xp.matmul(samples_of(data)[0], xp.matrix_transpose(constant))
    return matrix_objective(data if scale == 1 else data.scaled(scale), loss, offset)


@dataclass(frozen=True)
class TorchLoss:
    """A user's PyTorch loss of (predictions, targets), differentiated by PyTorch.

    Arrays of any kind go to PyTorch in double precision, and derivatives come back.
    """

    x: Array
    y: Array
    loss: Callable[[Any, Any], Any]
    offset: Any = 0.0

    def value(self, M: Array) -> Array:
        """Return the loss."""
        return self._back(lambda m: self._loss(m).detach(), M)

    def gradient(self, M: Array) -> Array:
        """Return the gradient in M."""
        import torch

        return self._back(lambda m: torch.autograd.functional.jacobian(self._loss, m), M)

    def hessian(self, M: Array) -> Dense:
        """Return the Hessian in M."""
        import torch

        return Dense(self._back(lambda m: torch.autograd.functional.hessian(self._loss, m), M))

    def _back(self, function: Callable[[Any], Any], M: Array) -> Array:
        if M.ndim > 2:
            raise ValueError("loss must be a name or have derivatives for a batch of networks.")
        return like(function(_to_torch(M)).numpy(), M)

    def _loss(self, matrix: Any) -> Any:
        value = self.loss(self.x @ matrix.T + self.offset, self.y)
        if getattr(value, "ndim", None) != 0:
            raise ValueError("loss must return a single number, reduced over samples and outputs.")
        return value


def _torch_objective(
    x: Any,
    y: Any,
    loss: AnyLoss,
    inputs: int,
    reference: tuple[str, Array],
    scale: float,
    constant: Array | None,
) -> TorchLoss:
    if isinstance(x, Moments):
        raise ValueError("loss must be 'mse' when x is a Moments; other losses need samples.")
    _, x = floating(reference, x=x)
    require_shape("x", x, ("n", inputs), batch=False)
    if isinstance(loss, type):
        raise TypeError(f"loss must be a function or an object, got the class {loss.__name__}.")
    if y is None:
        raise ValueError("y is missing: give the targets.")
    targets = np.asarray(to_numpy(y) if hasattr(y, "shape") else y)
    if not np.isfinite(targets).all():
        raise ValueError("y contains NaN or infinity.")
    if len(targets) != x.shape[0]:
        raise ValueError(
            f"y must have one row for each of the {x.shape[0]} samples in x, got {len(targets)}."
        )
    whole = np.int64 if targets.dtype.kind in "iu" else np.float64
    inputs_ = _to_torch(scale * x)
    offset = 0.0 if constant is None else inputs_ @ _to_torch(constant).T
    return TorchLoss(inputs_, _to_torch(targets, whole), loss, offset)


def _to_torch(array: Array, kind: Any = np.float64) -> Any:
    import torch

    return torch.as_tensor(to_numpy(array).astype(kind))
