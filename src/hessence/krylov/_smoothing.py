r"""A density from quadrature rules of several random vectors: its mean, and how far it may be off.

For a unit vector v, uniform on the sphere, the quadratic form :math:`v^\top A v` of a symmetric A
of order n has the mean and the variance

.. math:: \frac{\operatorname{tr} A}{n}, \qquad
          \frac{2}{n + 2} \Bigl( \frac{\operatorname{tr} A^2}{n}
          - \frac{(\operatorname{tr} A)^2}{n^2} \Bigr),

and both traces follow from the same rules, with A = f(H). That is far better than the spread of a
few samples: at an isolated eigenvalue these are χ² with one degree of freedom, and their deviation
is small just when their mean is too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hessence._common.arrays import Numbers
from hessence._common.files import Saved
from hessence.krylov._operand import student

REACH = 5
"""How many widths away from its middle a Gaussian counts."""

MOST_POINTS = 2**15
"""The rules are compared at no more points than this."""

ENOUGH = 4
"""From this many samples on, their spread counts too."""


@dataclass(frozen=True, eq=False)
class Rules(Saved, kind="quadrature"):
    """Quadrature rules of all probes: Gauss' (probes, steps), and the anti-Gaussian ones."""

    nodes: Numbers
    weights: Numbers
    companion_nodes: Numbers
    companion_weights: Numbers
    size: float  # the order n of the operator; infinite for rules that are exact
    rounding: float  # how far rounding may have moved a node
    residuals: Numbers | None = None  # how far from each node the nearest eigenvalue may be

    shapes: ClassVar[dict[str, str]] = {
        "nodes": "p s", "weights": "p s", "companion_nodes": "p t", "companion_weights": "p t",
        "residuals": "p s",
    }  # fmt: skip

    @property
    def probes(self) -> int:
        """How many vectors there were."""
        return len(self.nodes)

    def standard_error(self, variance: Numbers) -> Numbers:
        """Return the standard error of tr f(H) / n, given the variance of f over the spectrum."""
        return np.asarray(np.sqrt(variance * 2 / (self.size + 2) / self.probes))

    def density(self, points: Numbers, width: float) -> tuple[Numbers, Numbers]:
        """Return the density smoothed by a Gaussian, and the half-width of its band."""
        samples = np.empty((self.probes, len(points)))
        square, moved = np.zeros(len(points)), np.zeros(len(points))
        for i in range(self.probes):
            distance, kernel = _kernel(points, self.nodes[i], width)
            samples[i] = self.weights[i] @ kernel
            np.abs(distance, out=distance)
            distance *= kernel
            moved += self.weights[i] @ distance
            kernel *= kernel
            square += self.weights[i] @ kernel
        mean = samples.mean(axis=0)
        variance = np.maximum(square / self.probes - mean**2, 0.0)
        spread = student(self.probes) * self.standard_error(variance)
        if self.probes >= ENOUGH:
            # Nodes that differ from vector to vector make the samples vary by more than that.
            deviation = samples.std(axis=0, ddof=1) / np.sqrt(self.probes)
            spread = np.maximum(spread, student(self.probes - 1) * deviation)
        moved *= self.rounding / width / self.probes
        return mean / width, (spread + self._misplaced(points, width) + moved) / width

    def ripple(self, width: float) -> tuple[Numbers, Numbers]:
        """Return points across the spectrum, and the difference of the rules' densities there.

        In units of 1 / width.
        """
        low = min(self.nodes.min(), self.companion_nodes.min()) - REACH * width
        high = max(self.nodes.max(), self.companion_nodes.max()) + REACH * width
        points = np.linspace(low, high, int(min(2 * (high - low) / width, MOST_POINTS)) + 2)
        signed = np.zeros(len(points))
        for nodes, weights, sign in (
            (self.nodes, self.weights, 1),
            (self.companion_nodes, self.companion_weights, -1),
        ):
            for node, weight in zip(nodes, weights, strict=True):
                heavy = weight > 0
                signed += sign * (weight[heavy] @ _kernel(points, node[heavy], width)[1])
        return points, signed / self.probes

    def _misplaced(self, points: Numbers, width: float) -> Numbers:
        """Return how far the quadrature may be off: the largest difference of the rules nearby.

        Where the nodes are too far apart for the width, both rules have gaps, and their difference
        vanishes inside. So nearby means: up to the next node, or as far away from a node as its
        eigenvalue can be.
        """
        if (self.reach == 0).all():
            return np.zeros(len(points))
        places, signed = self.ripple(width)
        around = np.zeros(len(places))
        for nodes, reach in zip(self.nodes, self.reach, strict=True):
            middles = (nodes[1:] + nodes[:-1]) / 2
            around += reach[np.searchsorted(middles, places)] / self.probes
        step = places[1] - places[0]
        most = _sliding_maximum(np.abs(signed), np.ceil(around / step).astype(np.int64))
        return np.asarray(np.interp(points, places, most, left=0.0, right=0.0))

    @property
    def reach(self) -> Numbers:
        """How far around each node its eigenvalues may be: the residual, or the nearest node."""
        if self.residuals is None:
            return np.zeros(self.nodes.shape)
        gaps = np.diff(self.nodes, axis=1, prepend=-np.inf, append=np.inf)
        return np.minimum(np.minimum(gaps[:, 1:], gaps[:, :-1]), self.residuals)


def _kernel(points: Numbers, nodes: Numbers, width: float) -> tuple[Numbers, Numbers]:
    distance = (points - nodes[:, None]) / width
    return distance, np.exp(-(distance**2) / 2) / np.sqrt(2 * np.pi)


def _sliding_maximum(values: Numbers, reach: Numbers) -> Numbers:
    """Return at every place the largest value no further away than its reach."""
    count = len(values)
    low = np.maximum(np.arange(count) - reach, 0)
    high = np.minimum(np.arange(count) + reach, count - 1)
    level = np.frexp(high - low + 1)[1] - 1  # of the largest power of two that fits
    tables = [values]
    for depth in range(int(level.max())):
        last, shift = tables[-1], 2**depth
        tables.append(np.maximum(last, np.append(last[shift:], np.zeros(min(shift, count)))))
    table = np.stack(tables)
    return np.asarray(np.maximum(table[level, low], table[level, high - 2**level + 1]))
