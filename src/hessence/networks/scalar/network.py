"""What scalar networks share: weights of one shape, samples as rows, and inner products."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import fields
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import array_api_compat as api

from hessence._common.arrays import Array, floating, require_same_shape, require_shape
from hessence.data.losses import PointwiseLoss, as_loss
from hessence.data.moments import Moments, as_moments
from hessence.data.objectives import Quadratic
from hessence.networks.descent import Descent, WeightDescent
from hessence.networks.network import Network
from hessence.networks.scalar._rounding import of_loss
from hessence.networks.scalar.gram import Gram, gram
from hessence.networks.scalar.products import Products


class UniformNetwork(Network):
    """A network whose weights are dataclass fields of one shape, with data x (n, D) and y (n, K).

    For the mean-squared error, `x` may be a :class:`~hessence.Moments`, without `y`.
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

    def descent(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Descent:
        """Return how gradient descent moves this network; the data are checked once."""
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


class ProductNetwork(UniformNetwork):
    """A network whose loss depends only on C inner products ⟨w_c, v_c⟩ of its weights."""

    @property
    @abstractmethod
    def _rows(self) -> tuple[Array, Array]:
        """The w and the v of each product, (..., C, m)."""

    @property
    def _names(self) -> list[str]:
        """What to append to the labels of each product."""
        return [""]

    @cached_property
    def _gram(self) -> Gram:
        return gram(*self._rows)

    @property
    def _coefficients(self) -> Array:
        return self._gram.inner

    def gradient(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Array:
        """Return the gradient of the loss, flat, in the order (v, w): that of ⟨w, v⟩ is (w, v)."""
        objective = self._objective(self._data(x, y), loss)
        gradient = objective.gradient(self._coefficients)[..., None]
        halves = [self._by_parameter(gradient * rows) for rows in self._rows]
        return api.array_namespace(gradient).concat(halves, axis=-1)

    def hessian(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Products:
        data, g = self._data(x, y), self._coefficients
        objective = self._objective(data, loss)
        return Products(
            *self._rows,
            objective.gradient(g),
            objective.hessian(g),
            self._gram,
            self._names,
            far_gradient=objective.far_gradient(g) if isinstance(objective, Quadratic) else None,
            derivatives=partial(of_loss, data, loss, g),
        )

    def _by_parameter(self, rows: Array) -> Array:
        """Arrange rows (..., C, m) as a vector with an entry for each v, or each w."""
        return api.array_namespace(rows).reshape(rows, (*self.batch_shape, -1))


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
