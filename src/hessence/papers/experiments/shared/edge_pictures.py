"""Pictures of self-attention at the edge of stability."""

from __future__ import annotations

from typing import Any

import numpy as np

from hessence.papers.experiments.protocol import Record
from hessence.papers.experiments.shared.edge_findings import close_record, share_of, threshold
from hessence.plotting.axes import COLOURS, GREY

OUTCOMES = {
    "below": ("never reaches 2/η", "#e3f2e1"),
    "returns": ("passes 2/η, ends below it", COLOURS[3]),
    "edge": ("oscillates around 2/η to the end", COLOURS[0]),
    "above": ("stays above 2/η", COLOURS[4]),
    "diverges": ("diverges, or loss ten times its start", "#fbe3e4"),
}
REST = 10
"""Swings are taken over so many steps."""


def draw_one(settings: Any, records: list[Record], figure: Any) -> None:
    """The sharpness climbs to 2/η and swings about it as ξ does, less as the residual gets smaller.

    These are the paper's six panels, and two more of what it names as the likely cause. Bands
    reach from the value at one step to that at the next.
    """
    row = close_record(records)
    shown = row["shown"]
    figure.set_size_inches(9, 9.6)
    axes = figure.subplots(4, 2, sharex=True)
    for ax, names, label in (
        (axes[0, 0], ("loss",), "loss"),
        (axes[0, 1], ("residual",), "norm of the residual"),
        (axes[1, 0], ("sharpness",), "sharpness over 2/η"),
        (axes[1, 1], ("m1", "m2", "m3"), "norms of attention moments"),
        (axes[2, 0], ("trace",), "trace over 2/η"),
        (axes[2, 1], ("value", "query", "key"), "norms of the weights"),
        (axes[3, 0], ("xi",), "ξ over 2/η"),
        (axes[3, 1], ("inner",), "inner product ⟨w_Q, w_K⟩"),
    ):
        for i, name in enumerate(names):
            _band(ax, shown[name], COLOURS[i], name if len(names) > 1 else None,
                  dashed=name == "key")  # fmt: skip
        ax.set_ylabel(label)
        if len(names) > 1:
            ax.legend(fontsize=9)
    axes[1, 0].axhline(1, color="black", linestyle="--", linewidth=1)
    for name in ("loss", "residual"):
        axes[0, int(name == "residual")].set_yscale("log")
    for ax in axes[-1]:
        ax.set_xlabel("step")
    figure.suptitle(f"{tokens_text(row)}, η = {settings.rate:g}, d_K = {settings.keys}")


def _band(ax: Any, values: Any, colour: str, label: str | None, *, dashed: bool = False) -> None:
    """Draw a curve that may jump at every step as the band that two steps span, over log time.

    A dashed band is not filled, so that one sees it on top of another.
    """
    curve = np.asarray(values, dtype=float)
    low, high = np.minimum(curve[1:], curve[:-1]), np.maximum(curve[1:], curve[:-1])
    places = np.arange(1, len(curve))
    style = "--" if dashed else "-"
    width = 1.8 if dashed else 1
    if not dashed:
        ax.fill_between(places, low, high, color=colour, alpha=0.3, linewidth=0)
    ax.plot(places, low, color=colour, linewidth=width, linestyle=style, label=label)
    ax.plot(places, high, color=colour, linewidth=width, linestyle=style)
    ax.set_xscale("log")
    ax.margins(x=0)


def draw_regimes(settings: Any, records: list[Record], figure: Any) -> None:
    """Swings die out where the flattest minimum is flatter than 2/η, and last where it is sharper.

    One network for each pair of tokens: its sharpness above, its swings and the residual below.
    """
    rows = _close_rows(records)
    figure.set_size_inches(10, 5.6)
    axes = figure.subplots(2, len(rows), sharex=True, sharey="row", squeeze=False)
    for (upper, lower), row in zip(axes.T, rows, strict=True):
        shown = row["shown"]
        _band(upper, shown["sharpness"], COLOURS[0], None)
        upper.axhline(1, color="black", linestyle="--", linewidth=1)
        upper.set_title(
            f"{tokens_text(row)}\nflattest minimum {row['flattest']:.3f} of 2/η", fontsize=11
        )
        places, swing, residual = _swings(shown)
        lower.loglog(places, np.maximum(swing, 1e-6), color=COLOURS[1], label="swing of sharpness")
        lower.loglog(places, np.maximum(residual, 1e-6), "--", color=GREY, label="residual")
        lower.margins(x=0)
        lower.set_xlabel("step")
    axes[0, 0].set_ylabel("sharpness over 2/η")
    axes[1, 0].set_ylabel("swing, and residual")
    axes[1, 0].legend(loc="lower left", fontsize=9)


def _swings(shown: Record) -> tuple[Any, Any, Any]:
    """Return steps behind the crossing, the swing there, and the residual's mean."""
    sharpness, residual = (np.asarray(shown[name]) for name in ("sharpness", "residual"))
    start = int(np.argmax(sharpness > 1))
    windows = np.lib.stride_tricks.sliding_window_view
    parts = windows(sharpness[start:], REST), windows(residual[start:], REST)
    places = start + 1 + np.arange(len(parts[0]))
    return places, np.ptp(parts[0], axis=1), np.mean(parts[1], axis=1)


