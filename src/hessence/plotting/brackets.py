"""The picture of brackets: all eigenvalues in descending order, as a band."""

from __future__ import annotations

from typing import Any

import numpy as np

from hessence.plotting.axes import linear_stretch, next_colour, one_axes, signed_scale

POINTS = 2000
"""Of more eigenvalues than this, neighbours are drawn as one band that holds all of theirs."""


def draw_brackets(
    brackets: Any, ax: Any = None, *, label: str | None = None, color: Any = None
) -> Any:
    """Draw the band between lower and upper bounds over the share of eigenvalues above."""
    ax = one_axes(ax)
    color = next_colour(ax) if color is None else color
    starts = np.unique(np.linspace(0, len(brackets), POINTS + 1).astype(int)[:-1])
    # Descending bounds: of a run of neighbours the first has the highest, the last the lowest.
    ends = np.append(starts[1:], len(brackets)) - 1
    shares = np.append(starts, len(brackets)) / len(brackets)
    lower, upper = brackets.lower[ends], brackets.upper[starts]
    lower, upper = np.append(lower, lower[-1]), np.append(upper, upper[-1])
    name = "eigenvalues, bracketed" if label is None else label
    style = {"step": "post", "color": color, "alpha": 0.35, "linewidth": 0}
    ax.fill_between(shares, lower, upper, **style)
    ax.plot(shares, (lower + upper) / 2, drawstyle="steps-post", color=color, linewidth=1.2,
            label=name)  # fmt: skip
    stretch = linear_stretch(np.concatenate([lower, upper]))
    if stretch is not None:
        signed_scale(ax, stretch)
    ax.set_xlabel("share of eigenvalues above")
    ax.set_ylabel("eigenvalue")
    ax.margins(x=0)
    ax.legend(frameon=False)
    return ax
