"""Progressive sharpening and the edge of stability in self-attention (000 Figure 27)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Record, Task
from hessence.papers.experiments.settings import at_least, finite
from hessence.papers.experiments.shared.edge_findings import findings
from hessence.papers.experiments.shared.edge_of_stability import (
    endings,
    late_over_early,
    passes,
    rising_together,
    step_correlation,
    swing_and_residual,
)
from hessence.papers.experiments.shared.edge_pictures import PICTURES


@dataclass(frozen=True)
class Settings:
    """The task is to reverse two tokens; the paper does not say which two.

    `first` and `second` are the tokens that are looked at closely. Beside them stand the tokens
    (a, −a) for every a of `sizes`, a sweep of so many a from `smallest` to `largest`, and a map
    over first tokens up to `extent` and second tokens from −`extent` to `extent`: swapping the
    tokens, or both their signs, changes nothing.
    """

    first: float = 0.985
    second: Annotated[float, finite] = -0.985
    sizes: tuple[float, ...] = (0.98, 0.985, 0.99)
    keys: int = 2
    deviation: float = 0.1
    rate: float = 2.3
    rates: tuple[float, ...] = (1.5, 1.8, 2.0, 2.15, 2.3, 2.45, 2.6, 3.0)
    steps: Annotated[int, at_least(40)] = 1000
    seeds: int = 100
    smallest: float = 0.95
    largest: float = 1.02
    sweep: Annotated[int, at_least(2)] = 15
    extent: float = 2.0
    grid: Annotated[int, at_least(2)] = 9
    map_steps: Annotated[int, at_least(40)] = 300
    map_seeds: int = 20

    def __post_init__(self) -> None:
        if self.smallest >= self.largest:
            raise ValueError("smallest must be below largest")

    @property
    def all_rates(self) -> list[float]:
        """The rates that the two tokens are learned at, in order."""
        return sorted({*self.rates, self.rate})


def tasks(settings: Settings) -> Iterator[Task]:
    """One pair of tokens and one rate at a time: its networks are one batch."""
    close = (settings.first, settings.second)
    for tokens in dict.fromkeys([close, *((a, -a) for a in settings.sizes)]):
        yield _task("close", tokens, settings.rate)
    for rate in settings.all_rates:
        yield _task("rates", close, rate)
    for a in np.linspace(settings.smallest, settings.largest, settings.sweep).tolist():
        yield _task("sweep", (a, -a), settings.rate)
    places = np.linspace(0, settings.extent, settings.grid).tolist()
    signed = np.linspace(-settings.extent, settings.extent, 2 * settings.grid - 1).tolist()
    # Both grids have the same places but for rounding.
    for tokens in product(places[1:], signed):
        if abs(tokens[1]) <= (1 + 1e-9) * tokens[0]:
            yield _task("map", tokens, settings.rate)


def _task(part: str, tokens: tuple[float, float], rate: float) -> Task:
    return {"part": part, "first": tokens[0], "second": tokens[1], "rate": rate}


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Train all networks in one batch, and classify how each of them ends."""
    x = np.asarray([task["first"], task["second"]])
    on_map = task["part"] == "map"
    seeds = settings.seeds if task["part"] == "close" else settings.map_seeds
    steps = settings.map_steps if on_map else settings.steps
    weights = settings.deviation * rng.normal(size=(seeds, 2 * settings.keys + 1))
    q, k = weights[:, 1 : settings.keys + 1], weights[:, settings.keys + 1 :]
    net = hs.SelfAttention(weights[:, 0], q, k)
    t: Any = hs.gradient_descent(net, x, x[::-1], lr=task["rate"], steps=steps)
    relative = t.sharpness * task["rate"] / 2
    record: Record = {"outcomes": endings(relative, t.loss)}
    if on_map:
        return record
    flattest = net[0].edge(x, x[::-1], lr=task["rate"])
    record |= {
        "flattest": flattest.sharpness / flattest.threshold,
        "passes": passes(relative),
        "late_swing": np.ptp(relative[-(len(relative) // 10) :], axis=0),
    }
    return record | _closely(t, relative, x) if task["part"] == "close" else record


def _closely(t: Any, relative: Any, x: Any) -> Record:
    """Compare sharpness, trace, ξ, residual, weights and moments along every path."""
    above = relative > 1
    crossing = np.where(above.any(axis=0), np.argmax(above, axis=0), len(relative) - 1)
    curves = _curves(t, relative, x)
    xi, trace, residual = curves["xi"], curves["trace"], curves["residual"]
    starts = list(enumerate(crossing))
    third = trace / 3
    first = int(np.argmax([outcome == "edge" for outcome in endings(relative, t.loss)]))
    return {
        "crossed": above.any(axis=0),
        "crossing": crossing,
        "start": relative[0],
        "rises": {
            name: [rising_together(relative[: c + 1, i], values[: c + 1, i]) for i, c in starts]
            for name, values in curves.items()
        },
        "opposite": [step_correlation(relative[c:, i], trace[c:, i]) for i, c in starts],
        "driven": [step_correlation(relative[c:, i], xi[c:, i]) for i, c in starts],
        "moved": [
            float(np.std(np.diff(xi[c:, i])) / np.std(np.diff(third[c:, i])))
            if c < len(xi) - 3 else float("nan")
            for i, c in starts
        ],
        "fall": [late_over_early(t.loss[c:, i]) for i, c in starts],
        "swing": [late_over_early(np.abs(np.diff(relative[c:, i]))) for i, c in starts],
        "both": [swing_and_residual(relative[c:, i], residual[c:, i]) for i, c in starts],
        "shown": {name: values[:, first] for name, values in curves.items()},
    }  # fmt: skip


def _curves(t: Any, relative: Any, x: Any) -> dict[str, Any]:
    """Return everything that is followed, as (steps, networks)."""
    networks = [t[step] for step in range(len(t))]
    moments = [net.statistics(x, x[::-1]) for net in networks]
    return {
        "loss": t.loss,
        # The loss is half the mean square of the residual's entries.
        "residual": np.sqrt(2 * len(x) * t.loss),
        "sharpness": relative,
        "trace": t.trace * t.lr / 2,
        "xi": np.asarray([net.bounds(x, x[::-1]).xi for net in networks]) * t.lr / 2,
        "inner": np.asarray([np.sum(net.w_q * net.w_k, axis=-1) for net in networks]),
        "value": np.abs(t.value),
        "query": t.query_norm,
        "key": t.key_norm,
    } | {
        name: np.linalg.norm([getattr(m, name)[:, 0] for m in moments], axis=-1)
        for name in ("m1", "m2", "m3")
    }


EXPERIMENT = Experiment(
    id="attention-edge-of-stability",
    title="Progressive sharpening and the edge of stability in self-attention",
    figures=("000 F27",),
    shows="an attention layer learning to reverse two tokens, and when its swings last",
    presets={
        "tiny": Settings(sizes=(0.98, 0.99), rates=(2.0, 2.3), steps=60, seeds=6, sweep=3,
                         grid=3, map_steps=40, map_seeds=3),
        "quick": Settings(),
        "paper": Settings(steps=5000, seeds=1000, sweep=71, grid=21, map_steps=1000, map_seeds=50),
    },
    tasks=tasks,
    run=run,
    draw=PICTURES,
    findings=findings,
    minutes={"quick": 0.6, "paper": 6},
)  # fmt: skip
