"""How a network descends: the coordinates in which gradient descent moves it.

Every network answers ``net.descent(x, y, loss)`` with a :class:`Descent`, which
:func:`hessence.gradient_descent` drives. Networks of a known structure stay in few coordinates;
any other descends on its weights, by :class:`WeightDescent`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, constant, nonzero, to_numpy
from hessence.spectra.hessian import Hessian

Coordinates = tuple[Array, ...]


class Moving(NamedTuple):
    """Coordinates in motion; the velocity is None at rest."""

    coordinates: Coordinates
    velocity: Coordinates | None = None


@dataclass(frozen=True)
class Rule:
    r"""What a step makes of gradients: PyTorch's SGD, with sharpness-aware minimisation.

    With g the gradient at :math:`\theta + \rho\,\nabla\ell/\|\nabla\ell\|`, ρ = `sam`, a step is
    b ← momentum · b + g + weight_decay · θ, then θ ← θ − lr · b, from b = 0.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    sam: float = 0.0

    def step(
        self,
        state: Moving,
        gradient: Callable[[Coordinates], Coordinates],
        length: Callable[[Coordinates], Array],
    ) -> tuple[Moving, Coordinates]:
        """Take a step; return its end, and where the gradient was taken.

        `length` is the Euclidean length, in parameter space, of a change of the coordinates.
        """
        here = ahead = state.coordinates
        direction = gradient(here)
        if self.sam:
            far = length(direction)
            scale = self.sam / nonzero(far)
            ahead = tuple(c + _along(scale, c) * g for c, g in zip(here, direction, strict=True))
            direction = gradient(ahead)
        if self.weight_decay:
            direction = tuple(
                g + self.weight_decay * c for c, g in zip(here, direction, strict=True)
            )
        if state.velocity is not None:
            old = state.velocity
            direction = tuple(self.momentum * b + g for b, g in zip(old, direction, strict=True))
        moved = tuple(c - self.lr * b for c, b in zip(here, direction, strict=True))
        return Moving(moved, direction if self.momentum else None), ahead


class Descent(ABC):
    """Gradient descent of a network, or of a batch of networks, on one set of data.

    A state holds what one step needs; :class:`Moving` unless ``advance`` is overridden.

    Parameters
    ----------
    net : Network
        Where training starts.
    **arguments
        The data and the loss, as ``net.hessian`` takes them.

    Attributes
    ----------
    method : str
        What the steps are taken on, such as ``"weights"``.
    start : state
        Where training starts.
    state_bytes : int
        How much memory a state takes.
    reference : array
        An array whose kind, type and device the measurements get.
    """

    method: str
    start: Any
    state_bytes: int

    def __init__(self, net: Any, **arguments: Any) -> None:
        self._net, self._arguments = net, arguments
        self.reference: Array = constant(net._reference[1])

    @abstractmethod
    def network(self, state: Any) -> Any:
        """Return the network at a state."""

    def hessian(self, state: Any) -> Hessian:
        """Return the Hessian at a state."""
        found: Hessian = self.network(state).hessian(**self._arguments)
        return found

    @abstractmethod
    def measure(self, states: Iterable[Any]) -> dict[str, Any]:
        """Return what is reported of each state, by name: arrays with the states in front.

        ``"loss"`` and ``"trace"`` are among them, and ``"sharpness"`` where it costs little.
        Numbers that are not finite tell that training has diverged.
        """

    def gradient(self, coordinates: Coordinates) -> Coordinates:
        """Return what a step of gradient descent subtracts, for a learning rate of 1."""
        raise NotImplementedError

    def length(self, change: Coordinates) -> Array:
        """Return the length in parameter space of a change of the coordinates, for each network."""
        xp = api.array_namespace(*change)
        return xp.sqrt(sum(xp.sum(c * c, axis=-1) for c in change))

    def advance(self, state: Any, rule: Rule, batch: Self | None = None) -> Any:
        """Take one step, with gradients of `batch`: this descent on some of the samples."""
        return rule.step(state, (batch or self).gradient, self.length)[0]

    def reduced(self, rule: Rule, steps: int) -> Descent:
        """Return a descent in fewer coordinates, right for so many full-batch steps, or this."""
        return self

    def sharpness(self, states: Iterable[Any]) -> Numbers:
        """Return the largest eigenvalue at each state, where ``measure`` leaves it out."""
        return np.asarray([to_numpy(self.hessian(state).spectrum().sharpness) for state in states])


class WeightDescent(Descent):
    """Gradient descent on the weights themselves, for a network without a reduction."""

    method = "weights"

    def __init__(self, net: Any, **arguments: Any) -> None:
        super().__init__(net, **arguments)
        theta = constant(net.parameters())
        self.start = Moving((theta,))
        self.state_bytes = 16 * math.prod(theta.shape)

    def network(self, state: Moving) -> Any:
        """Return the network with the weights of a state."""
        return self._net.with_parameters(state.coordinates[0])

    def gradient(self, coordinates: Coordinates) -> Coordinates:
        """Return the gradient of the loss, NaN for networks that have diverged."""
        (theta,) = coordinates
        net, finite = self._finite(theta)
        xp = api.array_namespace(theta)
        gradient = constant(net.gradient(**self._arguments))
        return (xp.where(finite[..., None], gradient, theta * 0 + float("nan")),)

    def measure(self, states: Iterable[Moving]) -> dict[str, Numbers]:
        """Return loss and trace at each state."""
        losses, traces = [], []
        for state in states:
            net, finite = self._finite(state.coordinates[0])
            alive = to_numpy(finite)
            losses.append(np.where(alive, to_numpy(net.loss(**self._arguments)), np.nan))
            traces.append(np.where(alive, to_numpy(self._trace(net)), np.nan))
        return {"loss": np.asarray(losses), "trace": np.asarray(traces)}

    def _trace(self, net: Any) -> Array:
        return net.hessian(**self._arguments).trace()

    def _finite(self, theta: Array) -> tuple[Any, Array]:
        """Return the network, with zeros for weights that have diverged, and which have not."""
        xp = api.array_namespace(theta)
        finite = xp.all(xp.isfinite(theta), axis=-1)
        safe = xp.where(finite[..., None], theta, xp.zeros_like(theta))
        return self._net.with_parameters(safe), finite


def _along(scale: Array, coordinates: Array) -> Array:
    """Give the number of each network the dimensions of its coordinates."""
    missing = coordinates.ndim - np.ndim(scale)
    return scale[(..., *(None,) * missing)] if missing else scale
