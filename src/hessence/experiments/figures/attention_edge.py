"""Progressive sharpening and the edge of stability in self-attention (000 Figure 27)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

import hessence as hs
from hessence.experiments import Experiment, Finding, Record, Task
from hessence.plotting import COLOURS, GREY

OUTCOMES = {
    "below": ("never reaches 2/η", "#e3f2e1"),
    "returns": ("passes 2/η, ends below it", COLOURS[3]),
    "edge": ("oscillates around 2/η to the end", COLOURS[0]),
    "above": ("stays above 2/η", COLOURS[4]),
    "diverges": ("diverges, or loss ten times its start", "#fbe3e4"),
}
FALL = 0.95
"""A loss falls on if its mean, late after the crossing, is below this part of that early after."""


@dataclass(frozen=True)
class Settings:
    """The task is to reverse two tokens; the paper does not tell which two.

    `first` and `second` are the tokens that are looked at closely, with `seeds` networks. The map
    goes over first tokens up to `extent` and second tokens from −`extent` to `extent`: swapping
    the tokens, or both their signs, changes nothing.
    """

    first: float = 1.5
    second: float = -0.5
    keys: int = 2
    deviation: float = 0.1
    rate: float = 2.3
    rates: tuple[float, ...] = (1.5, 1.8, 2.0, 2.15, 2.3, 2.45, 2.6, 3.0)
    steps: int = 600
    seeds: int = 200
    extent: float = 2.0
    grid: int = 9
    map_steps: int = 300
    map_seeds: int = 20

    def __post_init__(self) -> None:
        if min(self.steps, self.map_steps) < 40:
            raise ValueError("steps and map_steps must be at least 40")
        if min(self.seeds, self.map_seeds, self.keys) < 1 or self.grid < 2:
            raise ValueError("seeds, map_seeds and keys must be at least 1, grid at least 2")
        if self.rate not in self.rates:
            raise ValueError("rates must hold the rate")


def tasks(settings: Settings) -> Iterator[Task]:
    """One pair of tokens and one rate at a time: its networks are one batch."""
    for rate in settings.rates:
        close = rate == settings.rate
        yield {"first": settings.first, "second": settings.second, "rate": rate, "close": close}
    places = np.linspace(0, settings.extent, settings.grid).tolist()
    signed = np.linspace(-settings.extent, settings.extent, 2 * settings.grid - 1).tolist()
    for first, second in product(places[1:], signed):
        if abs(second) <= first and (first, second) != (settings.first, settings.second):
            yield {"first": first, "second": second, "rate": settings.rate, "close": False}


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Train all networks in one batch, and tell how each of them ends."""
    x = np.asarray([task["first"], task["second"]])
    on_map = (task["first"], task["second"]) != (settings.first, settings.second)
    seeds = settings.map_seeds if on_map else settings.seeds
    steps = settings.map_steps if on_map else settings.steps
    weights = settings.deviation * rng.normal(size=(seeds, 2 * settings.keys + 1))
    q, k = weights[:, 1 : settings.keys + 1], weights[:, settings.keys + 1 :]
    net = hs.SelfAttention(weights[:, 0], q, k)
    t: Any = hs.gradient_descent(net, x, x[::-1], lr=task["rate"], steps=steps)
    relative = t.sharpness * task["rate"] / 2
    record: Record = {"outcomes": _outcomes(relative, t.loss)}
    if not task["close"]:
        return record
    crossing = np.where((relative > 1).any(axis=0), np.argmax(relative > 1, axis=0), steps)
    first = int(np.argmax([outcome == "edge" for outcome in record["outcomes"]]))
    return record | {
        "crossing": crossing,
        "start": relative[0],
        "monotone": [_rising(relative[:, i], c) for i, c in enumerate(crossing)],
        "gains": _gains(t, crossing, x),
        "opposite": [_correlation(relative[c:, i], t.trace[c:, i]) for i, c in enumerate(crossing)],
        "fall": [_late_over_early(t.loss[c:, i]) for i, c in enumerate(crossing)],
        "swing": [_late_over_early(_swing(relative[c:, i])) for i, c in enumerate(crossing)],
        "cycle": [_period_two(relative[:, i]) for i in range(seeds)],
        "all_sharpness": relative.T[: min(seeds, 50)],
        "shown": {
            "loss": t.loss[:, first],
            "sharpness": t.sharpness[:, first],
            "trace": t.trace[:, first],
            "value": np.abs(t.value[:, first]),
            "query": t.query_norm[:, first],
            "key": t.key_norm[:, first],
            **_along(t, first, x),
        },
    }


