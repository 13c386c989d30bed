"""The outlier pair through training on a wedge (000 Figure 8, 001 Figure 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Record, Task
from hessence.papers.experiments.settings import at_least, between
from hessence.papers.experiments.shared.scalar_by_definition import summed_hessian
from hessence.papers.experiments.shared.wedge_findings import ROUNDING, findings
from hessence.papers.experiments.shared.wedge_pictures import PICTURES, choose

RESOLVED = 1e-6
"""A smaller outlier below this part of the larger one is taken to have reached zero."""
LAST = 6
"""An approach is of one sign in the last third of the resolved values, and so many at least."""
COMPARED = 3, 6
"""So many networks of a batch, at so many steps, are compared with dense Hessians."""
DIVERGING = 1e6
"""A network whose larger outlier has grown by this factor is not compared."""


@dataclass(frozen=True)
class Settings:
    """Width, rate and momentum as in the papers, which do not specify the wedge.

    Here y = abs(x), with x uniform from `lowest` to 1: were it symmetric, the best linear fit would
    be zero and a linear network would have no phases. Inputs and targets are multiplied by a scale:
    by 1, by `small`, and for linear networks by all of `scales`. Weights are in the standard
    parametrisation. Linear networks also run at `rates`, with and without momentum.
    """

    width: Annotated[int, at_least(2)] = 10
    rate: float = 0.18
    momentum: Annotated[float, between(0, 1)] = 0.9
    high_rate: float = 1.0
    rates: tuple[float, ...] = (0.05, 0.1, 0.18, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0)
    small: float = 0.05
    scales: tuple[float, ...] = (0.03, 0.05, 0.07, 0.1, 0.2, 0.5, 1.0)
    samples: Annotated[int, at_least(2)] = 100
    lowest: Annotated[float, between(-1, 0)] = -0.5
    steps: Annotated[int, at_least(10)] = 1000
    networks: int = 500
    relu_networks: int = 40

    @property
    def all_rates(self) -> list[float]:
        """The rates of linear networks at scale 1, in order."""
        return sorted({*self.rates, self.rate, self.high_rate})

    @property
    def all_scales(self) -> list[float]:
        """The scales of the data of linear networks at the papers' rate, in order."""
        return sorted({*self.scales, self.small, 1.0})

    @property
    def columns(self) -> tuple[tuple[float, float, float], ...]:
        """Rates, momenta and scales of the picture's columns, which ReLU networks run at."""
        slow = ((self.rate, self.momentum, scale) for scale in (self.small, 1.0))
        return (*slow, (self.high_rate, 0.0, 1.0))


def tasks(settings: Settings) -> Iterator[Task]:
    """All linear networks of one setting are a batch; ReLU networks come one by one."""
    whole = [(rate, momentum, 1.0) for momentum, rate in
             product((settings.momentum, 0.0), settings.all_rates)]  # fmt: skip
    scaled = [(settings.rate, settings.momentum, scale) for scale in settings.all_scales]
    for case in dict.fromkeys([*whole, *scaled]):
        yield _task("linear", case, 0)
    for case, draw in product(settings.columns, range(settings.relu_networks)):
        yield _task("relu", case, draw)


