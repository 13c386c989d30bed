r"""Gradient descent of linear networks: singular value by singular value if they are aligned.

Alignment survives gradient descent: each chain's singular values follow
:math:`s_\ell \leftarrow s_\ell - \eta\,\omega \prod_{k \ne \ell} s_k` with
:math:`\omega = c \prod_k s_k - \tau` and c, τ the chain's parts of E[x xᵀ] and E[y xᵀ], on their
own. Other networks are trained on their weights, from the moments of the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, epsilon, like, to_numpy
from hessence.data.losses import PointwiseLoss
from hessence.data.matrix_objectives import MatrixQuadratic
from hessence.dynamics.replay import Replay
from hessence.dynamics.trajectory import Trajectory
from hessence.networks.linear.aligned import TOLERANCE, Chains, find_chains
from hessence.networks.linear.linear_hessian import LinearHessian
from hessence.networks.linear.linear_network import LinearNetwork
from hessence.networks.linear.pair_top import largest_eigenvalue
from hessence.spectra.spectrum import Spectrum


def train_linear(
    net: LinearNetwork,
    x: Array,
    y: Array,
    lr: float,
    steps: int,
    momentum: float,
    loss: str | PointwiseLoss,
) -> Trajectory:
    """Train a linear network; the arguments are those of ``gradient_descent``, checked."""
    objective = net._linear_objective(x, y, loss)
    if isinstance(objective, MatrixQuadratic) and not net.batch_shape:
        chains = find_chains(net.hessian(x, y))
        if chains.defect <= TOLERANCE * epsilon(net.product):
            return ModeTrajectory(net, objective, chains, lr, steps, momentum)
    return WeightTrajectory(net, objective, lr, steps, momentum)


class _LinearTrajectory(Trajectory):
    """What both kinds share: how to turn a state into a network."""

    method: str
    """How the steps were taken: ``"modes"`` or ``"moments"``."""

    def __init__(self, net: LinearNetwork, objective: Any, lr: float) -> None:
        self._net, self._objective, self.lr = net, objective, lr

    def _spectrum(self, net: LinearNetwork) -> Spectrum:
        return self._hessian(net).spectrum()

    def _hessian(self, net: LinearNetwork) -> LinearHessian:
        return net._hessian_of(self._objective)

    def _report(self, loss: list[Any], trace: list[Any]) -> None:
        reference = self._net.weights[0]
        losses, traces = np.asarray(loss), np.asarray(trace)
        bad = ~(np.isfinite(losses) & np.isfinite(traces)).reshape(len(losses), -1).all(axis=-1)
        self.diverged = int(np.argmax(bad)) if bad.any() else None
        self.loss, self.trace = like(losses, reference), like(traces, reference)


@dataclass(frozen=True)
class Modes:
    """Singular values (L, N) of the chains, and their velocities."""

    singular: Numbers
    velocity: Numbers


class ModeTrajectory(_LinearTrajectory):
    """An aligned linear network through training, singular value by singular value."""

    method = "modes"

    def __init__(
        self,
        net: LinearNetwork,
        objective: MatrixQuadratic,
        chains: Chains,
        lr: float,
        steps: int,
        momentum: float,
    ) -> None:
        super().__init__(net, objective, lr)
        self._chains, self._momentum = chains, momentum
        exists = chains.place >= 0
        self._crosses = (exists[1:] & exists[:-1]).astype(float)
        product = np.prod(chains.singular, axis=0)
        self._target = chains.variance * product - chains.slope
        start = Modes(chains.singular, np.zeros_like(chains.singular))
        size = start.singular.nbytes + start.velocity.nbytes
        self._states: Replay[Modes] = Replay(start, self._advance, steps, size)
        least = float(to_numpy(objective._solution[1]))
        losses, traces = [], []
        with np.errstate(over="ignore", invalid="ignore"):
            for state in self._states.run():
                losses.append(least + self._excess(state.singular))
                traces.append(self._trace(state.singular))
        self._report(losses, traces)

    def _advance(self, state: Modes) -> Modes:
        below, above = _products(state.singular)
        slope = self._variance * (above[0] * state.singular[0]) - self._target
        force = slope * below * above * self._crosses
        velocity = self._momentum * state.velocity + force
        return Modes(state.singular - self.lr * velocity, velocity)

    @property
    def _variance(self) -> Numbers:
        return self._chains.variance

    def _slope(self, singular: Numbers) -> Numbers:
        return np.asarray(self._variance * np.prod(singular, axis=0) - self._target)

    def _excess(self, singular: Numbers) -> float:
        """Return the loss above the least: Σ ω² / 2c."""
        slope, seen = self._slope(singular), self._variance > 0
        return float(np.sum(slope[seen] ** 2 / self._variance[seen])) / 2

    def _trace(self, singular: Numbers) -> float:
        below, above = _products(singular)
        first, last = self._chains.place[0] >= 0, self._chains.place[-1] >= 0
        inputs = (self._variance * below**2)[:, first].sum(axis=1)
        outputs = (above**2)[:, last].sum(axis=1)
        return float(inputs @ outputs)

    @cached_property
    def sharpness(self) -> Array:
        """The largest eigenvalue at each point, found among the pairs when first asked for."""
        values = []
        with np.errstate(over="ignore", invalid="ignore"):
            for step, state in enumerate(self._states.run()):
                if self.diverged is not None and step >= self.diverged:
                    values.append(np.nan)
                    continue
                values.append(largest_eigenvalue(self._moved(state)))
        return like(values, self._net.weights[0])

    def _moved(self, state: Modes) -> Chains:
        return replace(self._chains, singular=state.singular, slope=self._slope(state.singular))

    def _network(self, step: int) -> LinearNetwork:
        chains, state = self._chains, self._states[step]
        layers = {}
        for i, name in enumerate(self._net._weights):
            both = (chains.place[i] >= 0) & (chains.place[i + 1] >= 0)
            left = chains.bases[i + 1][:, chains.place[i + 1][both]]
            right = chains.bases[i][:, chains.place[i][both]]
            layers[name] = like((left * state.singular[i][both]) @ right.T, self._net.weights[0])
        return self._net._rebuild(layers)


@dataclass(frozen=True)
class Weights:
    """The weights of a network and their velocities."""

    layers: tuple[Array, ...]
    velocity: tuple[Array, ...] | None


class WeightTrajectory(_LinearTrajectory):
    """A linear network through training, on its weights and from the moments of the data."""

    method = "moments"

    def __init__(
        self, net: LinearNetwork, objective: Any, lr: float, steps: int, momentum: float
    ) -> None:
        super().__init__(net, objective, lr)
        self._momentum = momentum
        layers = tuple(like(to_numpy(w), w) for w in net.weights)
        size = 16 * sum(int(np.prod(w.shape)) for w in layers)
        self._states: Replay[Weights] = Replay(Weights(layers, None), self._advance, steps, size)
        losses, traces = [], []
        with np.errstate(over="ignore", invalid="ignore"):
            for state in self._states.run():
                H = self._carrier(state)
                losses.append(to_numpy(objective.value(H.before[-1])))
                traces.append(to_numpy(H.trace()))
        self._report(losses, traces)

    def _carrier(self, state: Weights) -> LinearHessian:
        """Return the Hessian at a state without looking for rounding in the slope."""
        product = state.layers[0]
        xp = api.array_namespace(product)
        for w in state.layers[1:]:
            product = xp.matmul(w, product)
        slope, bend = self._objective.slope(product), self._objective.bend(product)
        return LinearHessian(state.layers, slope, bend)

    def _advance(self, state: Weights) -> Weights:
        H = self._carrier(state)
        xp = api.array_namespace(H.slope)
        transpose = xp.matrix_transpose
        forces = tuple(
            xp.matmul(xp.matmul(transpose(H.after[i + 1]), H.slope), transpose(H.before[i]))
            for i in range(len(state.layers))
        )
        if state.velocity is not None:
            forces = tuple(
                self._momentum * old + new for old, new in zip(state.velocity, forces, strict=True)
            )
        layers = tuple(w - self.lr * f for w, f in zip(state.layers, forces, strict=True))
        return Weights(layers, forces if self._momentum else None)

    @cached_property
    def sharpness(self) -> Array:
        """The largest eigenvalue at each point, by Lanczos when first asked for."""
        values: list[Any] = []
        start = None
        shape = self._net.batch_shape
        for step, state in enumerate(self._finite_states()):
            if state is None:
                values.append(np.full(shape, np.nan))
                continue
            pairs = self._carrier(state).top(1, tol=1e-10, v0=start, rng=step)
            start = pairs.eigenvectors[..., 0] if not shape else pairs.eigenvectors
            values.append(to_numpy(pairs.eigenvalues)[..., 0])
        return like(np.asarray(values), self._net.weights[0])

    def _finite_states(self) -> Iterator[Weights | None]:
        states = self._states.run()
        for step in range(len(self)):
            if self.diverged is not None and step >= self.diverged:
                yield None
            else:
                yield next(states)

    def _network(self, step: int) -> LinearNetwork:
        layers = self._states[step].layers
        return self._net._rebuild(dict(zip(self._net._weights, layers, strict=True)))


def _products(singular: Numbers) -> tuple[Numbers, Numbers]:
    """Return Π_{k<ℓ} s_k and Π_{k>ℓ} s_k for every layer, (L, N) each."""
    ones = np.ones((1, singular.shape[1]))
    below = np.concatenate([ones, np.cumprod(singular[:-1], axis=0)])
    above = np.concatenate([np.cumprod(singular[:0:-1], axis=0)[::-1], ones])
    return below, above