def draw_amplitude(settings: Any, records: list[Record], figure: Any) -> None:
    """The swing of the sharpness is proportional to the norm of the residual, as both shrink."""
    figure.set_size_inches(7, 4.2)
    ax = figure.subplots()
    rows = _close_rows(records)
    for i, row in enumerate(rows):
        _, swing, residual = _swings(row["shown"])
        kept = (swing > 1e-6) & (residual > 1e-6)
        ax.loglog(residual[kept], swing[kept], color=COLOURS[i], linewidth=2.5, alpha=0.8,
                  label=tokens_text(row))  # fmt: skip
        if kept.any():
            last = np.flatnonzero(kept)[-1]
            ax.plot(residual[last], swing[last], "o", color=COLOURS[i])
    ends = np.asarray(ax.get_xlim())
    ax.loglog(ends, ends, ":", color=GREY, linewidth=1, zorder=0, label="equal")
    ax.set_xlabel(f"norm of the residual, mean of {REST} steps")
    ax.set_ylabel(f"swing of sharpness over 2/η in {REST} steps")
    ax.set_title("from the crossing of 2/η to the end (dot)")
    ax.legend()


def draw_threshold(settings: Any, records: list[Record], figure: Any) -> None:
    """Swings are left at the end exactly where the flattest minimum is sharper than 2/η."""
    sweep = [r for r in records if r["part"] == "sweep"]
    sizes = np.asarray([r["first"] for r in sweep])
    figure.set_size_inches(7, 5.6)
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.plot(sizes, [r["flattest"] for r in sweep], "o-", color=COLOURS[0], markersize=4)
    upper.axhline(1, color="black", linestyle="--", linewidth=1)
    upper.set_ylabel("flattest minimum over 2/η")
    lower.plot(sizes, np.zeros(len(sizes)), color=GREY, linestyle=":", linewidth=1)
    low, middle, high = np.asarray(
        [np.percentile(r["late_swing"], [10, 50, 90]) for r in sweep]
    ).T  # fmt: skip
    lower.vlines(sizes, low, high, color=COLOURS[1], alpha=0.3, linewidth=3)
    lower.plot(sizes, middle, "o-", color=COLOURS[1], markersize=4)
    lower.set_ylabel(f"swing left after {settings.steps} steps,\nover 2/η")
    lower.set_xlabel(f"a, of the tokens (a, −a), at η = {settings.rate:g}")
    for ax in (upper, lower):
        ax.axvline(threshold(sweep), color=GREY, linewidth=1)
    upper.set_title(f"as sharp as 2/η at a = {threshold(sweep):.4f}")


def draw_rates(settings: Any, records: list[Record], figure: Any) -> None:
    """Networks swing about 2/η for some time at every rate near 2.3, and to the end at larger ones.

    Bars are shares of networks by how they end; numbers are how often the median one passes 2/η.
    """
    figure.set_size_inches(7, 4.6)
    ax = figure.subplots()
    rows = [r for r in records if r["part"] == "rates"]
    base = np.zeros(len(rows))
    for name, (label, colour) in OUTCOMES.items():
        share = np.asarray([share_of(r, name) for r in rows])
        if share.any():
            ax.bar(np.arange(len(rows)), share, bottom=base, color=colour, label=label, width=0.9)
        base = base + share
    for place, row in enumerate(rows):
        ax.text(place, 1.02, f"{np.median(row['passes']):.0f}", ha="center", fontsize=10)
    ax.set_xticks(np.arange(len(rows)), [f"{r['rate']:g}" for r in rows])
    ax.set_xlabel("learning rate η (above: how often the median network passes 2/η)")
    ax.set_ylabel(f"share of {settings.map_seeds} networks")
    ax.set_title(f"how they end, {tokens_text(rows[0])}", pad=18)
    _legend(figure, ax)


def draw_tokens(settings: Any, records: list[Record], figure: Any) -> None:
    """Of all pairs of tokens, few end at the edge of stability; most never reach it or diverge.

    Colours are the most frequent end of the networks.
    """
    figure.set_size_inches(7, 6)
    ax = figure.subplots()
    step = settings.extent / (settings.grid - 1)
    on_map = [r for r in records if r["part"] == "map"]
    for name, (label, colour) in OUTCOMES.items():
        own = [r for r in on_map if max(OUTCOMES, key=r["outcomes"].count) == name]
        if own:
            low = [r["second"] - step / 2 for r in own]
            ax.bar([r["first"] for r in own], step, width=step, bottom=low, color=colour,
                   edgecolor=GREY, linewidth=0.3, label=label)  # fmt: skip
    ax.plot(settings.first, settings.second, "*", color="black", markersize=12)
    ax.annotate("the other pictures", (settings.first, settings.second), (-12, -18),
                textcoords="offset points", ha="right")  # fmt: skip
    ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
    ax.set_xlim(0, settings.extent + step)
    ax.set_xlabel("first token")
    ax.set_ylabel("second token")
    ax.set_title(f"how most networks end, η = {settings.rate:g}")
    _legend(figure, ax)


def _legend(figure: Any, ax: Any) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9)


def _close_rows(records: list[Record]) -> list[Record]:
    return sorted((r for r in records if r["part"] == "close"), key=lambda r: r["first"])


def tokens_text(row: Record) -> str:
    """Return a record's tokens as they are written."""
    return f"x = ({row['first']:g}, {row['second']:g})".replace("-", "−")


PICTURES = {
    "one-network": draw_one,
    "regimes": draw_regimes,
    "threshold": draw_threshold,
    "amplitude": draw_amplitude,
    "rates": draw_rates,
    "tokens": draw_tokens,
}