def _task(network: str, case: tuple[float, float, float], draw: int) -> Task:
    rate, momentum, scale = case
    return {"network": network, "rate": rate, "momentum": momentum, "scale": scale, "draw": draw}


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Train, and follow the outlier pair; of ReLU networks that of the + cell, as in the paper."""
    x = task["scale"] * rng.uniform(settings.lowest, 1, size=settings.samples)
    y = np.abs(x)
    relu = task["network"] == "relu"
    batch = () if relu else (settings.networks,)
    v = rng.normal(size=(*batch, settings.width))
    w = rng.normal(size=(*batch, settings.width)) / settings.width**0.5
    if relu:
        v[0] = abs(v[0])  # a + cell without units would have no pair
    net = hs.ScalarReLU(w, v) if relu else hs.ScalarLinear(w, v)
    t: Any = hs.gradient_descent(
        net, x, y, lr=task["rate"], steps=settings.steps, momentum=task["momentum"]
    )
    pair, delta = (t.outliers[:, 0], t.bulk[:, 0]) if relu else (t.outliers, t.bulk)
    pair, delta = pair.reshape(len(t), -1, 2), delta.reshape(len(t), -1)
    covariance = np.sum((x * y)[x > 0 if relu else slice(None)]) / len(x)
    stable = (1 - task["momentum"] ** 0.5) ** 2 / task["rate"]
    with np.errstate(invalid="ignore", over="ignore"):
        progress = 1 + delta / covariance  # g over the solution θ*
        trace = pair[..., 0] + pair[..., 1] if relu else t.trace
        kept = [_summary(pair[:, i], progress[:, i], trace[:, i]) for i in range(pair.shape[1])]
    shown = choose(kept, task["rate"] == settings.high_rate)
    good = np.isfinite(pair[:, shown]).all(axis=-1)
    return {
        **{name: [row[name] for row in kept] for name in kept[0]},
        # A step does not overshoot if the roots of z² − (1 + μ − ηλ)z + μ are real and positive.
        "overdamped": pair[-1, :, 0] < stable,
        "deviation": _deviation(t, pair, delta, x, y, relu=relu),
        "shown": shown,
        "larger": np.where(good, pair[:, shown, 0], np.nan),
        "smaller": np.where(good, pair[:, shown, 1], np.nan),
        "bulk": np.where(good, delta[:, shown], np.nan),
        "progress": np.where(good, progress[:, shown], np.nan),
    }


def _deviation(t: Any, pair: Any, delta: Any, x: Any, y: Any, *, relu: bool) -> float:
    """Compare with Hessians summed sample by sample: all eigenvalues, and the pair's sum.

    Of ReLU networks only the units of the + cell are looked at.
    """
    gaps = [0.0]
    networks, steps = COMPARED
    # A batch has no networks behind the step at which one of them diverges.
    end = len(t) if t.diverged is None else t.diverged
    places = np.unique(np.geomspace(1, end, steps).round().astype(int)) - 1
    for i, step in product(range(min(networks, pair.shape[1])), places):
        if pair[step, i, 0] > DIVERGING * pair[0, i, 0]:
            continue
        net = t[step] if relu else t[step][i]
        own = np.flatnonzero(np.tile(net.v > 0 if relu else np.ones(len(net.v), bool), 2))
        if len(own) == 0:
            continue
        dense = summed_hessian(net.w, net.v, x, y, relu=relu)[np.ix_(own, own)]
        bulk = np.repeat([delta[step, i], -delta[step, i]], len(own) // 2 - 1)
        closed, truth = np.sort([*pair[step, i], *bulk]), np.linalg.eigvalsh(dense)
        gaps.append(np.abs(closed - truth).max() / np.abs(truth).max())
        gaps.append(abs(pair[step, i].sum() / np.trace(dense) - 1))
    return float(max(gaps))


def _summary(pair: Any, progress: Any, trace: Any) -> Record:
    """Describe how the smaller outlier starts, turns and ends."""
    finite = bool(np.isfinite(pair).all() and np.isfinite(progress).all())
    larger, smaller = pair[:, 0], pair[:, 1]
    seen = np.flatnonzero(np.abs(smaller) > RESOLVED * larger) if finite else np.arange(0)
    signs = np.sign(smaller[seen])
    turns = np.flatnonzero(np.diff(signs))
    ends = set(signs[-max(LAST, len(signs) // 3) :])
    approach = "diverges" if not finite else "around"
    if finite and len(ends) == 1:
        approach = "above" if ends == {1.0} else "below"
    early, late = progress <= 1 / 3, (progress > 1 / 3) & (progress <= 1)
    # Within rounding of a border the phases are not told apart.
    clear = np.minimum(np.abs(progress - 1 / 3), np.abs(progress - 1)) > ROUNDING
    slack = ROUNDING * larger
    right = np.where(
        late,
        (smaller >= -slack) & (larger <= trace + slack),
        (smaller <= slack) & (larger >= trace - slack),
    )
    return {
        "approach": approach,
        "start": "early" if early[0] else "late" if late[0] else "divergent",
        "starts_negative": bool(smaller[0] < 0),
        "first_turn": int(seen[turns[0] + 1]) if len(turns) else -1,
        "turns": len(turns),
        "drops_first": bool(np.argmin(smaller[:20]) > 0) if finite else False,
        "violations": int(np.sum(~right & clear)) if finite else 0,
        "converged": finite and abs(progress[-1] - 1) < 1e-3,
        "rest": float(abs(smaller[-1] / larger[-1])) if finite else float("nan"),
    }


EXPERIMENT = Experiment(
    id="wedge-training",
    title="The outlier pair through training on a wedge",
    figures=("000 F8", "001 F3"),
    shows="both outliers and the phases of learning, linear and ReLU, by rate and data scale",
    presets={
        "tiny": Settings(rates=(0.18, 1.0), scales=(0.05,), steps=30, networks=10, relu_networks=2),
        "quick": Settings(),
        "paper": Settings(steps=2000, networks=5000, relu_networks=100),
    },
    tasks=tasks,
    run=run,
    draw=PICTURES,
    findings=findings,
    minutes={"quick": 0.7, "paper": 5},
    common=("rate", "momentum", "scale"),
)
