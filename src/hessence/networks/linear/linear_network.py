"""Linear networks: products of matrices."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, epsilon, floating, largest, require_shape, to_numpy
from hessence.data.losses import CrossEntropy, PointwiseLoss, as_loss
from hessence.data.matrix_objectives import MatrixLoss, MatrixQuadratic, TorchLoss, matrix_objective
from hessence.data.moments import Moments
from hessence.networks.descent import Descent
from hessence.networks.linear.aligned import TOLERANCE, find_chains
from hessence.networks.linear.descent import LinearWeightDescent, ModeDescent
from hessence.networks.linear.linear_hessian import LinearHessian
from hessence.networks.network import RowNetwork

AnyLoss = Any
"""A name, a :class:`~hessence.data.losses.PointwiseLoss`, or a PyTorch loss of two arguments."""


class LinearNetwork(RowNetwork):
    """f(x) = c W_L ⋯ W_1 x with x (n, d_0), y (n, d_L), and c the product of the multipliers."""

    rank: ClassVar[int] = 2
    weights: tuple[Array, ...]
    multipliers: tuple[float, ...]

    @property
    def dims(self) -> tuple[int, ...]:
        """The widths (d_0, …, d_L)."""
        return (int(self.weights[0].shape[-1]), *(int(w.shape[-2]) for w in self.weights))

    @cached_property
    def product(self) -> Array:
        """The matrix W_L ⋯ W_1, without the multipliers."""
        xp = api.array_namespace(self.weights[0])
        product = self.weights[0]
        for w in self.weights[1:]:
            product = xp.matmul(w, product)
        return product

    def __call__(self, x: Array) -> Array:
        """Return the predictions (..., n, d_L) for inputs (n, d_0)."""
        _, x = floating(self._reference, x=x)
        require_shape("x", x, ("n", self.dims[0]), batch=False)
        return self._predict(x)

    def loss(self, x: Array, y: Array = None, loss: AnyLoss = "mse") -> Array:
        """Return the loss: the mean over samples of the loss of the predictions.

        The default is the papers' ½ E‖f(x) − y‖². ``"cross-entropy"`` takes class indices (n,) or
        one-hot rows; a function of PyTorch's (prediction, target) is called as it is.
        """
        objective = self._linear_objective(x, y, loss)
        if isinstance(objective, MatrixQuadratic) and objective.moments.samples is not None:
            inputs, targets = objective.moments.samples
            xp = api.array_namespace(inputs)
            residual = xp.matmul(inputs, xp.matrix_transpose(self.product)) - targets
            return xp.sum(residual * residual, axis=(-2, -1)) / (2 * objective.moments.n)
        return objective.value(self.product)

    def gradient(self, x: Array, y: Array = None, loss: AnyLoss = "mse") -> Array:
        """Return the gradient of the loss, flat, first layer first, each row by row."""
        objective = self._linear_objective(x, y, loss)
        gradient = objective.gradient(self.product)
        carrier = LinearHessian(self.weights, gradient, objective.hessian(self.product))
        return carrier.pull(gradient[..., None, :, :])[..., 0]

    def hessian(self, x: Array, y: Array = None, loss: AnyLoss = "mse") -> LinearHessian:
        """Return the Hessian of the loss as an operator; its products never touch the samples."""
        return self._hessian_of(self._linear_objective(x, y, loss))

    def descent(self, x: Array, y: Array = None, loss: AnyLoss = "mse") -> Descent:
        """Return how gradient descent moves the network: mode by mode if it is aligned."""
        objective = self._linear_objective(x, y, loss)
        if isinstance(objective, MatrixQuadratic) and not self.batch_shape:
            chains = find_chains(self._hessian_of(objective))
            if chains.defect <= TOLERANCE * epsilon(self.product):
                return ModeDescent(self, objective, chains)
        return LinearWeightDescent(self, objective)

    def _hessian_of(self, objective: Any) -> LinearHessian:
        product = self.product
        gradient, noise = objective.gradient(product), objective.noise(product)
        if largest(gradient) <= noise:
            # Nothing but rounding is left of the residual: this is a solution.
            gradient = 0 * gradient
        return LinearHessian(self.weights, gradient, objective.hessian(product), noise)

    @property
    def _multiplier(self) -> float:
        return float(np.prod(self.multipliers))

    def _predict(self, inputs: Array) -> Array:
        xp = api.array_namespace(inputs)
        return xp.matmul(self._multiplier * inputs, xp.matrix_transpose(self.product))

    def _linear_objective(
        self, x: Any, y: Any, loss: AnyLoss
    ) -> MatrixQuadratic | MatrixLoss | TorchLoss:
        """Return the loss as a function of W_L ⋯ W_1: the multipliers scale the inputs."""
        if not isinstance(loss, (str, PointwiseLoss)) and callable(loss):
            return self._torch_objective(x, y, loss)
        if isinstance(as_loss(loss, coupled=True), CrossEntropy):
            y = self._one_hot(y)
        return matrix_objective(self._scaled(self._data(x, y)), loss)

    def _torch_objective(self, x: Any, y: Any, loss: AnyLoss) -> TorchLoss:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            needed = "a PyTorch loss needs PyTorch: pip install 'hessence[torch]'."
            raise ImportError(needed) from error
        if isinstance(x, Moments):
            raise ValueError("loss must be 'mse' when x is a Moments; other losses need samples.")
        _, x = floating(self._reference, x=x)
        require_shape("x", x, ("n", self.dims[0]), batch=False)
        if isinstance(loss, type):
            raise TypeError(f"loss must be a function or an object, got the class {loss.__name__}.")
        if y is None:
            raise ValueError("y is missing: give the targets.")
        if not np.isfinite(to_numpy(y) if hasattr(y, "shape") else np.asarray(y)).all():
            raise ValueError("y contains NaN or infinity.")
        if len(y) != x.shape[0]:
            raise ValueError(
                f"y must have one row for each of the {x.shape[0]} samples in x, got {len(y)}."
            )
        return TorchLoss(self._multiplier * x, y, loss)

    def _one_hot(self, y: Any) -> Any:
        if y is None or getattr(y, "ndim", np.ndim(y)) != 1:
            return y
        labels = to_numpy(y) if api.is_array_api_obj(y) else np.asarray(y)
        classes = self.dims[-1]
        if labels.size == 0:
            raise ValueError("y is empty: give one class index for each sample.")
        if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= classes:
            raise ValueError(
                f"y must hold class indices from 0 to {classes - 1}, or rows of {classes} "
                "probabilities, for the cross-entropy."
            )
        xp = api.array_namespace(self.weights[0])
        return xp.asarray(
            np.eye(classes)[labels],
            dtype=self.weights[0].dtype,
            device=api.device(self.weights[0]),
        )

    def _scaled(self, data: Moments) -> Moments:
        return data if self._multiplier == 1 else data.scaled(self._multiplier)

    def _data(self, x: Any, y: Any) -> Moments:
        data = super()._data(x, y)
        wanted = (self.dims[0], self.dims[-1])
        if data.dimensions != wanted:
            raise ValueError(
                f"x must have shape (n, {wanted[0]}) and y (n, {wanted[1]}), "
                f"got (inputs, targets) = {data.dimensions}."
            )
        return data

    def _objective(self, data: Moments, loss: str | PointwiseLoss) -> Any:
        return matrix_objective(self._scaled(data), loss)

    def _value(self, objective: Any) -> Array:
        return objective.value(self.product)

    def __repr__(self) -> str:
        shape = "-".join(map(str, self.dims))
        batch = f", batch={self.batch_shape}" if self.batch_shape else ""
        scale = "" if self._multiplier == 1 else f", multipliers={self.multipliers}"
        return f"{type(self).__name__}({shape}{batch}{scale})"


def as_multipliers(multipliers: Any, layers: int) -> tuple[float, ...]:
    """Check one multiplier for each layer."""
    if multipliers is None:
        return (1.0,) * layers
    try:
        values = tuple(float(m) for m in multipliers)
    except (TypeError, ValueError):
        raise TypeError("multipliers must be a sequence of numbers, one for each layer.") from None
    if len(values) != layers:
        raise ValueError(f"multipliers must have {layers} entries, got {len(values)}.")
    if not all(np.isfinite(v) and v != 0 for v in values):
        raise ValueError(f"multipliers must be finite and not zero, got {values}.")
    return values
