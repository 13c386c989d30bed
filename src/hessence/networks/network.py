"""What all solvable networks have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import array_api_compat as api

from hessence._common.arrays import Array, floating, picked
from hessence.data.losses import PointwiseLoss
from hessence.networks.descent import Descent, WeightDescent
from hessence.spectra.hessian import Hessian


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
        return WeightDescent(self, x=x, y=y, loss=loss)

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
        return self._rebuild({name: picked(w, index) for name, w in self._weights.items()})

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
