"""Figures, axes, colours, scales and legends that all pictures share.

Pictures need the extra ``hessence[plot]``. A picture reads numbers off the result it is given and
knows no class of the library, so that every result can import its own picture.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

COLOURS = ("#0b6e99", "#d1495b", "#66a182", "#edae49", "#6a4c93", "#8d6b48", "#2e4057")
GREY = "#7a7a7a"

MOST_RANGE = 1e4
"""A logarithmic scale of both signs shows what is up to so many times smaller than the largest."""


def new_figure(width: float = 7.0, height: float = 4.2, columns: int = 1) -> tuple[Any, list[Any]]:
    """Return a figure outside any global state, with its axes in one row."""
    figure_class = _matplotlib("matplotlib.figure").Figure
    figure = figure_class(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def one_axes(ax: Any) -> Any:
    """Return the axes to draw on, which are new ones if none are given."""
    if ax is not None:
        if not isinstance(ax, _matplotlib("matplotlib.axes").Axes):
            raise TypeError(f"ax must be one matplotlib Axes, got {type(ax).__name__}.")
        return ax
    _, ax = _matplotlib("matplotlib.pyplot").subplots(layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def next_colour(ax: Any) -> str:
    """Return the first of our colours that no line on the axes has; all taken, they start again."""
    to_hex = _matplotlib("matplotlib.colors").to_hex
    taken = [to_hex(line.get_color()) for line in ax.lines]
    return min(COLOURS, key=taken.count)


def linear_stretch(values: Any) -> float | None:
    """Return up to where a logarithmic scale of both signs is to be linear, a power of ten.

    It shows values down to a ten-thousandth of the largest. None means that values differ so little
    that a linear scale shows all of them.

    Examples
    --------
    >>> linear_stretch([-30.0, 0.5, 200.0]), linear_stretch([-3.0, 1e-17, 2.0])
    (0.1, 0.0001)
    >>> linear_stretch([-1.0, 2.0, 0.0]) is None
    True
    """
    sizes = np.abs(np.asarray(values, dtype=float))
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    if not sizes.size or sizes.max() <= 10 * sizes.min():
        return None
    least = max(sizes.min(), sizes.max() / MOST_RANGE)
    return float(10.0 ** np.floor(np.log10(least)))


def signed_scale(ax: Any, linear_width: float) -> None:
    """Make the vertical axis linear up to about `linear_width` and logarithmic beyond, smoothly.

    Ticks are zero and powers of ten that have room beside it. Call it after drawing.
    """
    ax.set_yscale("asinh", linear_width=linear_width)
    low, high = ax.get_ylim()
    largest = max(abs(low), abs(high), 10 * linear_width)
    first, last = math.ceil(math.log10(linear_width)), math.floor(math.log10(largest))
    sizes = [10.0**power for power in range(first, last + 1)]
    ax.set_yticks([*(-size for size in reversed(sizes)), 0, *sizes],
                  [*(f"$-10^{{{p}}}$" for p in range(last, first - 1, -1)), "0",
                   *(f"$10^{{{p}}}$" for p in range(first, last + 1))])  # fmt: skip
    ax.set_yticks([], minor=True)
    ax.set_ylim(low, high)


def legend_below(ax: Any) -> None:
    """Put the legend under the axes, of a figure whose layout makes room for it."""
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)


def place_legend(ax: Any, *, below: bool) -> None:
    """Put the legend under axes of our own, and inside those of others, which may have no room."""
    if below:
        legend_below(ax)
    else:
        ax.legend(loc="best", fontsize="small", framealpha=0.7, edgecolor="none")


def _matplotlib(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'hessence[plot]'.") from error
