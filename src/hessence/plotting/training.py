"""Pictures of training: eigenvalues step by step, the phases of learning, the threshold 2 / lr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hessence._common.arrays import to_numpy
from hessence.plotting.axes import COLOURS, GREY, one_axes, place_legend

PHASES = {"early": "#fdf0d5", "late": "#e3f2e1", "divergent": "#fbe3e4"}

FAR = 4.0
"""A threshold above this many times the largest eigenvalue would flatten the picture."""


def draw_trajectory(trajectory: Any, ax: Any = None) -> Any:
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
        grey = {"color": GREY, "linewidth": 1, "linestyle": ("-", "--")[c]}
        for values, label, style in (
            (outliers[:, c, 0], f"larger outlier{name}", {"color": COLOURS[2 * c]}),
            (outliers[:, c, 1], f"smaller outlier{name}", {"color": COLOURS[2 * c + 1]}),
            (bulk[:, c], f"bulk{name}", grey),
            (-bulk[:, c], None, grey),
        ):
            if not np.isnan(values).all():
                ax.plot(steps, values, label=label, **style)
    top = outliers[np.isfinite(outliers)].max(initial=0.0)
    if 2 / trajectory.lr < 1.5 * top:
        ax.axhline(2 / trajectory.lr, color="black", linestyle="--", linewidth=1, label="2 / lr")
    ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
    ax.set_xlabel("step")
    ax.set_ylabel("eigenvalue")
    ax.margins(x=0, y=0.12)
    place_legend(ax, below=own)
    return ax


def draw_sharpness(trajectory: Any, ax: Any = None) -> Any:
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


def draw_history(history: Any, ax: Any = None) -> Any:
    """Draw what a monitor has measured: eigenvalues of Hessian and Gauss–Newton matrix, 2 / lr.

    A threshold 2 / lr far above all eigenvalues appears in the legend only.
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
        place_legend(ax, below=own)
    return ax


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
            ax.text((first + last) / 2, 0.98, phase, transform=ax.get_xaxis_transform(),
                    ha="center", va="top", fontsize=9, color=GREY)  # fmt: skip


def _draw_threshold(ax: Any, history: Any, *, alone: bool) -> None:
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