def _outcomes(relative: Any, loss: Any) -> list[str]:
    """Tell from the last quarter how sharpness over 2/η ends."""
    tail = relative[-(len(relative) // 4) :]
    finite = np.isfinite(loss).all(axis=0) & np.isfinite(relative).all(axis=0)
    # Divergence may be too slow to overflow within the steps taken.
    finite &= loss[-(len(loss) // 4) :].mean(axis=0) < 10 * loss[0]
    high, low = tail.max(axis=0) > 1, tail.min(axis=0) < 1
    ever = (relative > 1).any(axis=0)
    choices = [~finite, high & low, high, ever]
    endings: list[str] = np.select(
        choices, ["diverges", "edge", "above", "returns"], "below"
    ).tolist()
    return endings


def _rising(values: Any, end: int) -> float:
    """Return the share of steps up to the crossing at which values grow."""
    return float(np.mean(np.diff(values[: end + 1]) > 0)) if end else float("nan")


def _correlation(a: Any, b: Any) -> float:
    """Return the correlation of steps."""
    steps = np.diff(a), np.diff(b)
    if len(steps[0]) < 2 or not all(np.isfinite(s).all() and np.ptp(s) > 0 for s in steps):
        return float("nan")
    return float(np.corrcoef(*steps)[0, 1])


def _late_over_early(values: Any) -> float:
    """Return the mean of the last quarter over that of the first."""
    quarter = len(values) // 4
    if quarter < 2 or not np.isfinite(values).all():
        return float("nan")
    return float(np.mean(values[-quarter:]) / np.mean(values[:quarter]))


def _swing(values: Any) -> Any:
    return np.abs(np.diff(values))


def _period_two(values: Any) -> bool:
    """Tell whether every second value of the last tenth is the same to 1e-6."""
    tail = values[-(len(values) // 10) :]
    return bool(np.all(np.abs(tail[2:] - tail[:-2]) < 1e-6) and np.ptp(tail) > 1e-6)


def _gains(t: Any, crossing: Any, x: Any) -> dict[str, Any]:
    """Return trace and norms at the crossing over those at the start, for every network."""
    kept = {"trace": t.trace, "value": np.abs(t.value), "query": t.query_norm, "key": t.key_norm}
    networks = np.arange(len(crossing))
    gains = {name: values[crossing, networks] / values[0] for name, values in kept.items()}
    first = t[0].statistics(x, x[::-1])
    for name in ("m1", "m2", "m3"):
        before = np.linalg.norm(getattr(first, name)[:, 0], axis=-1)
        gains[name] = np.full(len(crossing), np.nan)
        for step in np.unique(crossing):
            own = crossing == step
            after = getattr(t[int(step)].statistics(x, x[::-1]), name)[own, 0]
            gains[name][own] = np.linalg.norm(after, axis=-1) / before[own]
    return gains


def _along(t: Any, network: int, x: Any) -> dict[str, list[float]]:
    """Return norms of the residual and of the attention's moments at every step."""
    kept: dict[str, list[float]] = {"residual": [], "m1": [], "m2": [], "m3": []}
    for step in range(len(t)):
        net = t[step][network]
        numbers = net.statistics(x, x[::-1])
        kept["residual"].append(float(np.linalg.norm(net.w_v * numbers.m1[0] - x[::-1])))
        for name in ("m1", "m2", "m3"):
            kept[name].append(float(np.linalg.norm(getattr(numbers, name))))
    return kept


def draw_one(settings: Settings, records: list[Record], figure: Any) -> None:
    """Draw the paper's six panels for one network."""
    shown = _close(records)["shown"]
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
            ax.plot(shown[name][: end + 1], color=COLOURS[i], label=name, linewidth=1.2)
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
        f"x = ({settings.first:g}, {settings.second:g}), η = {settings.rate:g}, "
        f"d_K = {settings.keys}",
        fontsize=11,
    )


def draw_many(settings: Settings, records: list[Record], figure: Any) -> None:
    """Draw many networks at once, and how training ends by rate and by tokens."""
    figure.set_size_inches(15, 4.6)
    left, middle, right = figure.subplots(1, 3)
    end = min(settings.steps, 60)
    for curve in _close(records)["all_sharpness"]:
        left.plot(curve[: end + 1], color=COLOURS[0], alpha=0.25, linewidth=0.8)
    left.axhline(1, color="black", linestyle="--", linewidth=1)
    left.set_xlabel("step")
    left.set_ylabel("sharpness over 2/η")
    left.set_title(f"up to 50 networks, η = {settings.rate:g}", fontsize=11)
    left.margins(x=0)
    base = np.zeros(len(settings.rates))
    rows = [r for r in records if _is_close_pair(settings, r)]
    for name, (label, colour) in OUTCOMES.items():
        share = np.asarray([_share(r, name) for r in rows])
        places = np.arange(len(rows))
        middle.bar(places, share, bottom=base, color=colour, label=label, width=0.9)
        base = base + share
    middle.set_xticks(np.arange(len(rows)), [f"{r['rate']:g}" for r in rows])
    middle.set_xlabel("learning rate η")
    middle.set_ylabel(f"share of {settings.seeds} networks")
    middle.set_title(f"how they end, x = ({settings.first:g}, {settings.second:g})", fontsize=11)
    _draw_map(right, settings, records)
    handles, labels = middle.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


def _draw_map(ax: Any, settings: Settings, records: list[Record]) -> None:
    """Mark every pair of tokens with its most frequent outcome."""
    at_rate = [r for r in records if r["rate"] == settings.rate]
    for name, (_, colour) in OUTCOMES.items():
        own = [r for r in at_rate if _most_frequent(r) == name]
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


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Say how typical each part of the paper's picture is."""
    row = _close(records)
    crossed = np.asarray(row["crossing"]) < settings.steps
    edge = np.asarray([outcome == "edge" for outcome in row["outcomes"]])
    count = len(edge)
    starts, rises = np.asarray(row["start"]), np.asarray(row["monotone"], dtype=float)
    sharpens = crossed & (starts < 1)
    fall, swing = (np.asarray(row[name], dtype=float)[edge] for name in ("fall", "swing"))
    opposite = np.asarray(row["opposite"], dtype=float)[edge]
    cycle = np.asarray(row["cycle"])[edge]
    others = [r for r in records if r["rate"] == settings.rate and r is not row]
    around = [r for r in records if _is_close_pair(settings, r)]
    at_edge = [r["rate"] for r in around if _share(r, "edge") > 0.5]
    there = sum(_share(r, "edge") > 0.5 for r in others)
    decided = None if not edge.any() else bool(np.median(opposite) < -0.9)
    return [
        Finding(
            "the sharpness rises to 2/η from the start of training",
            "000 App D.5, Fig 27",
            bool(np.mean(sharpens) > 0.9),
            f"from {np.median(starts):.2f} of it past it in {np.mean(sharpens):.0%} of {count} "
            f"networks, after {np.median(np.asarray(row['crossing'])):.0f} steps in the median, "
            f"growing at {np.nanmean(rises[crossed]) if crossed.any() else 0:.0%} of them",
        ),
        _growing(row, crossed, ("trace",), "while the sharpness rises, so does the trace"),
        _growing(row, crossed, ("value", "query", "key"),
                 "while the sharpness rises, so do the norms of the weights"),
        _growing(row, crossed, ("m1", "m2", "m3"),
                 "while the sharpness rises, so do the norms of the attention's moments"),
        Finding(
            "the sharpness then oscillates around 2/η",
            "000 App D.5, Fig 27",
            bool(np.mean(edge) > 0.9),
            f"to the end in {np.mean(edge):.0%} of {count} networks; in "
            f"{np.mean(cycle) if edge.any() else 0:.0%} of these it has settled in a cycle of two "
            "steps",
        ),
        Finding(
            "the loss goes on falling at the edge of stability",
            "000 App D.5",
            bool(np.mean(fall < FALL) > 0.5) if edge.any() else None,
            f"its mean falls by more than {1 - FALL:.0%} from the first to the last quarter behind "
            f"the crossing in {np.mean(fall < FALL) if edge.any() else 0:.0%} of the networks; "
            f"late over early is {np.median(fall) if edge.any() else 0:.3f} in the median",
        ),
        Finding(
            "the oscillations become smaller with time",
            "000 App D.5",
            bool(np.mean(swing < FALL) > 0.5) if edge.any() else None,
            f"late over early swing {np.median(swing) if edge.any() else 0:.3f} in the median, "
            f"below {FALL:g} in {np.mean(swing < FALL) if edge.any() else 0:.0%} of the networks",
        ),
        Finding(
            "sharpness and trace oscillate in opposite phases",
            "000 App D.5, Fig 27",
            decided,
            f"correlation of their steps {np.median(opposite) if edge.any() else 0:.3f} in the "
            "median",
        ),
        Finding(
            "both phenomena show for a range of learning rates around η",
            "000 App D.2",
            len(at_edge) > 1,
            f"most networks end at the edge at rates {', '.join(f'{r:g}' for r in at_edge)} of "
            f"{', '.join(f'{r:g}' for r in settings.rates)}",
        ),
        Finding(
            "the edge of stability is typical of other tokens too",
            "not claimed; the paper does not tell its tokens",
            there > len(others) / 2 if others else None,
            f"most networks end at the edge for {there} of {len(others)} other pairs of tokens",
        ),
    ]  # fmt: skip


def _growing(row: Record, crossed: Any, names: tuple[str, ...], claim: str) -> Finding:
    """Compare the crossing with the start, in the networks that cross."""
    gains = {name: np.asarray(row["gains"][name], dtype=float)[crossed] for name in names}
    shares = {name: np.mean(gain > 1) for name, gain in gains.items()} if crossed.any() else {}
    told = [
        f"{name} in {share:.0%} of {crossed.sum()} networks, by {np.median(gains[name]):.2f} in "
        "the median"
        for name, share in shares.items()
    ]
    return Finding(
        claim,
        "000 App D.5, Fig 27",
        min(shares.values()) > 0.9 if shares else None,
        "larger at the crossing: " + ("; ".join(told) or "no network crosses"),
    )


def _close(records: list[Record]) -> Record:
    return next(record for record in records if record["close"])


def _is_close_pair(settings: Settings, record: Record) -> bool:
    return (record["first"], record["second"]) == (settings.first, settings.second)


def _share(record: Record, name: str) -> float:
    return float(np.mean([outcome == name for outcome in record["outcomes"]]))


def _most_frequent(record: Record) -> str:
    return max(OUTCOMES, key=record["outcomes"].count)


EXPERIMENT = Experiment(
    id="attention-edge-of-stability",
    title="Progressive sharpening and the edge of stability in self-attention",
    figures=("000 F27",),
    shows="an attention layer learning to reverse two tokens, and how typical its edge is",
    presets={
        "tiny": Settings(rates=(2.0, 2.3), steps=60, seeds=8, grid=3, map_steps=40, map_seeds=3),
        "quick": Settings(),
        "paper": Settings(steps=5000, seeds=1000, grid=21, map_steps=1000, map_seeds=50),
    },
    tasks=tasks,
    run=run,
    draw={"one-network": draw_one, "many-networks": draw_many},
    findings=findings,
    minutes={"quick": 0.3, "paper": 15},
)
