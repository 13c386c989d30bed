"""What scalar networks share: weights of one shape, and samples as rows."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, Self

import array_api_compat as api

from hessence._common.arrays import Array, floating, require_same_shape, require_shape
from hessence.data.losses import PointwiseLoss, as_loss
from hessence.data.moments import Moments, as_moments
from hessence.networks.descent import Descent, WeightDescent
from hessence.networks.network import Network


class UniformNetwork(Network):
    """A network whose weights are dataclass fields of one shape, with data x (n, D) and y (n, K).

    Where `x` and `y` are asked for, the mean-squared error is also content with a
    :class:`~hessence.Moments` in place of `x` and no `y`.
    """

    order: ClassVar[tuple[str, ...]]
    """The names of the weights in the order of the parameter vector."""

    shape: ClassVar[tuple[str, ...]]
    """The shape of each weight, without batch dimensions."""

    @abstractmethod
    def _objective(self, data: Moments, loss: str | PointwiseLoss) -> Any:
        """Return the loss as a function of the coefficients that the network computes."""

    @property
    @abstractmethod
    def _coefficients(self) -> Array:
        """What the loss depends on, the batch of networks in front."""

    @property
    @abstractmethod
    def _dimensions(self) -> tuple[int, int]:
        """The numbers of inputs and of outputs."""

    @abstractmethod
    def _predict(self, inputs: Array) -> Array:
        """Return the predictions (..., n, K) for inputs (n, D)."""

    def loss(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Array:
        """Return the loss: the mean over samples, summed over outputs, of the pointwise loss.

        The default is the papers' ½ E‖f(x) − y‖²; see :mod:`hessence.data.losses` for others.
        """
        data, xp = self._data(x, y), api.array_namespace(self._reference[1])
        if data.samples is None:
            value = self._objective(data, loss).value(self._coefficients)
            return xp.sum(xp.reshape(value, (*self.batch_shape, -1)), axis=-1)
        inputs, targets = data.samples
        costs = as_loss(loss).value(self._predict(inputs), targets)
        return xp.sum(costs, axis=(-2, -1)) / data.n

    def gradient(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Array:
        """Return the gradient of the loss, flat, in parameter order: that of ⟨w, v⟩ is (w, v)."""
        xp, batch = api.array_namespace(self._reference[1]), self.batch_shape
        objective = self._objective(self._data(x, y), loss)
        gradient = self._by_unit(objective.gradient(self._coefficients))
        swapped = reversed(self._weights.values())
        return xp.concat([xp.reshape(gradient * a, (*batch, -1)) for a in swapped], axis=-1)

    def _by_unit(self, numbers: Array) -> Array:
        """Give every unit the number of its inner product."""
        return numbers[..., None]

    def descent(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Descent:
        """Return how gradient descent moves this network, with data that are checked once."""
        return WeightDescent(self, x=self._data(x, y), loss=loss)

    def _data(self, x: Any, y: Any) -> Moments:
        data = as_moments(x, y, self._reference)
        if data.dimensions != self._dimensions:
            inputs, targets = (f"(n, {n})" if n > 1 else "(n,)" for n in self._dimensions)
            wanted = f"have shape {inputs} and y {targets}"
            if self._dimensions == (1, 1):
                wanted = "be data with one input and one target a sample"
            raise ValueError(
                f"x must {wanted} for {type(self).__name__}, got (inputs, targets) = "
                f"{data.dimensions}."
            )
        return data

    def __post_init__(self) -> None:
        there = [f for f in fields(self) if f.default is not getattr(self, f.name)]  # type: ignore[arg-type]
        names = [f.name for f in there]
        _, *arrays = floating(**{name: getattr(self, name) for name in names})
        require_shape(names[0], arrays[0], self.shape, batch=True)
        require_same_shape(**dict(zip(names, arrays, strict=True)))
        for name, array in zip(names, arrays, strict=True):
            object.__setattr__(self, name, array)

    @property
    def _weights(self) -> dict[str, Array]:
        weights = {name: getattr(self, name) for name in self.order}
        return {name: weight for name, weight in weights.items() if weight is not None}

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
        return super()._data(x, y)

    @property
    def _dimensions(self) -> tuple[int, int]:
        return 1, 1
