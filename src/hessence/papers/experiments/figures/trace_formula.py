"""The trace of the Hessian along training, by formula and by random vectors (002 Figure 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.settings import at_least, may_be_empty
from hessence.papers.experiments.shared.gradient_descent import (
    checkpoints,
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

FLAT = 0.1
"""A fall by less than this part is no flattening to speak of."""
BLOCK = 10
"""Random vectors multiplied at a time."""


@dataclass(frozen=True)
class Settings(PathSettings):
    """Linear networks on whitened images, looked at several times in training."""

    hidden: Annotated[tuple[int, ...], may_be_empty] = (256, 256, 256)
    vectors: Annotated[int, at_least(4)] = 100


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Train a network and find the trace of its Hessian in three ways at every look."""
    x, y = white_images(settings, task, rng)
    start = standard_networks((x.shape[1], *settings.hidden, y.shape[1]), 1, rng)
    kept = checkpoints(settings.steps, settings.looks)
    rows: dict[str, list[Any]] = {name: [] for name in (
        "step", "loss", "sharpness", "norm", "formula", "hutchinson", "hutchinson_error",
        "xtrace", "xtrace_error")}  # fmt: skip
    first: Any = None
    for point in train_linear(start, x, y, settings.lr, settings.steps, kept):
        hessian = hs.DeepLinear([w[0] for w in point.weights]).hessian(x, y)
        forms = quadratic_forms(hessian, settings.vectors, rng)
        better = hs.trace(hessian, products=settings.vectors, rng=rng)
        top = hessian.top(1, tol=1e-4, v0=first, rng=rng)
        first = top.eigenvectors[:, 0]
        norm = sum(np.sum(w**2) for w in hessian.weights) ** 0.5
        values = (point.step, point.loss[0], top.eigenvalues[0], norm, layer_sum(hessian.weights),
                  forms.mean(), forms.std(ddof=1) / len(forms) ** 0.5,
                  better.value, better.stderr)  # fmt: skip
        for name, value in zip(rows, values, strict=True):
            rows[name].append(float(value))
    return {**rows, "samples": len(x), "inputs": x.shape[1]}


def layer_sum(weights: Any) -> float:
    """Return Σ_ℓ ‖P_ℓ‖² ‖S_ℓ‖², equation 7 for white inputs of variance 1."""
    before = [np.eye(weights[0].shape[1])]
    after = [np.eye(weights[-1].shape[0])]
    for w in weights[:-1]:
        before.append(w @ before[-1])
    for w in weights[:0:-1]:
        after.append(after[-1] @ w)
    return float(sum(np.sum(p**2) * np.sum(s**2) for p, s in zip(before, after[::-1], strict=True)))


def quadratic_forms(hessian: Any, count: int, rng: np.random.Generator) -> Any:
    """Return zᵀ H z for Gaussian vectors z: Hutchinson's estimates of the trace."""
    found: list[float] = []
    while len(found) < count:
        z = rng.normal(size=(hessian.shape[0], min(BLOCK, count - len(found))))
        found.extend(np.sum(z * (hessian @ z), axis=0))
    return np.asarray(found)


def draw(settings: Settings, records: list[Record], figure: Any) -> None:
    """Hutchinson's estimates of the trace lie on the formula throughout training."""
    for ax, row, steps in path_panels(settings, records, figure):
        label = f"Hutchinson, {settings.vectors} products, ± 2 standard errors"
        ax.errorbar(steps, row["hutchinson"], yerr=2 * np.asarray(row["hutchinson_error"]),
                    fmt="o", color=COLOURS[0], markersize=5, capsize=3, label=label)  # fmt: skip
        ax.plot(steps, row["formula"], color=COLOURS[1], label="formula")
        ax.set_ylim(0, 1.15 * max(row["formula"]))
        ax.set_ylabel("trace of the Hessian")


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with equation 7 and what the paper says of the figure."""
    joined = {
        name: np.concatenate([record[name] for record in records])
        for name in ("formula", "hutchinson", "hutchinson_error", "xtrace", "xtrace_error")
    }
    # Gaussian quadratic forms of so many eigenvalues are normal to a good approximation.
    plain = (joined["hutchinson"] - joined["formula"]) / joined["hutchinson_error"]
    better = (joined["xtrace"] - joined["formula"]) / joined["xtrace_error"]
    off = np.abs(joined["hutchinson"] / joined["formula"] - 1)
    sharper = np.abs(joined["xtrace"] / joined["formula"] - 1)
    early = np.asarray([abs(r["hutchinson"][0] / r["formula"][0] - 1) for r in records])
    highest = max(record["loss"][0] for record in records)
    return [
        Finding(
            "002-eq7",
            np.abs(plain).max() < 4 and np.abs(better).max() < 5,
            f"Hutchinson within {np.abs(plain).max():.1f} standard errors ({off.max():.2%}), "
            f"XTrace within {np.abs(better).max():.1f} ({sharper.max():.2%})",
            criterion="Hutchinson within 4 standard errors, XTrace within 5, at every look",
        ),
        Finding(
            "002-high-loss",
            early.max() < 0.02,
            f"{early.max():.2%} off at the start, at a loss of {highest:.2f}; "
            "it is exact at any loss, since the functional part has no diagonal blocks",
            criterion="Hutchinson's estimate within 2 % at the start",
        ),
        _on_flattening(records),
    ]


def _on_flattening(records: list[Record]) -> Finding:
    """Ask for a fall one could see; report any fall at all, too."""
    deepest = {
        name: [1 - min(record[name]) / record[name][0] for record in records]
        for name in ("sharpness", "formula", "norm")
    }
    falls = deepest["sharpness"]
    any_fall = sum(fall > 0 for fall in falls)
    told = "; ".join(
        f"{name} {', '.join(f'{100 * fall:.1f} %' for fall in deepest[key])}"
        for name, key in (("sharpness", "sharpness"), ("trace", "formula"), ("weights", "norm"))
    )
    return Finding(
        "002-flattening",
        min(falls) > FLAT and min(deepest["norm"]) > 0,
        f"deepest fall below the start: {told}. Were any fall "
        f"enough, {any_fall} of {len(falls)} would show it; by the end the trace has grown by "
        + ", ".join(f"{r['formula'][-1] / r['formula'][0] - 1:.0%}" for r in records),
        criterion=f"in every network sharpness falls by more than {FLAT:.0%} below its start, and "
        "the norm of the weights falls",
    )


EXPERIMENT = Experiment(
    id="trace-formula",
    title="The trace by formula and by random vectors",
    figures=("002 F3",),
    shows="the trace of a deep linear network's Hessian along training, estimated and by formula",
    presets={
        "tiny": Settings(hidden=(8, 8), steps=20, looks=3, vectors=10),
        "quick": Settings(looks=10),
        "paper": Settings(data=("mnist", "fashion-mnist", "cifar10")),
    },
    tasks=path_tasks,
    run=run,
    draw=draw,
    findings=findings,
    minutes={"quick": 0.6, "paper": 45},
    data=lambda settings: settings.data,
)
