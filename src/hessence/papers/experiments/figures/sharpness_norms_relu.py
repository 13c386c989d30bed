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
    draw_by_size,
    listed,
    mean_correlations,
    norm_lines,
)
from hessence.papers.experiments.shared.network_batches import Networks, sharpness, unexplained

LAYERS = ("W1", "W2")


@dataclass(frozen=True)
class Settings(TwoLayerSettings):
    """Two-layer ReLU networks; the teacher is one layer with ReLU.

    At ``quick``, a teacher with entries of variance 1 gives the same verdicts.
    """

    width: int = 60
    sizes: tuple[int, ...] = (1, 2, 4, 8)
    networks: Annotated[int, at_least(3)] = 40
    samples: int = 512


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Measure a batch of networks, train it, and measure it again."""
    kind, size = task["parametrisation"], task["size"]
    dims, rate = (size, settings.width, size), settings.first_rate(kind, size)
    t = trained_networks(settings, "relu", kind, dims, rate, rng)
    return {
        "initial": measured(t.before, t.x, t.y),
        "trained": measured(t.after, t.x, t.y),
        "left": unexplained(t.losses, t.y, settings.noise),
    }


def measured(nets: Networks, x: Any, y: Any) -> Record:
    """Return sharpness and squared norms of every network."""
    return {"sharpness": sharpness(nets, x, y, "relu"), **layer_norms(nets)}


def draw(settings: Settings, records: list[Record], figure: Any) -> None:
    """Draw how the sharpness correlates with squared norms."""
    draw_by_size(records, settings.parametrisations, figure, "sharpness", norm_lines(LAYERS))


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with §4.2 and Figure 16."""
    found = []
    for kind, when in product(settings.parametrisations, ("initial", "trained")):
        rows = [r for r in records if r["parametrisation"] == kind and r["size"] > 1]
        if not rows:
            continue
        names = [f"{w} {norm}" for w in LAYERS for norm in NORMS]
        means = mean_correlations(rows, when, "sharpness", names)
        best = {norm: max(means[f"{w} {norm}"] for w in LAYERS) for norm in NORMS}
        tail = f"{NAMES[kind]}, {when}"
        first = means["W1 spectral"]
        found += [
            Finding(
                f"sharpness correlates most with the squared Frobenius norm: {tail}",
                "000 §4.2, Fig 16",
                max(best, key=lambda norm: best[norm]) == "frobenius",
                f"mean over D > 1: {listed(means)}",
            ),
            Finding(
                "sharpness correlates with the first matrix's squared spectral norm by 0.25 to "
                f"0.75: {tail}",
                "000 §4.2, Fig 16",
                0.25 <= first <= 0.75,
                f"mean over D > 1: {first:.2f}",
            ),
        ]
    found.append(on_training(settings, records, "000 App D.1.3"))
    return found


EXPERIMENT = Experiment(
    id="sharpness-norms-relu",
    title="Sharpness and the norms of two layers with ReLU",
    figures=("000 F16",),
    shows="how the largest eigenvalue of ReLU networks correlates with squared norms of the "
    "weights, before and after training",
    presets={
        "tiny": Settings(width=6, sizes=(1, 2), networks=4, samples=64, batch=32, epochs=5),
        "quick": Settings(),
        "paper": Settings(
            width=100,
            sizes=(1, 2, 3, 5, 8, 10, 20, 30, 50, 75, 100),
            networks=200,
            samples=1024,
            epochs=2000,
        ),
    },
    tasks=size_tasks,
    run=run,
    draw=draw,
    findings=findings,
    minutes={"quick": 0.8, "paper": 430},
)
