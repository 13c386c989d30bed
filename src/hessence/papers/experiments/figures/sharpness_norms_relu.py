"""Sharpness against norms of the weights, in ReLU networks (000 Figure 16)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.settings import at_least
from hessence.papers.experiments.shared.correlation_studies import (
    TwoLayerSettings,
    layer_norms,
    on_training,
    size_tasks,
    trained_networks,
)
from hessence.papers.experiments.shared.correlations import (
    NAMES,
    NORMS,
    WHEN,
    draw_by_size,
    layer_rows,
    listed,
    mean_correlations,
)
from hessence.papers.experiments.shared.network_batches import Networks, sharpness
from hessence.papers.experiments.shared.resampling import outlasting

LAYERS = ("W1", "W2")


@dataclass(frozen=True)
class Settings(TwoLayerSettings):
    """Two-layer ReLU networks; the teacher is one layer with ReLU."""

    networks: Annotated[int, at_least(3)] = 60
    enough: float = 0.1


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Measure a batch of networks, train it, and measure it again."""
    dims = (task["size"], settings.width, task["size"])
    t = trained_networks(settings, "relu", task["parametrisation"], dims, rng)
    return {
        "initial": measured(t.before, t.x, t.y),
        "trained": measured(t.after, t.x, t.y),
        "excess": t.excess,
    }


def measured(nets: Networks, x: Any, y: Any) -> Record:
    """Return sharpness and squared norms of every network."""
    return {"sharpness": sharpness(nets, x, y, "relu"), **layer_norms(nets)}


def draw_initial(settings: Settings, records: list[Record], figure: Any) -> None:
    """With ReLU, sharpness follows the first layer's Frobenius norm before training.

    Bands are one standard error.
    """
    draw_by_size(records, settings.parametrisations, figure, "sharpness", layer_rows("initial"))


def draw_trained(settings: Settings, records: list[Record], figure: Any) -> None:
    """With ReLU, sharpness follows the first layer's Frobenius norm after training, too.

    Bands are one standard error.
    """
    draw_by_size(records, settings.parametrisations, figure, "sharpness", layer_rows("trained"))


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with §4.2 and Figure 16."""
    compared = outlasting(lambda rows: _compared(settings, rows), records)
    return [*compared, on_training(settings, records)]


def _compared(settings: Settings, records: list[Record]) -> list[Finding]:
    tables = {}
    for kind, when in product(settings.parametrisations, WHEN):
        rows = [r for r in records if r["parametrisation"] == kind and r["size"] > 1]
        if rows:
            names = [f"{w} {norm}" for w in LAYERS for norm in NORMS]
            means = mean_correlations(rows, when, "sharpness", names)
            tables[f"{NAMES[kind]}, {WHEN[when]}"] = means
    if not tables:
        return []
    best = {
        name: {norm: max(means[f"{w} {norm}"] for w in LAYERS) for norm in NORMS}
        for name, means in tables.items()
    }
    first = {name: means["W1 spectral"] for name, means in tables.items()}
    tail = "in every parametrisation, before and after training, mean over D > 1"
    return [
        Finding(
            "000-relu-frobenius",
            all(max(row, key=lambda norm: row[norm]) == "frobenius" for row in best.values()),
            f"better layer, {'; '.join(f'{name}: {listed(row)}' for name, row in best.items())}",
            criterion=f"most of the three norms, better layer, {tail}",
        ),
        Finding(
            "000-relu-range",
            all(0.25 <= value <= 0.75 for value in first.values()),
            listed(first),
            criterion=f"0.25 to 0.75 {tail}",
        ),
    ]


EXPERIMENT = Experiment(
    id="sharpness-norms-relu",
    title="Sharpness and the norms of two layers with ReLU",
    figures=("000 F16",),
    shows="how the largest eigenvalue of ReLU networks correlates with squared norms of the "
    "weights, before and after training",
    presets={
        "tiny": Settings(width=6, sizes=(1, 2), networks=4, samples=64),
        "quick": Settings(width=60, sizes=(1, 2, 4, 8, 16), samples=512),
        "paper": Settings(networks=200),
    },
    tasks=size_tasks,
    run=run,
    draw={"initial": draw_initial, "trained": draw_trained},
    findings=findings,
    minutes={"quick": 0.7, "paper": 150},
)
