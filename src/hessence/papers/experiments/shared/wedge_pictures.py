"""Pictures of the outlier pair through training on a wedge."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from hessence.papers.experiments.protocol import Record
from hessence.papers.experiments.shared.wedge_findings import gather, rows_of
from hessence.plotting.axes import COLOURS, GREY, signed_scale
from hessence.plotting.training import PHASES

APPROACHES = {
    "above": ("to zero from above", COLOURS[2]),
    "around": ("wiggling around zero", COLOURS[3]),
    "below": ("to zero from below", COLOURS[1]),
    "diverges": ("diverges", "#d0d0d0"),
}


def choose(rows: list[Record], high: bool) -> int:
    """Return a network that starts early and ends as most do; at the high rate, from below."""
    ends = [row["approach"] for row in rows]
    wanted = "below" if high else max(APPROACHES, key=ends.count)
    return max(
        range(len(rows)),
        key=lambda i: (ends[i] == wanted, rows[i]["start"] == "early", -i),
    )


def draw_pairs(settings: Any, records: list[Record], figure: Any) -> None:
    """On small data λ₂ turns positive and goes to zero from above; on larger data it wiggles.

    Shades are phases of learning: yellow is the early, green the late, red the divergent one.
    """
    figure.set_size_inches(10, 6.4)
    axes = figure.subplots(2, 3, sharex=True)
    for column, (rate, momentum, scale) in enumerate(settings.columns):
        for ax, network in zip(axes[:, column], ("linear", "relu"), strict=True):
            rows = rows_of(records, network, rate, momentum, scale)
            row = rows[choose([_of_shown(r) for r in rows], rate == settings.high_rate)]
            _draw_pair(ax, row)
            own = row["approach"][row["shown"]]
            share = np.mean(gather(rows, "approach") == own)
            ax.set_title(f"one of {share:.0%} {APPROACHES[own][0]}", fontsize=10)
        told = f"η = {rate:g}, μ = {momentum:g}, inputs up to {scale:g}"
        axes[0, column].set_title(f"{told}\n{axes[0, column].get_title()}", fontsize=10)
        axes[1, column].set_xlabel("step")
    axes[0, 0].set_ylabel("eigenvalue, linear network")
    axes[1, 0].set_ylabel("eigenvalue, ReLU, + cell")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)


def _of_shown(row: Record) -> Record:
    return {name: row[name][row["shown"]] for name in ("approach", "start")}


def _draw_pair(ax: Any, row: Record) -> None:
    larger, smaller, bulk, progress = (
        np.asarray(row[name], dtype=float) for name in ("larger", "smaller", "bulk", "progress")
    )
    places = np.arange(1, len(larger) + 1)
    phase = np.select([progress <= 1 / 3, progress <= 1], ["early", "late"], "divergent")
    # Phases are of one kind from here to the next change; close to the solution they are noise.
    settled = np.abs(progress - 1) < 1e-3
    phase[settled] = ""
    starts = [0, *(np.flatnonzero(phase[1:] != phase[:-1]) + 1), len(phase)]
    for first, end in pairwise(starts):
        if phase[first]:
            colour = PHASES[str(phase[first])]
            ax.axvspan(max(first + 0.5, 1), end + 0.5, color=colour, zorder=0, linewidth=0)
    ax.plot(places, larger, color=COLOURS[0], label="larger outlier λ₁")
    ax.plot(places, smaller, color=COLOURS[1], label="smaller outlier λ₂", linewidth=2)
    for sign in (1, -1):
        ax.plot(places, sign * bulk, color=GREY, linewidth=0.8, label="bulk" if sign == 1 else None)
    ax.axhline(0, color="black", linestyle=":", linewidth=1)
    ax.set_xscale("log")
    ax.margins(x=0)
    signed_scale(ax, 10.0 ** np.floor(np.log10(np.nanmax(larger) / 50)))


def draw_scales(settings: Any, records: list[Record], figure: Any) -> None:
    """λ₂ ends from above where the data are so small that descent with momentum is overdamped.

    The black line is the share of networks that are overdamped at the end.
    """
    figure.set_size_inches(7, 4.6)
    ax = figure.subplots()
    cases = [(settings.rate, settings.momentum, scale) for scale in settings.all_scales]
    rows = [rows_of(records, "linear", *case)[0] for case in cases]
    _bars(ax, rows, [f"{scale:g}" for scale in settings.all_scales])
    ax.plot([np.mean(row["overdamped"]) for row in rows], "D-", color="black", markersize=5,
            clip_on=False, label="overdamped: ηλ₁ < (1 − √μ)² at the end")  # fmt: skip
    ax.set_xlabel("largest input")
    ax.set_ylabel(f"share of {settings.networks} linear networks")
    ax.set_title(f"how λ₂ ends, η = {settings.rate:g}, momentum {settings.momentum:g}")
    _legend(figure)


def draw_rates(settings: Any, records: list[Record], figure: Any) -> None:
    """With momentum λ₂ wiggles at every rate; without, most networks end from above up to 0.3."""
    figure.set_size_inches(10, 4.2)
    for ax, momentum in zip(figure.subplots(1, 2), (settings.momentum, 0.0), strict=True):
        rows = [rows_of(records, "linear", rate, momentum, 1.0)[0] for rate in settings.all_rates]
        _bars(ax, rows, [f"{rate:g}" for rate in settings.all_rates])
        ax.set_xlabel("learning rate")
        ax.set_title(f"how λ₂ ends, momentum {momentum:g}")
        ax.set_ylabel(f"share of {settings.networks} linear networks")
    _legend(figure)


def _bars(ax: Any, rows: list[Record], names: list[str]) -> None:
    base = np.zeros(len(rows))
    for name, (label, colour) in APPROACHES.items():
        share = np.asarray([np.mean([a == name for a in row["approach"]]) for row in rows])
        if share.any():
            ax.bar(np.arange(len(rows)), share, bottom=base, color=colour, width=0.9, label=label)
        base = base + share
    ax.set_xticks(np.arange(len(rows)), names)


def _legend(figure: Any) -> None:
    kinds: dict[str, Any] = {}
    for ax in figure.axes:
        handles, labels = ax.get_legend_handles_labels()
        kinds |= dict(zip(labels, handles, strict=True))
    columns = 2 if len(kinds) > 3 and len(figure.axes) == 1 else len(kinds)
    figure.legend(kinds.values(), kinds, loc="outside lower center", ncols=columns, fontsize=9)


PICTURES = {"pairs": draw_pairs, "scales": draw_scales, "rates": draw_rates}
