"""Gradient descent of scalar networks: two lengths for each inner product, at any width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from hessence._common.arrays import Array, Numbers, like, to_double, to_numpy
from hessence.data.losses import PointwiseLoss
from hessence.data.moments import Moments
from hessence.networks.descent import Coordinates, Descent, Moving, Rule
from hessence.networks.scalar.anatomy import phase_of
from hessence.networks.scalar.gram import Gram, outlier_pair
from hessence.networks.scalar.lines import OPPOSITE, Lines, gram_of, squared_length

EDGE = 1e-12
"""How close, in radians, a unit may come to changing sign before the weights are consulted."""


class CellLines(Lines):
    """The lines of a ReLU network: units with v > 0, those with v < 0, and dead ones."""

    @cached_property
    def _cone(self) -> tuple[Numbers, Numbers]:
        """The angles of (α, β), measured from (1, 1), between which all v keep their signs.

        v_j keeps its sign while (α, β) has a positive product with
        sign(v_j) · (w_j + v_j, v_j − w_j): a half-plane for each unit, a cone for a cell.
        """
        signs = np.sign(self.v)
        x, y = signs * (self.w + self.v), signs * (self.v - self.w)
        normals = np.arctan2(y - x, x + y)
        inside = self.masks[:2] > 0
        low = np.where(inside, normals, -np.pi / 2).max(axis=-1) - np.pi / 2
        high = np.where(inside, normals, np.pi / 2).min(axis=-1) + np.pi / 2
        return low, high

    def keep_signs(self, lengths: Numbers) -> bool:
        """Tell whether every v has its sign where w ± v have these lengths."""
        (low, high), (alpha, beta) = self._cone, np.moveaxis(self.multiples(lengths)[:2], -1, 0)
        angle = np.arctan2(beta - alpha, alpha + beta)
        within = (low + EDGE < angle) & (angle < high - EDGE) & ((alpha != 0) | (beta != 0))
        return bool(np.all(within))


class OnLines(NamedTuple):
    """A point on some lines; `free` is the velocity of (w, v) where that is off the lines."""

    lines: Lines
    moving: Moving
    free: Coordinates | None = None


class ScalarDescent(Descent):
    """Gradient descent of a scalar network along its lines.

    With `cells`, units with v > 0 and with v < 0 see different samples, and dead ones none.
    """

    method = "lines"

    def __init__(
        self, net: Any, data: Moments, loss: str | PointwiseLoss, *, cells: bool = False
    ) -> None:
        super().__init__(net, x=data, loss=loss)
        self._cells = cells
        self._objectives, self._squared = (
            getattr(objective, "cells", (objective,))
            for objective in (net._objective(data, loss), net._objective(data, "mse"))
        )
        w, v = map(to_double, (net.w, net.v))
        self.start = self._at((w, v))
        # Units without samples have flat directions only, no outliers and no bulk.
        self._seen = np.asarray(getattr(net._objective(data, "mse"), "populated", (True,)))
        # Each step that changes a sign leaves weights and velocities of its own behind.
        self.state_bytes = (32 * w.size if cells else 0) + 2 * self.start.lines.lengths.nbytes

    def gradient(self, coordinates: Coordinates) -> Coordinates:
        """Return ±ℓ′(g) times the lengths of w ± v."""
        (lengths,) = coordinates
        gradient = self._evaluate("gradient", gram_of(lengths).inner)
        return (gradient[..., None] * OPPOSITE * lengths,)

    def length(self, change: Coordinates) -> Numbers:
        """Return how far (w, v) moves."""
        return np.asarray(np.sqrt(squared_length(change[0]).sum(axis=-1)))

    def advance(self, state: OnLines, rule: Rule, batch: Any = None) -> OnLines:
        """Take one step along the lines, or on the weights where a unit changes its sign."""
        source, lines = batch or self, state.lines
        if state.free is None:
            moved, ahead = rule.step(state.moving, source.gradient, self.length)
            points = (*moved.coordinates, *ahead)
            if not isinstance(lines, CellLines) or all(map(lines.keep_signs, points)):
                return OnLines(lines, moved)
        old = state.free
        if old is None and state.moving.velocity is not None:
            old = lines.spread(*state.moving.velocity)
        weights = Moving(lines.spread(*state.moving.coordinates), old)
        moved, _ = rule.step(weights, source._on_weights, super().length)
        return self._at(moved.coordinates, moved.velocity)

    def _on_weights(self, weights: Coordinates) -> Coordinates:
        """Return the gradient in w and v."""
        w, v = weights
        lines = self._at(weights).lines
        gradient = self._evaluate("gradient", gram_of(lines.lengths).inner) @ lines.masks
        return gradient * v, gradient * w

    def _at(self, weights: Coordinates, velocity: Coordinates | None = None) -> OnLines:
        w, v = weights
        lines = (
            CellLines(w, v, np.stack([v > 0, v < 0, v == 0]).astype(float))
            if self._cells
            else Lines(w, v, np.ones((1, w.shape[-1])))
        )
        return OnLines(lines, Moving((lines.lengths,)), velocity)

    def network(self, state: OnLines) -> Any:
        """Return the network at a state."""
        w, v = state.lines.spread(*state.moving.coordinates)
        return self._net._rebuild({"w": like(w, self.reference), "v": like(v, self.reference)})

    def measure(self, states: Iterable[OnLines]) -> dict[str, Any]:
        """Return loss, trace, sharpness, outliers, bulk and phase at each state."""
        lengths, units = [], []
        for lines, run in groupby(states, key=lambda state: state.lines):
            own = [state.moving.coordinates[0] for state in run]
            lengths += own
            units += [lines.masks.sum(axis=-1)] * len(own)
        count = len(self._objectives)
        numbers = gram_of(np.stack(lengths)[..., :count, :])
        return self._report(numbers, self._seen * np.stack(units)[:, :count])

    def _report(self, numbers: Gram, units: Numbers) -> dict[str, Any]:
        """Turn Gram numbers (steps + 1, ..., C) into what is reported, units (steps + 1, C)."""
        gradient = self._evaluate("gradient", numbers.inner)
        hessian = self._evaluate("hessian", numbers.inner)
        upper, lower = outlier_pair(numbers, gradient, hessian)
        units = units.reshape(units.shape[0], *(1,) * (gradient.ndim - 2), units.shape[-1])
        pair = np.where(units > 0, upper, -np.inf)
        sharpness = np.maximum(pair, np.where(units > 1, np.abs(gradient), -np.inf))
        flat = units.sum(axis=-1) < self.reference.shape[-1]
        # A cell without units has no outliers, and one with a single unit no bulk.
        outliers = np.where(units[..., None] > 0, np.stack([upper, lower], axis=-1), np.nan)
        bulk = np.where(units > 1, gradient, np.nan)
        return {
            "loss": self._evaluate("value", numbers.inner).sum(axis=-1),
            "trace": (hessian * numbers.norm).sum(axis=-1),
            "sharpness": np.maximum(sharpness.max(axis=-1), np.where(flat, 0.0, -np.inf)),
            "outliers": outliers if self._cells else outliers[..., 0, :],
            "bulk": bulk if self._cells else bulk[..., 0],
            "phase": self._phases(numbers.inner, np.argmax(sharpness, axis=-1)),
        }

    def _phases(self, inner: Numbers, dictating: Numbers) -> Any:
        phases = [
            phase_of(like(inner[..., c], self.reference), objective)
            for c, objective in enumerate(self._squared)
        ]
        chosen = np.take_along_axis(np.stack(phases, axis=-1), dictating[..., None], axis=-1)
        return chosen[..., 0] if chosen.ndim > 2 else tuple(chosen[..., 0])

    def _evaluate(self, name: str, inner: Numbers) -> Numbers:
        """Return a derivative of each product's loss, along the last axis; 0 for dead units."""
        columns: Sequence[Array] = [
            getattr(objective, name)(like(inner[..., c], self.reference))
            for c, objective in enumerate(self._objectives)
        ]
        columns = [to_numpy(c) for c in columns]
        columns += [np.zeros_like(columns[0])] * (inner.shape[-1] - len(columns))
        return np.stack(columns, axis=-1).astype(np.float64)
