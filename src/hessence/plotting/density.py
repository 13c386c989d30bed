"""The picture of a spectral density."""

from __future__ import annotations

from typing import Any

import numpy as np

from hessence._common.arrays import to_numpy
from hessence.plotting.axes import next_colour, one_axes

BAND = "95 % band"
TICK = "|"
FEW, CROWD = 3, 10
"""Up to a few eigenvalues in a fiftieth of the picture keep full marks. The marks of more than a
crowd would merge into a bar, and are drawn thin."""


def draw_density(
    density: Any, ax: Any = None, *, eigenvalues: Any = None, label: str | None = None,
    color: Any = None,
) -> Any:  # fmt: skip
    """Draw a smoothed density and its band on a logarithmic scale.

    Values below a tenth of a single eigenvalue's peak are cut off: only the Gaussian's tail is
    there. Known eigenvalues are marked along the bottom. Axes that have a density already show both
    whole, each in its own colour.
    """
    ax = one_axes(ax)
    color = next_colour(ax) if color is None else color
    before = ax.get_ylim() if ax.has_data() and ax.get_yscale() == "log" else None
    floor = 0.04 / (density.size * density.width)
    low = np.maximum(density.values - density.band, floor / 10)
    high = np.maximum(density.values + density.band, floor / 10)
    if not density.complete:
        named = BAND if label is None else f"{label}, {BAND}"
        again = named in ax.get_legend_handles_labels()[1]
        style = {"color": color, "alpha": 0.25, "linewidth": 0}
        ax.fill_between(density.grid, low, high, label=None if again else named, **style)
    name = f"density, smoothed by {density.width:.2g}" if label is None else label
    middle = np.maximum(density.values, floor / 10)
    ax.plot(density.grid, middle, color=color, linewidth=1.2, label=name)
    if eigenvalues is not None:
        name = "eigenvalues" if label is None else f"{label}, eigenvalues"
        _mark(ax, to_numpy(eigenvalues).ravel(), name)
    ax.set_yscale("log")
    bottom, top = floor, max(3 * float((density.values + density.band).max()), 10 * floor)
    if before is not None:
        bottom, top = min(bottom, *before), max(top, *before)
    ax.set_ylim(bottom, top)
    ax.set_xlabel("eigenvalue")
    ax.set_ylabel("density")
    ax.margins(x=0)
    ax.legend(frameon=False)
    return ax


def _mark(ax: Any, values: Any, label: str) -> None:
    """Mark eigenvalues along the bottom, above those that are marked there already.

    Where marks would merge into a bar, they are thin and translucent.
    """
    marks = [line.get_ydata() for line in ax.lines if line.get_marker() == TICK]
    rows = {float(heights[0]) for heights in marks if len(heights)}
    height = 0.03 + 0.05 * len(rows)
    neighbours = _neighbours(values)
    crowded = (neighbours > FEW) & (neighbours.max(initial=0) > CROWD)
    style = {"color": next_colour(ax), "linestyle": "none", "marker": TICK, "markersize": 9,
             "transform": ax.get_xaxis_transform()}  # fmt: skip
    if crowded.any():
        thin = {"markeredgewidth": 0.5, "alpha": 0.4}
        ax.plot(values[crowded], np.full(crowded.sum(), height), **style, **thin)
    alone = values[~crowded] if not crowded.all() else np.asarray([np.nan])
    ax.plot(alone, np.full(alone.size, height), label=label, **style)


def _neighbours(values: Any) -> Any:
    """Return how many values lie within a fiftieth of the range around each, itself included."""
    ascending = np.sort(values)
    reach = np.ptp(values) / 100 if values.size else 0.0
    return np.searchsorted(ascending, values + reach, "right") - np.searchsorted(
        ascending, values - reach
    )
