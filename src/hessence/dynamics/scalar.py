"""Scalar networks through training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hessence._common.arrays import Array, Numbers, like, to_numpy
from hessence.data.losses import PointwiseLoss
from hessence.data.moments import Moments
from hessence.dynamics.reduced import Problem, Segment, State
from hessence.dynamics.trajectory import Trajectory
from hessence.networks.scalar.anatomy import phase_of
from hessence.networks.scalar.products import Gram, outlier_pair
from hessence.networks.scalar.scalar_linear import ScalarLinear
from hessence.networks.scalar.scalar_relu import ScalarReLU
from hessence.spectra.spectrum import Spectrum

MOST_SEGMENTS = 128
"""How many segments keep their weights; beyond that every other one is forgotten and replayed."""


class ScalarTrajectory(Trajectory):
    """A scalar network through training, held as segments of reduced coordinates.

    Attributes
    ----------
    outliers : array (steps + 1, 2); for ReLU (steps + 1, 2, 2)
        The outlier pair, larger first; for ReLU one pair for each of the cells +, −.
    bulk : array (steps + 1,); for ReLU (steps + 1, 2)
        The residual–input covariance δ: the bulk is at +δ and −δ.
    phase : sequence of str
        The phase of learning; for ReLU that of the cell that dictates the sharpness.
    """

    outliers: Array
    bulk: Array
    phase: Any

    def __init__(
        self,
        net: ScalarLinear | ScalarReLU,
        data: Moments,
        loss: str | PointwiseLoss,
        problem: Problem,
        steps: int,
    ) -> None:
        self.lr = problem.lr
        self._net, self._data, self._loss, self._problem = net, data, loss, problem
        start = State(to_numpy(net.w).astype(np.float64), to_numpy(net.v).astype(np.float64))
        self._segments: list[tuple[int, Segment]] = []
        numbers, units, position = [], [], 0
        with np.errstate(over="ignore", invalid="ignore"):
            for segment in problem.advance(start, steps):
                numbers.append(segment.numbers())
                units += [segment.masks.sum(axis=-1)] * (segment.steps + 1)
                self._remember(position, segment)
                position += segment.steps + 1
            self._measure(_join(numbers), np.stack(units))

    def _remember(self, position: int, segment: Segment) -> None:
        self._segments.append((position, segment))
        if len(self._segments) > MOST_SEGMENTS:
            self._segments = self._segments[::2]

    def _measure(self, numbers: Gram, units: Numbers) -> None:
        """Turn the Gram numbers (steps + 1, ..., C) into everything that is reported."""
        net, pieces = self._net, _objectives(self._net, self._data, self._loss)

        def evaluate(name: str) -> Numbers:
            return _per_product([getattr(piece, name) for piece in pieces], numbers.inner, net.w)

        slope, curvature = evaluate("slope"), evaluate("curvature")
        upper, lower = outlier_pair(numbers, slope, curvature)
        units = units.reshape(units.shape[0], *(1,) * (slope.ndim - 2), units.shape[-1])
        pair = np.where(units > 0, upper, -np.inf)
        bulk = np.where(units > 1, np.abs(slope), -np.inf)
        sharpness = np.maximum(pair, bulk)
        flat = units.sum(axis=-1) < net.w.shape[-1]
        largest = np.maximum(sharpness.max(axis=-1), np.where(flat, 0.0, -np.inf))
        loss = evaluate("value").sum(axis=-1)
        finite = np.isfinite(loss) & np.isfinite(largest)
        bad = ~finite.reshape(len(finite), -1).all(axis=-1)
        self.diverged = int(np.argmax(bad)) if bad.any() else None
        self.loss = like(loss, net.w)
        self._sharpness = like(largest, net.w)
        self.trace = like((curvature * numbers.norm).sum(axis=-1), net.w)
        outliers = np.stack([upper, lower], axis=-1)
        if not self._problem.cellwise:
            outliers, slope = outliers[..., 0, :], slope[..., 0]
        self.outliers = like(outliers, net.w)
        self.bulk = like(slope, net.w)
        self.phase = self._phases(numbers.inner, np.argmax(sharpness, axis=-1))

    def _phases(self, inner: Numbers, dictating: Numbers) -> Any:
        pieces = _objectives(self._net, self._data, "mse")
        columns = [like(inner[..., c], self._net.w) for c in range(len(pieces))]
        phases = np.stack([phase_of(g, p) for g, p in zip(columns, pieces, strict=True)], axis=-1)
        chosen = np.take_along_axis(phases, dictating[..., None], axis=-1)[..., 0]
        return chosen if chosen.ndim > 1 else tuple(chosen)

    @property
    def sharpness(self) -> Array:
        """The largest eigenvalue at each point."""
        return self._sharpness

    def plot(self, ax: Any = None) -> Any:
        """Draw the outliers, the bulk and the phases; needs ``hessence[plot]``."""
        from hessence.plotting.training import draw_trajectory

        return draw_trajectory(self, ax)

    def _network(self, step: int) -> ScalarLinear | ScalarReLU:
        position, segment = next(s for s in reversed(self._segments) if s[0] <= step)
        if step - position <= segment.steps:
            weights = segment.weights(step - position)
        else:
            *_, last = self._problem.advance(segment.start, step - position)
            weights = last.weights(-1)
        return type(self._net)(*(like(a, self._net.w) for a in weights))

    def _spectrum(self, net: ScalarLinear | ScalarReLU) -> Spectrum:
        return net.hessian(self._data, loss=self._loss).spectrum()


def train_scalar(
    net: ScalarLinear | ScalarReLU,
    x: Array,
    y: Array,
    lr: float,
    steps: int,
    momentum: float,
    loss: str | PointwiseLoss,
) -> ScalarTrajectory:
    """Train a scalar network; the arguments are those of ``gradient_descent``, checked."""
    data = net._data(x, y)
    cellwise = isinstance(net, ScalarReLU)
    if cellwise and net.batch_shape:
        raise ValueError(
            "net must be a single ReLU network, whose units may change cell on their own; "
            "train the networks of a batch one by one, as net[0]."
        )
    slopes = [piece.slope for piece in _objectives(net, data, loss)]
    problem = Problem(lambda inner: _per_product(slopes, inner, net.w), lr, momentum, cellwise)
    return ScalarTrajectory(net, data, loss, problem, steps)


def _objectives(
    net: ScalarLinear | ScalarReLU, data: Moments, loss: str | PointwiseLoss
) -> tuple[Any, ...]:
    objective = net._objective(data, loss)
    return (objective.plus, objective.minus) if isinstance(net, ScalarReLU) else (objective,)


def _per_product(
    functions: list[Callable[[Array], Array]], inner: Numbers, reference: Array
) -> Numbers:
    """Evaluate one function of the data's kind for each product, along the last axis."""
    columns = [f(like(inner[..., c], reference)) for c, f in enumerate(functions)]
    return np.stack([to_numpy(column) for column in columns], axis=-1).astype(np.float64)


def _join(parts: list[Gram]) -> Gram:
    names = ("inner", "norm", "plus", "minus")
    return Gram(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
