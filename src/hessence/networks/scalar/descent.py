r"""Gradient descent of scalar networks in two numbers for each inner product.

The gradient of a loss of :math:`g = \langle w, v \rangle` is :math:`\ell'(g)` times (w, v)
swapped. So w + v is multiplied by :math:`1 - \eta\ell'(g)` and w − v by :math:`1 + \eta\ell'(g)`,
and heavy-ball momentum, from rest, keeps to the same two lines. With their multiples α and β since
the start,

.. math:: g = \tfrac14(\alpha^2 \|w + v\|^2 - \beta^2 \|w - v\|^2)
            = \tfrac12 g_0 (\alpha^2 + \beta^2) + \tfrac14 N_0 (\alpha^2 - \beta^2), \quad
          N = \|w\|^2 + \|v\|^2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from hessence._common.arrays import Array, Numbers, like, to_numpy
from hessence.data.losses import PointwiseLoss
from hessence.data.moments import Moments
from hessence.networks.descent import Descent
from hessence.networks.scalar.anatomy import phase_of
from hessence.networks.scalar.gram import Gram, gram, outlier_pair

EDGE = 1e-12
"""How close, in radians, a unit may come to changing sign before the weights are consulted."""

OPPOSITE = np.asarray([1.0, -1.0])
"""A step subtracts a multiple of w + v and adds the same multiple of w − v."""


def gram_along(first: Gram, multiples: Numbers) -> Gram:
    """Return the Gram numbers where w ± v have been multiplied by (..., 2) numbers."""
    alpha, beta = multiples[..., 0] ** 2, multiples[..., 1] ** 2
    # A line of length zero stays there, however large its multiple has become.
    plus = np.where(first.plus == 0, 0.0, alpha * first.plus)
    minus = np.where(first.minus == 0, 0.0, beta * first.minus)
    # Near w = ±v the shorter line's length is lost in g₀ and N₀; else they cancel less.
    near = 16 * np.minimum(first.plus, first.minus) < first.norm
    even = first.inner * (alpha + beta) / 2 + first.norm * (alpha - beta) / 4
    return Gram(np.where(near, (plus - minus) / 4, even), (plus + minus) / 2, plus, minus)


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights (..., m) that reduced steps start from.

    Attributes
    ----------
    masks : array (C, m)
        1 where a unit belongs to a product, else 0; a dead unit belongs to none.
    velocity : pair of arrays (..., m), optional
        The velocities of w and v; None at rest.
    """

    w: Numbers
    v: Numbers
    masks: Numbers
    velocity: tuple[Numbers, Numbers] | None = None

    @cached_property
    def numbers(self) -> Gram:
        """The Gram numbers of each product, (..., C)."""
        return gram(self.masks * self.w[..., None, :], self.masks * self.v[..., None, :])

    def spread(self, pairs: Numbers, dead: float) -> tuple[Numbers, Numbers]:
        """Return the w and the v with w ± v times (..., C, 2); dead units are scaled by `dead`."""
        alpha, beta = np.moveaxis(pairs, -1, 0) @ self.masks + dead * (1 - self.masks.sum(axis=0))
        mean, half = (alpha + beta) / 2, (alpha - beta) / 2
        return mean * self.w + half * self.v, half * self.w + mean * self.v

    @cached_property
    def _cone(self) -> tuple[Numbers, Numbers]:
        """The angles of (α, β), measured from (1, 1), between which all v keep their signs.

        v_j keeps its sign while (α, β) has a positive product with
        sign(v_j) · (w_j + v_j, v_j − w_j): a half-plane for each unit, a cone for a cell.
        """
        signs = np.sign(self.v)
        x, y = signs * (self.w + self.v), signs * (self.v - self.w)
        normals = np.arctan2(y - x, x + y)
        inside = self.masks > 0
        low = np.where(inside, normals, -np.pi / 2).max(axis=-1) - np.pi / 2
        high = np.where(inside, normals, np.pi / 2).min(axis=-1) + np.pi / 2
        return low, high

    def keep_signs(self, multiples: Numbers) -> bool:
        """Tell whether every v has its sign where w ± v are multiplied by these numbers."""
        (low, high), (alpha, beta) = self._cone, np.moveaxis(multiples, -1, 0)
        angle = np.arctan2(beta - alpha, alpha + beta)
        within = (low + EDGE < angle) & (angle < high - EDGE) & ((alpha != 0) | (beta != 0))
        return bool(np.all(within))


