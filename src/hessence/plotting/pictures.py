"""Pictures of spectra. Needs the extra ``hessence[plot]``; nothing here is imported otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hessence._common.arrays import to_numpy

if TYPE_CHECKING:
    from hessence.dynamics.scalar import ScalarTrajectory
    from hessence.dynamics.trajectory import Trajectory
    from hessence.models.history import History
    from hessence.models.layers import LayerSpectra
    from hessence.spectra.spectrum import Spectrum

COLOURS = ("#0b6e99", "#d1495b", "#66a182", "#edae49", "#6a4c93", "#8d6b48", "#2e4057")
GREY = "#7a7a7a"
PHASES = {"early": "#fdf0d5", "late": "#e3f2e1", "divergent": "#fbe3e4"}
MARKERS = {"outlier": "o", "bulk": "s"}
FAR = 4.0
"""A threshold above so many times all eigenvalues would flatten them in the picture."""

MOST_LABELS = 8
"""More labels than this would fill a picture with their names."""

MOST_RANGE = 1e4
"""A logarithmic scale of both signs shows what is up to so many times smaller than the largest."""

ROW = 0.24
"""How many inches a name takes among others below it."""


def draw_spectrum(spectrum: Spectrum, ax: Any = None) -> Any:
    """Draw all eigenvalues in descending order, one run of equal values for each eigenspace.

    The colour tells the tail of the label (the cell, the input, …), the marker its head (outlier or
    bulk); where there are many labels, the colour tells the head too. The cost depends on the
    number of eigenspaces, not of eigenvalues.
    """
    if to_numpy(spectrum.values).ndim > 1:
        raise ValueError("a picture shows one network; pick one of the batch first.")
    ax = one_axes(ax)
    many = len({space.label for space in spectrum.spaces}) > MOST_LABELS
    parts = {space.label: space.label.partition("/") for space in spectrum.spaces}
    kinds = sorted({head if many else tail for head, _, tail in parts.values()})
    colour = {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)}
    seen: set[str] = set()
    start = 0
    for space in spectrum.spaces:
        head, _, tail = parts[space.label]
        name = head if many else space.label.replace("/", ", ")
        count, value = space.multiplicity, float(to_numpy(space.value))
        shade = GREY if head == "flat" else colour[head if many else tail]
        # Up to a hundred copies are shown one by one, more as a line.
        ranks = np.arange(start + 1, start + count + 1)
        if count > 100:
            ranks = ranks[[0, -1]]
        ax.plot(
            ranks,
            np.full(ranks.size, value),
            color=shade,
            linestyle="-" if count > 100 else "none",
            linewidth=3,
            marker=MARKERS.get(head, "o"),
            markersize=8 if head == "outlier" else 5,
            markerfacecolor=shade if head == "outlier" else "white",
            label=None if name in seen else name,
        )
        seen.add(name)
        start += count
    ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("rank of the eigenvalue")
    ax.set_ylabel("eigenvalue")
    ax.legend(frameon=False)
    return ax


def draw_trajectory(trajectory: ScalarTrajectory, ax: Any = None) -> Any:
    """Draw outliers and bulk through training over the phases of learning, and 2 / lr."""
    if not isinstance(trajectory.phase, tuple):
        raise ValueError("a picture shows one network; train one of the batch on its own.")
    own, ax = ax is None, one_axes(ax)
    outliers = to_numpy(trajectory.outliers)
    if outliers.ndim == 2:
        outliers = outliers[:, None, :]
        names: Sequence[str] = ("",)
    else:
        names = (" (+ cell)", " (− cell)")
    bulk = to_numpy(trajectory.bulk).reshape(len(outliers), -1)
    steps = np.arange(len(trajectory))
    _shade_phases(ax, trajectory.phase)
    for c, name in enumerate(names):
        ax.plot(steps, outliers[:, c, 0], color=COLOURS[2 * c], label=f"larger outlier{name}")
        ax.plot(steps, outliers[:, c, 1], color=COLOURS[2 * c + 1], label=f"smaller outlier{name}")
        style = {"color": GREY, "linewidth": 1, "linestyle": ("-", "--")[c]}
        ax.plot(steps, bulk[:, c], label=f"bulk{name}", **style)
        ax.plot(steps, -bulk[:, c], **style)
    top = float(np.nanmax(np.where(np.isfinite(outliers), outliers, np.nan)))
    if 2 / trajectory.lr < 1.5 * top:
        ax.axhline(2 / trajectory.lr, color="black", linestyle="--", linewidth=1, label="2 / lr")
    ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
    ax.set_xlabel("step")
    ax.set_ylabel("eigenvalue")
    ax.margins(x=0, y=0.12)
    _place_legend(ax, below=own)
    return ax


def draw_sharpness(trajectory: Trajectory, ax: Any = None) -> Any:
    """Draw the sharpness through training and the threshold 2 / lr of stable steps."""
    ax = one_axes(ax)
    values = to_numpy(trajectory.sharpness)
    ax.plot(np.arange(len(trajectory)), values, color=COLOURS[0], label="sharpness")
    ax.axhline(2 / trajectory.lr, color="black", linestyle="--", linewidth=1, label="2 / lr")
    ax.set_xlabel("step")
    ax.set_ylabel("largest eigenvalue")
    ax.margins(x=0)
    ax.legend(frameon=False)
    return ax


def draw_history(history: History, ax: Any = None) -> Any:
    """Draw what a monitor has measured: eigenvalues of Hessian and Gauss–Newton matrix, 2 / lr.

    A threshold 2 / lr far above all eigenvalues is named in the legend and left out of sight.
    """
    own, ax = ax is None, one_axes(ax)
    marker = "o" if len(history) == 1 else None
    following = "the next" if history.k == 2 else f"the next {history.k - 1}"
    largest = "largest" if history.k == 1 else f"{history.k} largest"
    # The Gauss–Newton matrix's lines are thinner than the Hessian's, which they often cover.
    dashes = {"linewidth": 1.2, "linestyle": "--"}
    for values, colour, style, names in (
        (history.eigenvalues, COLOURS[0], {"linewidth": 2.4}, ("sharpness", following)),
        (history.ggn_eigenvalues, COLOURS[3], dashes, (f"Gauss–Newton: the {largest}",)),
    ):
        for i in range(history.k if np.isfinite(values).any() else 0):
            label = names[i] if i < len(names) else None
            line = style | {"color": colour, "marker": marker, "alpha": 1.0 if i == 0 else 0.5}
            ax.plot(history.steps, values[:, i], label=label, **line)
    _draw_threshold(ax, history, alone=own)
    ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
    ax.set_xlabel("step")
    if own:
        ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_ylabel("eigenvalue")
    ax.margins(x=0.02)
    if ax.get_legend_handles_labels()[0]:
        _place_legend(ax, below=own)
    return ax


def draw_layers(layers: LayerSpectra, ax: Any = None) -> Any:
    """Draw the eigenvalues of diagonal blocks, one row for each block, the first one on top.

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
    elif linear is not None:
        ax.set_xscale("symlog", linthresh=linear)
        ax.xaxis.get_major_locator().set_params(numticks=5)  # more would touch on narrow axes
    if numbers.min() <= 0:
        ax.axvline(0, color=GREY, linestyle=":", linewidth=1)
    ax.set_yticks(range(len(layers)), list(layers))
    ax.set_ylim(len(layers) - 0.5, -0.5)
    ax.grid(axis="y", color=GREY, alpha=0.2)
    ax.set_xlabel("eigenvalue")
    ax.set_ylabel("diagonal block")
    return ax


