"""Sharpness against norms of the weights, in ReLU networks (000 Figure 16)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from hessence.experiments import Experiment, Finding, Record, Task
from hessence.experiments.correlations import (
    NAMES,
    NORMS,
    draw_by_size,
    listed,
    mean_correlations,
    norm_lines,
)
from hessence.experiments.network_stacks import (
    Parametrisation,
    Schedule,
    Stack,
    Teacher,
    draw_data,
    draw_stack,
    sharpness,
    squared_norms,
    train,
    unexplained,
)

LAYERS = ("W1", "W2")


@dataclass(frozen=True)
class Settings:
    """Two-layer ReLU networks with as many inputs as outputs, and a random teacher with noise.

    The fields are those of ``sharpness-norms``; the teacher is one layer with ReLU.
    """

    width: int = 60
    sizes: tuple[int, ...] = (1, 2, 4, 8)
    parametrisations: tuple[Parametrisation, ...] = ("standard", "ntk", "mup")
    networks: int = 40
    samples: int = 512
    noise: float = 0.01
    teacher: Teacher = "scaled"
    rate: float = 1e-2
    wide_rate: float = 1.0
    wide_from: int = 10
    smallest_rate: float = 1e-5
    batch: int = 128
    epochs: int = 1000

    def __post_init__(self) -> None:
        if self.networks < 3 or min(self.sizes) < 1:
            raise ValueError("networks must be at least 3 and sizes at least 1")


def tasks(settings: Settings) -> Iterator[Task]:
    """All networks of one parametrisation and size at a time."""
    for kind, size in product(settings.parametrisations, settings.sizes):
        yield {"parametrisation": kind, "size": size}


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Measure a stack of networks, train it, and measure it again."""
    kind, size = task["parametrisation"], task["size"]
    x, y = draw_data("relu", size, settings.samples, settings.noise, settings.teacher, rng)
    stack = draw_stack(kind, (size, settings.width, size), settings.networks, rng)
    wide = kind == "mup" and size >= settings.wide_from
    schedule = Schedule(
        settings.wide_rate if wide else settings.rate,
        settings.smallest_rate,
        settings.batch,
        epochs=settings.epochs,
    )
    trained, losses = train(stack, x, y, "relu", schedule, rng)
    return {
        "initial": measured(stack, x, y),
        "trained": measured(trained, x, y),
        "left": unexplained(losses, y, settings.noise),
    }


def measured(stack: Stack, x: Any, y: Any) -> Record:
    """Return sharpness and squared norms of every network."""
    found = {"sharpness": sharpness(stack, x, y, "relu")}
    for name, matrix in zip(LAYERS, stack.weights, strict=True):
        found |= {f"{name} {norm}": v for norm, v in squared_norms(matrix).items()}
    return found


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
    share = np.concatenate([r["left"] for r in records]).astype(float)
    hardest = max(float(np.nanmedian(np.asarray(r["left"], dtype=float))) for r in records)
    found.append(
        Finding(
            "training brings the loss close to zero",
            "000 App D.1.3",
            hardest < 0.1,
            f"{np.nanmedian(share):.1%} of the loss above the noise is left in the median, "
            f"{hardest:.1%} at the hardest size; {int(np.isnan(share).sum())} of {share.size} "
            "networks diverged and are left out",
        )
    )
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
    tasks=tasks,
    run=run,
    draw=draw,
    findings=findings,
    minutes={"quick": 1, "paper": 240},
)
