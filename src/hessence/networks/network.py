"""What all solvable networks have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, Self

import array_api_compat as api

from hessence.arrays import Array, floating, require_same_shape, require_shape
from hessence.losses import PointwiseLoss, as_loss
from hessence.moments import Moments, as_moments
from hessence.operators import Hessian


class Network(ABC):
    """A network whose Hessian spectrum is known, at one point of its parameter space.

    Weights may carry leading batch dimensions: many networks of one shape, in one call. Data are
    samples as rows; where `x` and `y` are asked for, the mean-squared error is also content with a
    :class:`~hessence.Moments` in place of `x` and no `y`.
    """

    order: ClassVar[tuple[str, ...]]
    """The names of the weights in the order of the parameter vector, which is PyTorch's."""

    shape: ClassVar[tuple[str, ...]]
    """The shape of each weight, without batch dimensions."""

    def __post_init__(self) -> None:
        names = [f.name for f in fields(self)]  # type: ignore[arg-type]
        _, *arrays = floating(**{name: getattr(self, name) for name in names})
        require_shape(names[0], arrays[0], self.shape, batch=True)
        require_same_shape(**dict(zip(names, arrays, strict=True)))
        for name, array in zip(names, arrays, strict=True):
            object.__setattr__(self, name, array)

    @abstractmethod
    def __call__(self, x: Array) -> Array:
        """Return the predictions."""

    @abstractmethod
    def hessian(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Hessian:
        """Return the Hessian of the loss as an operator."""

    @abstractmethod
    def gradient(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Array:
        """Return the gradient of the loss, flat, in parameter order."""

    @abstractmethod
    def _objective(self, data: Moments, loss: str | PointwiseLoss) -> Any:
        """Return the loss as a function of the coefficients that the network computes."""

    @abstractmethod
    def _value(self, objective: Any) -> Array:
        """Return the objective at this network's coefficients."""

    def loss(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Array:
        """Return the loss: the mean over samples, summed over outputs, of the pointwise loss.

        The default is the papers' ½ E‖f(x) − y‖²; see :mod:`hessence.losses` for others.
        """
        data = self._data(x, y)
        if data.samples is None:
            return self._value(self._objective(data, loss))
        inputs, targets = data.samples
        xp = api.array_namespace(inputs)
        predictions = self._predict(inputs)
        costs = as_loss(loss).value(predictions, targets)
        return xp.sum(costs, axis=(-2, -1)) / data.n

    def parameters(self) -> Array:
        """Return all parameters as one vector, first layer first: (..., p)."""
        xp = api.array_namespace(self._weight)
        batch = self.batch_shape
        return xp.concat(
            [xp.reshape(getattr(self, name), (*batch, -1)) for name in self.order], axis=-1
        )

    def with_parameters(self, theta: Array) -> Self:
        """Return the network of this shape whose parameter vector is `theta`."""
        _, theta = floating((self.order[-1], self._weight), theta=theta)
        xp = api.array_namespace(theta)
        shape = tuple(self._weight.shape)[len(self.batch_shape) :]
        size = math.prod(shape)
        if theta.shape[-1] != size * len(self.order):
            raise ValueError(
                f"theta must have {size * len(self.order)} entries along its last axis, "
                f"got {theta.shape[-1]}."
            )
        pieces = {
            name: xp.reshape(
                theta[..., i * size : (i + 1) * size], (*tuple(theta.shape[:-1]), *shape)
            )
            for i, name in enumerate(self.order)
        }
        return type(self)(**pieces)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading dimensions of the weights: () for a single network."""
        return tuple(self._weight.shape[: self._weight.ndim - len(self.shape)])

    def __getitem__(self, index: Any) -> Self:
        """Return the networks at an index into the batch dimensions."""
        if not self.batch_shape:
            raise IndexError("this is a single network; only a batch of networks has an index.")
        names = [f.name for f in fields(self)]  # type: ignore[arg-type]
        return type(self)(**{name: getattr(self, name)[index] for name in names})

    def __repr__(self) -> str:
        sizes = dict(
            zip(self.shape, self._weight.shape[-len(self.shape) :], strict=True),
        )
        batch = f", batch={self.batch_shape}" if self.batch_shape else ""
        listed = ", ".join(f"{name}={size}" for name, size in sizes.items())
        return f"{type(self).__name__}({listed}{batch})"

    @property
    def _weight(self) -> Array:
        return getattr(self, self.order[-1])

    def _data(self, x: Any, y: Any) -> Moments:
        return as_moments(x, y, (self.order[-1], self._weight))

    @abstractmethod
    def _predict(self, inputs: Array) -> Array:
        """Return the predictions (..., n, K) for inputs (n, D)."""


class ScalarNetwork(Network):
    """A network with one input and one output: x (n,), y (n,)."""

    shape = ("m",)

    def __call__(self, x: Array) -> Array:
        """Return the predictions, (..., n)."""
        _, x = floating((self.order[-1], self._weight), x=x)
        require_shape("x", x, ("n",), batch=False)
        return self._predict(x[:, None])[..., 0]

    def _data(self, x: Any, y: Any) -> Moments:
        if not isinstance(x, Moments):
            for name, value in (("x", x), ("y", y)):
                if getattr(value, "ndim", 1) != 1:
                    raise ValueError(f"{name} must have shape (n,), got {tuple(value.shape)}.")
        data = super()._data(x, y)
        if data.dimensions != (1, 1):
            raise ValueError(
                f"x must be data with one input and one target for {type(self).__name__}, "
                f"got (inputs, targets) = {data.dimensions}."
            )
        return data
