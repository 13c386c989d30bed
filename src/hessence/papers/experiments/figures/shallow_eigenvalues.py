"""Top eigenvalues of two-layer networks along training, by formula (002 Figure 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.shared.gradient_descent import (
    checkpoints,
    seen_inputs,
    standard_networks,
    train_linear,
)
from hessence.papers.experiments.shared.image_training import (
    PathSettings,
    path_panels,
    path_tasks,
    white_images,
)
from hessence.plotting.axes import COLOURS


@dataclass(frozen=True)
class Settings(PathSettings):
    """Two-layer linear networks on whitened images, looked at several times in training."""

    lr: float = 0.001
    draws: int = 3
    width: int = 256
    top: int = 10


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Train a network; find the largest eigenvalues of its Hessian, and predict them."""
    x, y = white_images(settings, task, rng)
    start = standard_networks((x.shape[1], settings.width, y.shape[1]), 1, rng)
    kept = checkpoints(settings.steps, settings.looks)
    steps, losses, errors, computed = [], [], [], []
    for point in train_linear(start, x, y, settings.lr, settings.steps, kept):
        first, second = (w[0] for w in point.weights)
        values = top_eigenvalues(first, second, x, y, settings.top, rng)
        predicted = pair_sums(first, second, settings.top)
        steps.append(point.step)
        losses.append(point.loss[0])
        computed.append(values)
        errors.append(np.abs(predicted / values - 1))
    return {
        "step": steps,
        "loss": losses,
        "errors": errors,
        "eigenvalues": computed,
        "spectral_norms": [np.linalg.norm(first, 2), np.linalg.norm(second, 2)],
        "samples": len(x),
    }


def top_eigenvalues(first: Any, second: Any, x: Any, y: Any, top: int, rng: Any) -> Any:
    """Return the largest eigenvalues of the Hessian for white inputs.

    On inputs that neither W_1 nor the labels see, the Hessian is W_2ᵀ W_2, and no part of the
    answer: inputs that are seen bring d_0 down to d_1 + d_2 at most.
    """
    basis = seen_inputs(first, y.T @ x / len(x))
    if basis is not None:
        first, x = first @ basis, x @ basis
    hessian = hs.TwoLayerLinear(first, second).hessian(x, y)
    values = np.asarray(hessian.top(top, tol=1e-6, rng=rng).eigenvalues)
    if basis is not None and values[-1] <= np.linalg.norm(second, 2) ** 2:
        raise ArithmeticError("eigenvalues of unseen inputs are among the largest")
    return values


def pair_sums(first: Any, second: Any, top: int) -> Any:
    """Return the largest σ_i²(W_1) + σ_j²(W_2), equation 15 for white inputs of variance 1."""
    a, b = (np.linalg.svd(w, compute_uv=False) ** 2 for w in (first, second))
    return np.sort((a[:, None] + b[None, :]).ravel())[::-1][:top]


def draw(settings: Settings, records: list[Record], figure: Any) -> None:
    """As the loss falls, sums of two squared singular values come closer to the top eigenvalues."""
    shades = np.linspace(1.0, 0.25, settings.top)
    for ax, row, steps in path_panels(settings, records, figure):
        for i, errors in enumerate(np.asarray(row["errors"]).T):
            label = f"eigenvalue {i + 1}" if i in (0, settings.top - 1) else None
            ax.loglog(steps, 100 * errors, color=COLOURS[0], alpha=shades[i], label=label)
        ax.loglog(steps, 100 * np.mean(row["errors"], axis=1), color=COLOURS[1], linewidth=2.4,
                  label=f"mean of {settings.top}")  # fmt: skip
        ax.set_ylabel("error of the formula in percent")


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with equations 10 and 15 and what the paper says of the figure."""
    starts = np.asarray([np.mean(record["errors"][0]) for record in records])
    ends = np.asarray([np.mean(record["errors"][-1]) for record in records])
    curves = [np.mean(record["errors"], axis=1) for record in records]
    falls = np.concatenate([np.diff(curve) < 0 for curve in curves])
    sums = [np.sum(np.square(r["spectral_norms"])) / r["eigenvalues"][-1][0] for r in records]
    larger = [np.max(np.square(r["spectral_norms"])) / r["eigenvalues"][-1][0] for r in records]
    return [
        Finding(
            "002-closer",
            bool((ends < starts).all()),
            f"mean error of the top {settings.top} from {starts.mean():.2%} to {ends.mean():.4%}; "
            f"it falls in {falls.mean():.0%} of the intervals between looks",
            criterion=f"in every network the mean error of the top {settings.top} is less at the "
            "end than at the start",
        ),
        Finding(
            "002-eq10",
            np.abs(np.subtract(sums, 1)).max() < 0.02,
            f"after training the sum is {min(sums):.3f} to {max(sums):.3f} times the sharpness, "
            f"the larger term {min(larger):.3f} to {max(larger):.3f} times",
            criterion="the sum is within 2 % of the sharpness at the end",
        ),
    ]


EXPERIMENT = Experiment(
    id="shallow-eigenvalues",
    title="Top eigenvalues of a two-layer network from its singular values",
    figures=("002 F4",),
    shows="the error of predicted top eigenvalues of a two-layer linear network along training",
    presets={
        "tiny": Settings(width=8, top=3, steps=20, looks=3, draws=1),
        "quick": Settings(steps=6000, looks=12, draws=2),
        "paper": Settings(data=("mnist", "fashion-mnist", "cifar10")),
    },
    tasks=path_tasks,
    run=run,
    draw=draw,
    findings=findings,
    minutes={"quick": 0.2, "paper": 20},
    data=lambda settings: settings.data,
)
