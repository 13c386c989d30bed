"""Pictures of spectra: one, several against a parameter, that of every layer, and brackets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hessence._common.arrays import to_numpy
from hessence.plotting.axes import (
    COLOURS,
    GREY,
    linear_stretch,
    next_colour,
    one_axes,
    signed_scale,
)

MARKERS = {"outlier": "o", "bulk": "s"}

MOST_LABELS = 8
"""More labels than this would fill a picture with their names."""

ROW = 0.24
"""The height of a layer's row, in inches."""

POINTS = 2000
"""Beyond this many eigenvalues, neighbours share one band that holds all of theirs."""


def draw_spectrum(spectrum: Any, ax: Any = None) -> Any:
    """Draw all eigenvalues in descending order, one run of equal values for each eigenspace.

    The colour shows the tail of the label (the cell, the input, …), the marker its head (outlier or
    bulk); with many labels, the colour shows the head. The cost depends on the number of
    eigenspaces, not of eigenvalues.
    """
    if to_numpy(spectrum.values).ndim > 1:
        raise ValueError("a picture shows one network; pick one of the batch first.")
    ax = one_axes(ax)
    many = len({space.label for space in spectrum.spaces}) > MOST_LABELS
    parts = {space.label: space.label.partition("/") for space in spectrum.spaces}
    kinds = sorted({head if many else tail for head, _, tail in parts.values()})
    colour = {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)}
    # One line for all of a name, as lines of their own would take a millisecond each.
    runs: dict[tuple[str, str, str, bool], list[Any]] = {}
    start = 0
    for space in spectrum.spaces:
        head, _, tail = parts[space.label]
        name = head if many else space.label.replace("/", ", ")
        count, value = space.multiplicity, float(to_numpy(space.value))
        shade = GREY if head == "flat" else colour[head if many else tail]
        # Up to a hundred copies are shown one by one, more as a line, with a gap behind it.
        wide = count > 100
        ranks = np.asarray([start + 1, start + count, np.nan])
        ranks = ranks if wide else np.arange(start + 1, start + count + 1)
        run = np.stack([ranks, np.full(ranks.size, value)])
        runs.setdefault((name, head, shade, wide), []).append(run)
        start += count
    seen: set[str] = set()
    for (name, head, shade, wide), points in runs.items():
        size, face = (8, shade) if head == "outlier" else (5, "white")
        ax.plot(*np.concatenate(points, axis=1), color=shade, linewidth=3,
                linestyle="-" if wide else "none", marker=MARKERS.get(head, "o"),
                markersize=size, markerfacecolor=face,
                label=None if name in seen else name)  # fmt: skip
        seen.add(name)
    ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("rank of the eigenvalue")
    ax.set_ylabel("eigenvalue")
    ax.legend(frameon=False)
    return ax


def draw_sweep(parameter: Any, spectra: Any, ax: Any = None, *, name: str = "parameter") -> Any:
    """Draw the eigenvalues of several spectra against the parameter they differ in.

    Either the spectrum of a batch of networks, or a sequence of spectra of one shape. Where
    eigenvalues differ by more than a factor of 10, the scale is logarithmic on either side of a
    linear stretch around zero, so that the bulk is seen beside the outliers.
    """
    ax = one_axes(ax)
    shades = {"outlier": COLOURS[1], "bulk": COLOURS[0]}
    styles = {"outlier": "-", "bulk": "--"}
    everything: list[Any] = []
    many = list(spectra) if isinstance(spectra, Sequence) else [spectra]
    for head in dict.fromkeys(space.label.partition("/")[0] for space in many[0].spaces):
        values = [[to_numpy(space.value) for space in s[head]] for s in many]
        lines = np.asarray(values if len(many) > 1 else np.transpose(values[0]))
        everything.append(lines)
        for i, line in enumerate(lines.T):
            shade, style = shades.get(head, GREY), styles.get(head, ":")
            named = head if i == 0 else None
            ax.plot(to_numpy(parameter), line, color=shade, linestyle=style, label=named)
    linear = linear_stretch(np.concatenate(everything, axis=1))
    if linear is not None:
        ax.set_yscale("symlog", linthresh=linear)
    ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
    ax.set_xlabel(name)
    ax.set_ylabel("eigenvalue")
    ax.margins(x=0)
    ax.legend(frameon=False)
    return ax


def draw_layers(layers: Mapping[str, Any], ax: Any = None) -> Any:
    """Draw the eigenvalues of the Hessian restricted to each layer, one row each, first on top.

    Where eigenvalues differ by more than a factor of 10, the scale is logarithmic; if not all are
    positive, it is so on either side of a linear stretch around zero.
    """
    own, ax = ax is None, one_axes(ax)
    if own:
        _, height = ax.figure.get_size_inches()
        ax.figure.set_figheight(max(height, ROW * (len(layers) + 2)))
    everything = [to_numpy(pairs.eigenvalues) for pairs in layers.values()]
    for place, values in enumerate(everything):
        ax.plot(values, np.full(values.size, place), "o", color=COLOURS[0], alpha=0.6)
    numbers = np.concatenate(everything)
    linear = linear_stretch(numbers)
    if linear is not None and numbers.min() > 0:
        ax.set_xscale("log")
        ax.xaxis.get_minor_locator().set_params(subs=(2, 4))  # the labels of 3 and 4 would touch
    elif linear is not None:
        ax.set_xscale("symlog", linthresh=linear)
        ax.xaxis.get_major_locator().set_params(numticks=5)  # more would touch on narrow axes
    if numbers.min() <= 0:
        ax.axvline(0, color=GREY, linestyle=":", linewidth=1)
    ax.set_yticks(range(len(layers)), list(layers))
    ax.set_ylim(len(layers) - 0.5, -0.5)
    ax.grid(axis="y", color=GREY, alpha=0.2)
    ax.set_xlabel("eigenvalue")
    ax.set_ylabel("layer")
    return ax


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