def _draw_threshold(ax: Any, history: History, *, alone: bool) -> None:
    thresholds = 2 / history.lr
    known = np.isfinite(thresholds)
    if not known.any():
        return
    values = np.concatenate([history.eigenvalues.ravel(), history.ggn_eigenvalues.ravel()])
    top = np.abs(values[np.isfinite(values)]).max(initial=0.0)
    lowest, same = thresholds[known].min(), np.ptp(thresholds[known]) == 0
    style = {"color": "black", "linestyle": "--", "linewidth": 1}
    if top > 0 and lowest > FAR * top:
        about = f"= {lowest:.3g}" if same else f"≥ {lowest:.3g}"
        ax.plot([], [], label=f"2 / lr {about}, far above", **style)
    elif same:
        ax.axhline(lowest, label="2 / lr", **style)
    else:
        ax.plot(history.steps, thresholds, label="2 / lr", **style)
        if alone and top > 0:
            # A rate that falls to zero would press all eigenvalues flat.
            low, high = ax.get_ylim()
            ax.set_ylim(low, min(high, FAR / 2 * top))


def new_figure(width: float = 7.0, height: float = 4.2, columns: int = 1) -> tuple[Any, list[Any]]:
    """Return a figure outside any global state, with its axes in one row."""
    figure_class = _matplotlib("matplotlib.figure").Figure
    figure = figure_class(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


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


def legend_below(ax: Any) -> None:
    """Put the legend under the axes, of a figure whose layout makes room for it."""
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)


def _place_legend(ax: Any, *, below: bool) -> None:
    """Put the legend under axes of our own, and inside those of others, which may have no room."""
    if below:
        legend_below(ax)
    else:
        ax.legend(loc="best", fontsize="small", framealpha=0.7, edgecolor="none")


def next_colour(ax: Any) -> str:
    """Return the first of our colours that no line on the axes has; all taken, they start again."""
    to_hex = _matplotlib("matplotlib.colors").to_hex
    taken = [to_hex(line.get_color()) for line in ax.lines]
    return min(COLOURS, key=taken.count)


def _shade_phases(ax: Any, phases: Sequence[str | None]) -> None:
    """Tint the background; a phase whose stretches have no room for a word is in the legend."""
    edges = [i for i in range(len(phases)) if i == 0 or phases[i] != phases[i - 1]]
    stretches = list(zip(edges, [*edges[1:], len(phases)], strict=True))
    room = len(phases) / 12
    named = {phases[first] for first, last in stretches if last - first > room}
    for first, last in stretches:
        phase = phases[first]
        if phase is None:
            continue
        label = None if phase in named else f"{phase} phase"
        named.add(phase)
        ax.axvspan(first, last, color=PHASES[phase], zorder=0, linewidth=0, label=label)
        if last - first > room:
            ax.text(
                (first + last) / 2,
                0.98,
                phase,
                transform=ax.get_xaxis_transform(),
                ha="center",
                va="top",
                fontsize=9,
                color=GREY,
            )


def one_axes(ax: Any) -> Any:
    """Return the axes to draw on, which are new ones if none are given."""
    if ax is not None:
        if not isinstance(ax, _matplotlib("matplotlib.axes").Axes):
            raise TypeError(f"ax must be one matplotlib Axes, got {type(ax).__name__}.")
        return ax
    _, ax = _matplotlib("matplotlib.pyplot").subplots(layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _matplotlib(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'hessence[plot]'.") from error
