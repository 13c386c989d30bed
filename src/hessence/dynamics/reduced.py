r"""Gradient descent of scalar networks in two numbers for each inner product.

The gradient of a loss of :math:`g = \langle w, v \rangle` is :math:`\ell'(g)` times (w, v)
swapped. So w + v is multiplied by :math:`1 - \eta\ell'(g)` and w − v by :math:`1 + \eta\ell'(g)`,
and heavy-ball momentum, from rest, keeps to the same two lines. With their multiples α and β since
the start of a segment,

.. math:: g = \tfrac{1}{2} g_0 (\alpha^2 + \beta^2) + \tfrac{1}{4} N_0 (\alpha^2 - \beta^2), \quad
          N = \|w\|^2 + \|v\|^2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hessence._common.arrays import Numbers
from hessence.networks.scalar.products import Gram, gram

EDGE = 1e-12
"""How close, in radians, a unit may come to changing sign before the weights are consulted."""


@dataclass(frozen=True)
class State:
    """Weights (..., m) in one moment, with their velocities unless these are zero."""

    w: Numbers
    v: Numbers
    velocity: tuple[Numbers, Numbers] | None = None


@dataclass(frozen=True)
class Segment:
    """Consecutive steps along two lines for each of C products.

    Attributes
    ----------
    start : State
        Where the segment begins.
    masks : array (C, m)
        1 where a unit belongs to a product, else 0; a dead unit belongs to none.
    multiples : array (steps + 1, ..., C, 2)
        What w + v and w − v have been multiplied with since the start.
    velocities : array (..., C, 2)
        The velocities after the last step, as multiples of the same two vectors.
    """

    start: State
    masks: Numbers
    multiples: Numbers
    velocities: Numbers

    @property
    def steps(self) -> int:
        """How many steps the segment takes."""
        return len(self.multiples) - 1

    def numbers(self) -> Gram:
        """Return the Gram numbers of every product at every point, (steps + 1, ..., C)."""
        first = _product_gram(self.start, self.masks)
        alpha, beta = self.multiples[..., 0] ** 2, self.multiples[..., 1] ** 2
        plus, minus = alpha * first.plus, beta * first.minus
        return Gram(_inner(first, alpha, beta), (plus + minus) / 2, plus, minus)

    def weights(self, step: int) -> tuple[Numbers, Numbers]:
        """Return w and v after some steps of this segment."""
        return self._spread(self.multiples[step], dead=1.0)

    def end(self) -> State:
        """Return the state after the last step."""
        moving = bool(np.any(self.velocities))
        velocity = self._spread(self.velocities, dead=0.0) if moving else self.start.velocity
        return State(*self.weights(-1), velocity)

    def _spread(self, pairs: Numbers, dead: float) -> tuple[Numbers, Numbers]:
        """Give every unit its product's pair (α, β), and dead units (dead, dead)."""
        alpha, beta = np.moveaxis(pairs, -1, 0) @ self.masks + dead * (1 - self.masks.sum(axis=0))
        mean, half = (alpha + beta) / 2, (alpha - beta) / 2
        return mean * self.start.w + half * self.start.v, half * self.start.w + mean * self.start.v


@dataclass(frozen=True)
class Problem:
    """A loss, an optimiser, and whether units see cells or all samples."""

    slopes: Callable[[Numbers], Numbers]
    lr: float
    momentum: float
    cellwise: bool

    def masks(self, state: State) -> Numbers:
        """Return which units belong to which product."""
        if not self.cellwise:
            return np.ones((1, state.w.shape[-1]))
        return np.stack([state.v > 0, state.v < 0]).astype(float)

    def advance(self, state: State, steps: int) -> Iterator[Segment]:
        """Take `steps` steps, in segments; between two segments lies one step on the weights."""
        while True:
            segment = self._glide(state, steps)
            yield segment
            steps -= segment.steps
            if steps == 0:
                return
            state = self._leap(segment.end())
            steps -= 1

    def _glide(self, state: State, steps: int) -> Segment:
        """Follow the two lines as long as no unit changes sign."""
        masks = self.masks(state)
        first = _product_gram(state, masks)
        multiples = np.ones((*first.inner.shape, 2))
        velocities = np.zeros_like(multiples)
        points = [multiples]
        if state.velocity is None:
            bounds = _sign_cone(state, masks) if self.cellwise else None
            for _ in range(steps):
                squares = multiples**2
                slope = self.slopes(_inner(first, squares[..., 0], squares[..., 1]))
                force = slope[..., None] * _OPPOSITE * multiples
                faster = self.momentum * velocities + force
                farther = multiples - self.lr * faster
                if bounds is not None and _leaves(farther, *bounds):
                    break
                velocities, multiples = faster, farther
                points.append(multiples)
        kept = velocities if self.momentum else np.zeros_like(velocities)
        return Segment(state, masks, np.stack(points), kept)

    def _leap(self, state: State) -> State:
        """Take one step on the weights themselves."""
        masks = self.masks(state)
        slope = self.slopes(_product_gram(state, masks).inner) @ masks
        force = slope * state.v, slope * state.w
        if self.momentum and state.velocity is not None:
            old_w, old_v = state.velocity
            force = self.momentum * old_w + force[0], self.momentum * old_v + force[1]
        w, v = state.w - self.lr * force[0], state.v - self.lr * force[1]
        return State(w, v, force if self.momentum else None)


_OPPOSITE = np.asarray([1.0, -1.0])
"""The gradient pulls w + v and pushes w − v."""


def _product_gram(state: State, masks: Numbers) -> Gram:
    return gram(masks * state.w[..., None, :], masks * state.v[..., None, :])


def _inner(first: Gram, alpha_squared: Numbers, beta_squared: Numbers) -> Numbers:
    mean, gap = (alpha_squared + beta_squared) / 2, (alpha_squared - beta_squared) / 4
    return np.asarray(first.inner * mean + first.norm * gap)


def _sign_cone(state: State, masks: Numbers) -> tuple[Numbers, Numbers]:
    """Return the angles of (α, β), measured from (1, 1), between which all v keep their signs.

    v_j keeps its sign while (α, β) has a positive product with sign(v_j) · (w_j + v_j, v_j − w_j):
    a half-plane for each unit, and a cone for all units of a cell.
    """
    signs = np.sign(state.v)
    x, y = signs * (state.w + state.v), signs * (state.v - state.w)
    normals = np.arctan2(y - x, x + y)
    inside = masks > 0
    low = np.where(inside, normals, -np.pi / 2).max(axis=-1) - np.pi / 2
    high = np.where(inside, normals, np.pi / 2).min(axis=-1) + np.pi / 2
    return low, high


def _leaves(multiples: Numbers, low: Numbers, high: Numbers) -> bool:
    alpha, beta = multiples[..., 0], multiples[..., 1]
    angle = np.arctan2(beta - alpha, alpha + beta)
    within = (low + EDGE < angle) & (angle < high - EDGE) & ((alpha != 0) | (beta != 0))
    return not bool(np.all(within))
