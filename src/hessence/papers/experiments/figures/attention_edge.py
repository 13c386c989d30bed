"""Progressive sharpening and the edge of stability in self-attention (000 Figure 27)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.settings import at_least, finite
from hessence.papers.experiments.shared.edge_of_stability import (
    close_record,
    draw_many,
    draw_one,
    endings,
    has_period_two,
    is_close_pair,
    late_over_early,
    share_of,
    share_rising,
    step_correlation,
)

FALL = 0.95
"""A loss falls on if its mean, late after the crossing, is below this part of that early after."""


@dataclass(frozen=True)
class Settings:
    """The task is to reverse two tokens; the paper does not say which two.

    `first` and `second` are the tokens that are looked at closely, with `seeds` networks. The map
    goes over first tokens up to `extent` and second tokens from −`extent` to `extent`: swapping
    the tokens, or both their signs, changes nothing.
    """

    first: float = 1.5
    second: Annotated[float, finite] = -0.5
    keys: int = 2
    deviation: float = 0.1
    rate: float = 2.3
    rates: tuple[float, ...] = (1.5, 1.8, 2.0, 2.15, 2.3, 2.45, 2.6, 3.0)
    steps: Annotated[int, at_least(40)] = 600
    seeds: int = 200
    extent: float = 2.0
    grid: Annotated[int, at_least(2)] = 9
    map_steps: Annotated[int, at_least(40)] = 300
    map_seeds: int = 20

    @property
    def all_rates(self) -> list[float]:
        """The rates that the two tokens are learned at, in order."""
        return sorted({*self.rates, self.rate})


def tasks(settings: Settings) -> Iterator[Task]:
    """One pair of tokens and one rate at a time: its networks are one batch."""
    for rate in settings.all_rates:
        close = rate == settings.rate
        yield {"first": settings.first, "second": settings.second, "rate": rate, "close": close}
    places = np.linspace(0, settings.extent, settings.grid).tolist()
    signed = np.linspace(-settings.extent, settings.extent, 2 * settings.grid - 1).tolist()
    for first, second in product(places[1:], signed):
        if abs(second) <= first and (first, second) != (settings.first, settings.second):
            yield {"first": first, "second": second, "rate": settings.rate, "close": False}


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Train all networks in one batch, and classify how each of them ends."""
    x = np.asarray([task["first"], task["second"]])
    on_map = (task["first"], task["second"]) != (settings.first, settings.second)
    seeds = settings.map_seeds if on_map else settings.seeds
    steps = settings.map_steps if on_map else settings.steps
    weights = settings.deviation * rng.normal(size=(seeds, 2 * settings.keys + 1))
    q, k = weights[:, 1 : settings.keys + 1], weights[:, settings.keys + 1 :]
    net = hs.SelfAttention(weights[:, 0], q, k)
    t: Any = hs.gradient_descent(net, x, x[::-1], lr=task["rate"], steps=steps)
    relative = t.sharpness * task["rate"] / 2
    record: Record = {"outcomes": endings(relative, t.loss)}
    if not task["close"]:
        return record
    crossing = np.where((relative > 1).any(axis=0), np.argmax(relative > 1, axis=0), steps)
    first = int(np.argmax([outcome == "edge" for outcome in record["outcomes"]]))
    return record | {
        "crossing": crossing,
        "start": relative[0],
        "rises": _rises(t, relative, crossing, x),
        "opposite": [
            step_correlation(relative[c:, i], t.trace[c:, i]) for i, c in enumerate(crossing)
        ],
        "fall": [late_over_early(t.loss[c:, i]) for i, c in enumerate(crossing)],
        "swing": [
            late_over_early(np.abs(np.diff(relative[c:, i]))) for i, c in enumerate(crossing)
        ],
        "cycle": [has_period_two(relative[:, i]) for i in range(seeds)],
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


def _rises(t: Any, relative: Any, crossing: Any, x: Any) -> Record:
    """Compare the crossing with the start, and count the steps between them that go up.

    For each quantity and network: how many times as large it is at the crossing, and at which share
    of the steps up to it it grows.
    """
    last = int(crossing[crossing < len(relative) - 1].max(initial=0))
    numbers = [t[step].statistics(x, x[::-1]) for step in range(last + 1)]
    curves = {
        "sharpness": relative,
        "trace": t.trace,
        "value": np.abs(t.value),
        "query": t.query_norm,
        "key": t.key_norm,
    } | {
        name: np.linalg.norm([getattr(n, name)[:, 0] for n in numbers], axis=-1)
        for name in ("m1", "m2", "m3")
    }
    ends = np.minimum(crossing, last)
    return {
        name: {
            "gain": values[ends, np.arange(len(ends))] / values[0],
            "rising": [share_rising(values[:, i], end) for i, end in enumerate(ends)],
        }
        for name, values in curves.items()
    }


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


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Say how typical each part of the paper's picture is."""
    row = close_record(records)
    crossed = np.asarray(row["crossing"]) < settings.steps
    edge = np.asarray([outcome == "edge" for outcome in row["outcomes"]])
    count = len(edge)
    starts = np.asarray(row["start"])
    rises = np.asarray(row["rises"]["sharpness"]["rising"], dtype=float)[crossed]
    sharpens = crossed & (starts < 1)
    fall, swing = (np.asarray(row[name], dtype=float)[edge] for name in ("fall", "swing"))
    opposite = np.asarray(row["opposite"], dtype=float)[edge]
    cycle = np.asarray(row["cycle"])[edge]
    others = [r for r in records if r["rate"] == settings.rate and r is not row]
    around = [r for r in records if is_close_pair(settings, r)]
    at_edge = [r["rate"] for r in around if share_of(r, "edge") > 0.5]
    there = sum(share_of(r, "edge") > 0.5 for r in others)
    decided = None if not edge.any() else bool(np.median(opposite) < -0.9)
    return [
        Finding(
            "the sharpness rises to 2/η from the start of training",
            "000 App D.5, Fig 27",
            bool(np.mean(sharpens) > 0.9),
            f"from {np.median(starts):.2f} of it past it in {np.mean(sharpens):.0%} of {count} "
            f"networks, after {np.median(np.asarray(row['crossing'])):.0f} steps in the median, "
            f"growing at {np.mean(rises) if crossed.any() else 0:.0%} of them, and at every one in "
            f"{np.mean(rises == 1) if crossed.any() else 0:.0%} of the networks",
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
            f"{', '.join(f'{r:g}' for r in settings.all_rates)}",
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
    shares, told = {}, []
    for name in names if crossed.any() else ():
        gain, rising = (
            np.asarray(row["rises"][name][key], dtype=float)[crossed] for key in ("gain", "rising")
        )
        shares[name] = np.mean(gain > 1)
        told.append(
            f"{name} in {shares[name]:.0%} of {crossed.sum()} networks, by {np.median(gain):.2f} "
            f"in the median, growing at every step up to it in {np.mean(rising == 1):.0%}"
        )
    return Finding(
        claim,
        "000 App D.5, Fig 27",
        min(shares.values()) > 0.9 if shares else None,
        "larger at the crossing than at the start, which decides: "
        + ("; ".join(told) or "no network crosses"),
    )


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
    minutes={"quick": 0.2, "paper": 7},
)