class OnLines(NamedTuple):
    """A point on the lines through some weights, and the velocity of its multiples."""

    weights: Weights
    multiples: Numbers
    velocity: Numbers


class ScalarDescent(Descent):
    """Gradient descent of a scalar network along its lines.

    With `cells`, units with v > 0 and with v < 0 see different samples.
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
        w, v = (to_numpy(a).astype(np.float64) for a in (net.w, net.v))
        self.start = self._at(w, v)
        # Each step that changes a sign leaves weights and velocities of its own behind.
        self.state_bytes = (32 * self.start.weights.w.size) if cells else 0
        self.state_bytes += 2 * self.start.multiples.nbytes

    def advance(self, state: OnLines, lr: float, momentum: float) -> OnLines:
        """Take one step along the lines, or on the weights where a unit changes its sign."""
        weights = state.weights
        if weights.velocity is None:
            gradient = self._evaluate(
                "gradient", gram_along(weights.numbers, state.multiples).inner
            )
            velocity = momentum * state.velocity
            velocity = velocity + gradient[..., None] * OPPOSITE * state.multiples
            multiples = state.multiples - lr * velocity
            if not self._cells or weights.keep_signs(multiples):
                return OnLines(weights, multiples, velocity)
        return self._step_on_weights(state, lr, momentum)

    def _step_on_weights(self, state: OnLines, lr: float, momentum: float) -> OnLines:
        weights = state.weights
        w, v = weights.spread(state.multiples, dead=1.0)
        here = self._at(w, v).weights
        gradient = self._evaluate("gradient", here.numbers.inner) @ here.masks
        old = weights.velocity or weights.spread(state.velocity, dead=0.0)
        velocity = momentum * old[0] + gradient * v, momentum * old[1] + gradient * w
        return self._at(w - lr * velocity[0], v - lr * velocity[1], velocity if momentum else None)

    def _at(
        self, w: Numbers, v: Numbers, velocity: tuple[Numbers, Numbers] | None = None
    ) -> OnLines:
        masks = np.stack([v > 0, v < 0]) if self._cells else np.ones((1, w.shape[-1]))
        multiples = np.ones((*w.shape[:-1], len(masks), 2))
        weights = Weights(w, v, masks.astype(float), velocity)
        return OnLines(weights, multiples, np.zeros_like(multiples))

    def network(self, state: OnLines) -> Any:
        """Return the network at a state."""
        w, v = state.weights.spread(state.multiples, dead=1.0)
        return self._net._rebuild({"w": like(w, self.reference), "v": like(v, self.reference)})

    def measure(self, states: Iterable[OnLines]) -> dict[str, Any]:
        """Return loss, trace, sharpness, outliers, bulk and phase at each state."""
        parts, units = [], []
        for weights, run in groupby(states, key=lambda state: state.weights):
            multiples = np.stack([state.multiples for state in run])
            parts.append(gram_along(weights.numbers, multiples))
            units += [weights.masks.sum(axis=-1)] * len(multiples)
        numbers = Gram(*map(np.concatenate, zip(*parts, strict=True)))
        return self._report(numbers, np.stack(units))

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
        """Return a derivative of each product's loss, along the last axis."""
        columns: Sequence[Array] = [
            getattr(objective, name)(like(inner[..., c], self.reference))
            for c, objective in enumerate(self._objectives)
        ]
        return np.stack([to_numpy(c) for c in columns], axis=-1).astype(np.float64)
