"""How a run of gradient descent meets the threshold 2/η, told from its curves, and its pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

from hessence.papers.experiments.protocol import Record
from hessence.plotting.axes import COLOURS, GREY


def endings(relative: Any, loss: Any) -> list[str]:
    """Tell from the last quarter how sharpness over 2/η ends, for every network.

    The curves are (steps, networks). A network ``diverges``, is at the ``edge``, stays ``above``,
    ``returns`` below after having been above, or was ``below`` all along.

    Examples
    --------
    >>> import numpy as np
    >>> endings(np.asarray([[0.5, 0.9], [0.6, 1.1]] * 4), np.ones((8, 2)))
    ['below', 'edge']
    """
    tail = relative[-(len(relative) // 4) :]
    finite = np.isfinite(loss).all(axis=0) & np.isfinite(relative).all(axis=0)
    # Divergence may be too slow to overflow within the steps taken.
    finite &= loss[-(len(loss) // 4) :].mean(axis=0) < 10 * loss[0]
    high, low = tail.max(axis=0) > 1, tail.min(axis=0) < 1
    ever = (relative > 1).any(axis=0)
    names: list[str] = np.select(
        [~finite, high & low, high, ever], ["diverges", "edge", "above", "returns"], "below"
    ).tolist()
    return names


def share_rising(values: Any, end: int) -> float:
    """Return the share of the first `end` steps at which values grow."""
    return float(np.mean(np.diff(values[: end + 1]) > 0)) if end else float("nan")


def step_correlation(a: Any, b: Any) -> float:
    """Return the correlation of the steps of two curves."""
    steps = np.diff(a), np.diff(b)
    if len(steps[0]) < 2 or not all(np.isfinite(s).all() and np.ptp(s) > 0 for s in steps):
        return float("nan")
    return float(np.corrcoef(*steps)[0, 1])


def late_over_early(values: Any) -> float:
    """Return the mean of the last quarter over that of the first."""
    quarter = len(values) // 4
    if quarter < 2 or not np.isfinite(values).all():
        return float("nan")
    return float(np.mean(values[-quarter:]) / np.mean(values[:quarter]))


def has_period_two(values: Any) -> bool:
    """Tell whether every second value of the last tenth is the same to 1e-6."""
    tail = values[-(len(values) // 10) :]
    return bool(np.all(np.abs(tail[2:] - tail[:-2]) < 1e-6) and np.ptp(tail) > 1e-6)


OUTCOMES = {
    "below": ("never reaches 2/η", "#e3f2e1"),
    "returns": ("passes 2/η, ends below it", COLOURS[3]),
    "edge": ("oscillates around 2/η to the end", COLOURS[0]),
    "above": ("stays above 2/η", COLOURS[4]),
    "diverges": ("diverges, or loss ten times its start", "#fbe3e4"),
}


def draw_one(settings: Any, records: list[Record], figure: Any) -> None:
    """Draw the paper's six panels for one network."""
    shown = close_record(records)["shown"]
    figure.set_size_inches(11, 8.4)
    axes = figure.subplots(3, 2, sharex=True)
    end = min(settings.steps, 120)
    for ax, names, label in (
        (axes[0, 0], ("loss",), "loss"),
        (axes[0, 1], ("residual",), "norm of the residual"),
        (axes[1, 0], ("sharpness",), "sharpness"),
        (axes[1, 1], ("m1", "m2", "m3"), "norms of attention moments"),
        (axes[2, 0], ("trace",), "trace"),
        (axes[2, 1], ("value", "query", "key"), "norms of the weights"),
    ):
        for i, name in enumerate(names):
            ax.plot(shown[name][: end + 1], color=COLOURS[i], label=name, linewidth=1.2,
                    linestyle="--" if name == "key" else "-")  # fmt: skip
        ax.set_ylabel(label)
        ax.margins(x=0)
        if len(names) > 1:
            ax.legend(frameon=False)
    threshold = 2 / settings.rate
    axes[1, 0].axhline(threshold, color="black", linestyle="--", linewidth=1, label="2/η")
    axes[1, 0].legend(frameon=False)
    axes[0, 0].set_yscale("log")
    for ax in axes[2]:
        ax.set_xlabel("step")
    figure.suptitle(
        f"{tokens_text(settings)}, η = {settings.rate:g}, d_K = {settings.keys}",
        fontsize=11,
    )


def draw_many(settings: Any, records: list[Record], figure: Any) -> None:
    """Draw many networks at once, and how training ends by rate and by tokens."""
    figure.set_size_inches(15, 4.6)
    left, middle, right = figure.subplots(1, 3)
    end = min(settings.steps, 60)
    for curve in close_record(records)["all_sharpness"]:
        left.plot(curve[: end + 1], color=COLOURS[0], alpha=0.25, linewidth=0.8)
    left.axhline(1, color="black", linestyle="--", linewidth=1)
    left.set_xlabel("step")
    left.set_ylabel("sharpness over 2/η")
    left.set_title(f"up to 50 networks, η = {settings.rate:g}", fontsize=11)
    left.margins(x=0)
    base = np.zeros(len(settings.all_rates))
    rows = [r for r in records if is_close_pair(settings, r)]
    for name, (label, colour) in OUTCOMES.items():
        share = np.asarray([share_of(r, name) for r in rows])
        places = np.arange(len(rows))
        middle.bar(places, share, bottom=base, color=colour, label=label, width=0.9)
        base = base + share
    middle.set_xticks(np.arange(len(rows)), [f"{r['rate']:g}" for r in rows])
    middle.set_xlabel("learning rate η")
    middle.set_ylabel(f"share of {settings.seeds} networks")
    middle.set_title(f"how they end, {tokens_text(settings)}", fontsize=11)
    _draw_map(right, settings, records)
    handles, labels = middle.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


def _draw_map(ax: Any, settings: Any, records: list[Record]) -> None:
    """Mark every pair of tokens with its most frequent outcome."""
    at_rate = [r for r in records if r["rate"] == settings.rate]
    for name, (_, colour) in OUTCOMES.items():
        own = [r for r in at_rate if most_frequent(r) == name]
        size = 4500 / settings.grid**1.5
        ax.scatter([r["first"] for r in own], [r["second"] for r in own], color=colour, s=size,
                   marker="s", edgecolors=GREY, linewidths=0.3)  # fmt: skip
    ax.plot(settings.first, settings.second, "*", color="black", markersize=10)
    ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
    ax.set_xlabel("first token")
    ax.set_ylabel("second token")
    ax.set_title(
        f"most frequent end, η = {settings.rate:g} (star: the panels' tokens)", fontsize=11
    )


def close_record(records: list[Record]) -> Record:
    """Return the record of the networks that are looked at closely."""
    return next(record for record in records if record["close"])


def is_close_pair(settings: Any, record: Record) -> bool:
    """Tell whether a record is of the tokens that are looked at closely."""
    return (record["first"], record["second"]) == (settings.first, settings.second)


def tokens_text(settings: Any) -> str:
    """Return these tokens as they are written."""
    return f"x = ({settings.first:g}, {settings.second:g})".replace("-", "−")


def share_of(record: Record, name: str) -> float:
    """Return the share of networks with an ending."""
    return float(np.mean([outcome == name for outcome in record["outcomes"]]))


def most_frequent(record: Record) -> str:
    """Return the ending that most networks have."""
    return max(OUTCOMES, key=record["outcomes"].count)
