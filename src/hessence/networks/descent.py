"""How a network descends: the coordinates in which gradient descent moves it.

Every network answers ``net.descent(x, y, loss)`` with a :class:`Descent`, which
:func:`hessence.gradient_descent` drives. Networks of a known structure stay in few coordinates;
any other descends on its weights, by :class:`WeightDescent`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, constant, to_numpy
from hessence.spectra.operators import Hessian


class Moving(NamedTuple):
    """Coordinates in motion; the velocity is None at rest."""

    coordinates: tuple[Array, ...]
    velocity: tuple[Array, ...] | None = None


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

    def gradient(self, coordinates: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return what a step of gradient descent subtracts, for a learning rate of 1."""
        raise NotImplementedError

    def advance(self, state: Any, lr: float, momentum: float) -> Any:
        """Take one step, b ← momentum · b + gradient, then coordinates ← coordinates − lr · b."""
        step = self.gradient(state.coordinates)
        if state.velocity is not None:
            step = tuple(momentum * b + g for b, g in zip(state.velocity, step, strict=True))
        moved = tuple(c - lr * b for c, b in zip(state.coordinates, step, strict=True))
        return Moving(moved, step if momentum else None)

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

    def gradient(self, coordinates: tuple[Array, ...]) -> tuple[Array, ...]:
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
