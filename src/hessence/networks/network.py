"""What all solvable networks have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, Self

import array_api_compat as api

from hessence._common.arrays import Array, floating, require_same_shape, require_shape
from hessence.data.losses import PointwiseLoss, as_loss
from hessence.data.moments import Moments, as_moments
from hessence.networks.descent import Descent, WeightDescent
from hessence.spectra.operators import Hessian


class Network(ABC):
    """A network whose Hessian spectrum is known, at one point of its parameter space.

    Weights may carry leading batch dimensions: many networks of one shape, in one call.
    """

    rank: ClassVar[int]
    """How many dimensions the last weight has, without the batch's."""

    takes_mask: ClassVar[bool] = False
    """Whether data may come with a mask, which tells the tokens of a sequence that exist."""

    @abstractmethod
    def __call__(self, x: Array) -> Array:
        """Return the predictions."""

    @abstractmethod
    def loss(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Array:
        """Return the loss."""

    @abstractmethod
    def gradient(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Array:
        """Return the gradient of the loss, flat, in parameter order."""

    @abstractmethod
    def hessian(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Hessian:
        """Return the Hessian of the loss as an operator."""

    @property
    @abstractmethod
    def _weights(self) -> dict[str, Array]:
        """The weights by name, in the order of the parameter vector, which is PyTorch's."""

    @abstractmethod
    def _rebuild(self, weights: dict[str, Array]) -> Self:
        """Return a network like this one with other weights."""

    def descent(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Descent:
        """Return how gradient descent moves this network; ``hs.gradient_descent`` drives it.

        A network whose training stays in few coordinates overrides this.
        """
        return WeightDescent(self, {"x": x, "y": y, "loss": loss})

    def parameters(self) -> Array:
        """Return all parameters as one vector, first layer first: (..., p)."""
        xp = api.array_namespace(self._reference[1])
        batch = self.batch_shape
        flat = [xp.reshape(weight, (*batch, -1)) for weight in self._weights.values()]
        return xp.concat(flat, axis=-1)

    def with_parameters(self, theta: Array) -> Self:
        """Return the network of this shape whose parameter vector is `theta`."""
        xp, theta = floating(self._reference, theta=theta)
        lead = len(self.batch_shape)
        shapes = {name: tuple(w.shape[lead:]) for name, w in self._weights.items()}
        size = sum(math.prod(shape) for shape in shapes.values())
        if theta.ndim == 0 or theta.shape[-1] != size:
            raise ValueError(
                f"theta must have {size} entries along its last axis, got shape "
                f"{tuple(theta.shape)}."
            )
        pieces, start = {}, 0
        for name, shape in shapes.items():
            piece = theta[..., start : start + math.prod(shape)]
            pieces[name] = xp.reshape(piece, (*tuple(theta.shape[:-1]), *shape))
            start += math.prod(shape)
        return self._rebuild(pieces)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading dimensions of the weights: () for a single network."""
        weight = self._reference[1]
        return tuple(weight.shape[: weight.ndim - self.rank])

    def __getitem__(self, index: Any) -> Self:
        """Return the networks at an index into the batch dimensions."""
        if not self.batch_shape:
            raise IndexError("this is a single network; only a batch of networks has an index.")
        return self._rebuild({name: weight[index] for name, weight in self._weights.items()})

    def __iter__(self) -> Any:
        """Iterate over the networks of a batch."""
        if not self.batch_shape:
            raise TypeError("this is a single network; only a batch of networks can be iterated.")
        return (self[i] for i in range(self.batch_shape[0]))

    @property
    def _reference(self) -> tuple[str, Array]:
        """Name and value of a weight: data must be of its kind and on its device."""
        return list(self._weights.items())[-1]

    def _described(self, sizes: dict[str, int], *more: str) -> str:
        listed = [f"{name}={size}" for name, size in sizes.items()]
        batch = [f"batch={self.batch_shape}"] if self.batch_shape else []
        return f"{type(self).__name__}({', '.join([*listed, *batch, *more])})"


class RowNetwork(Network):
    """A network of samples as rows, x (n, D) and y (n, K).

    Where `x` and `y` are asked for, the mean-squared error is also content with a
    :class:`~hessence.Moments` in place of `x` and no `y`.
    """

    @abstractmethod
    def _objective(self, data: Moments, loss: str | PointwiseLoss) -> Any:
        """Return the loss as a function of the coefficients that the network computes."""

    @abstractmethod
    def _value(self, objective: Any) -> Array:
        """Return the objective at this network's coefficients."""

    @abstractmethod
    def _predict(self, inputs: Array) -> Array:
        """Return the predictions (..., n, K) for inputs (n, D)."""

    def loss(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Array:
        """Return the loss: the mean over samples, summed over outputs, of the pointwise loss.

        The default is the papers' ½ E‖f(x) − y‖²; see :mod:`hessence.data.losses` for others.
        """
        data = self._data(x, y)
        if data.samples is None:
            return self._value(self._objective(data, loss))
        inputs, targets = data.samples
        xp = api.array_namespace(inputs)
        costs = as_loss(loss).value(self._predict(inputs), targets)
        return xp.sum(costs, axis=(-2, -1)) / data.n

    def descent(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Descent:
        """Return how gradient descent moves this network, with data that are checked once."""
        return WeightDescent(self, {"x": self._data(x, y), "loss": loss})

    def _data(self, x: Any, y: Any) -> Moments:
        return as_moments(x, y, self._reference)


class UniformNetwork(RowNetwork):
    """A network whose weights are dataclass fields of one shape."""

    order: ClassVar[tuple[str, ...]]
    """The names of the weights in the order of the parameter vector."""

    shape: ClassVar[tuple[str, ...]]
    """The shape of each weight, without batch dimensions."""

    def __post_init__(self) -> None:
        names = [f.name for f in fields(self)]  # type: ignore[arg-type]
        _, *arrays = floating(**{name: getattr(self, name) for name in names})
        require_shape(names[0], arrays[0], self.shape, batch=True)
        require_same_shape(**dict(zip(names, arrays, strict=True)))
        for name, array in zip(names, arrays, strict=True):
            object.__setattr__(self, name, array)

    @property
    def _weights(self) -> dict[str, Array]:
        return {name: getattr(self, name) for name in self.order}

    def _rebuild(self, weights: dict[str, Array]) -> Self:
        return type(self)(**weights)

    def __repr__(self) -> str:
        sizes = self._reference[1].shape[-len(self.shape) :]
        return self._described(dict(zip(self.shape, sizes, strict=True)))


class ScalarNetwork(UniformNetwork):
    """A network with one input and one output: x (n,), y (n,)."""

    shape = ("m",)
    rank = 1

    def __call__(self, x: Array) -> Array:
        """Return the predictions, (..., n)."""
        _, x = floating(self._reference, x=x)
        require_shape("x", x, ("n",), batch=False)
        return self._predict(x[:, None])[..., 0]

    def _data(self, x: Any, y: Any) -> Moments:
        if not isinstance(x, Moments) and y is not None:
            return Moments.of_numbers(x, y, self._reference)
        data = super()._data(x, y)
        if data.dimensions != (1, 1):
            raise ValueError(
                f"x must be data with one input and one target for {type(self).__name__}, "
                f"got (inputs, targets) = {data.dimensions}."
            )
        return data
