"""Sharpness by class share without whitening, without balance, with tanh (002 Figure 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

import hessence as hs
from hessence.experiments import Experiment, Finding, Record, Task
from hessence.experiments.stacked_training import (
    activated_gradient,
    balanced_stack,
    class_subset,
    half_squared_error,
    standard_stack,
    torch_model,
    train,
    train_linear,
    white_inputs,
)
from hessence.plotting import COLOURS, GREY

Arm = Literal["raw", "kaiming", "tanh"]
TITLES = {
    "raw": "raw inputs",
    "kaiming": "Kaiming initialisation",
    "tanh": "tanh between layers",
}


@dataclass(frozen=True)
class Settings:
    """Networks that leave out one assumption at a time, on images with one class in excess."""

    arms: tuple[Arm, ...] = ("raw", "kaiming", "tanh")
    data: tuple[str, ...] = ("digits",)
    subset: int = 5000
    shares: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    hidden: tuple[int, ...] = (64, 64, 64)
    networks: int = 3
    initial: float = 1.0
    lr: float = 0.01
    steps: int = 10_000
    tanh_networks: int = 1

    def __post_init__(self) -> None:
        if not self.shares or not all(0 < share < 1 for share in self.shares):
            raise ValueError("shares must lie between 0 and 1")
        if min(self.networks, self.tanh_networks, self.steps) < 1:
            raise ValueError("networks, tanh_networks and steps must be at least 1")


def tasks(settings: Settings) -> Iterator[Task]:
    """One stack of networks for each assumption, data set and share."""
    for arm, data, share in product(settings.arms, settings.data, settings.shares):
        yield {"arm": arm, "data": data, "share": share}


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Train a stack of networks and measure their sharpness."""
    images = class_subset(task["data"], settings.subset, task["share"], settings.shares, rng)
    x = images.x if task["arm"] == "raw" else white_inputs(images.x)
    y = images.one_hot
    dims = (x.shape[1], *settings.hidden, y.shape[1])
    depth, last = len(dims) - 1, settings.steps
    if task["arm"] == "tanh":
        start = balanced_stack(dims, settings.initial, settings.tanh_networks, rng)
        (end,) = train(start, activated_gradient(x, y, "tanh"), settings.lr, last, [last])
        sharpness = [
            tanh_sharpness([w[i] for w in end.weights], x, y) for i in range(len(start[0]))
        ]
    else:
        build = standard_stack if task["arm"] == "kaiming" else _balanced(settings)
        (end,) = train_linear(build(dims, settings.networks, rng), x, y, settings.lr, last, [last])
        hessian = hs.DeepLinear(end.weights).hessian(x, y)
        sharpness = np.asarray(hessian.top(1, tol=1e-6).eigenvalues)[:, 0].tolist()
    largest = float(y.mean(axis=0).max())
    return {
        "largest_share": largest,
        "by_labels": depth * largest ** (1 - 1 / depth),
        "by_data": hs.solution_spectrum(x, y, depth).sharpness,
        "sharpness": sharpness,
        "loss": end.loss,
        "rate": end.rate,
        "samples": len(x),
    }


def tanh_sharpness(layers: list[Any], x: Any, y: Any) -> float:
    """Return the largest eigenvalue of the Hessian of a network with tanh between its layers."""
    import torch

    data = torch.from_numpy(np.array(x)), torch.from_numpy(np.array(y))
    hessian = hs.hessian(torch_model(layers, "tanh"), data, half_squared_error)
    return float(hs.eigenpairs(hessian, k=1, tol=1e-4).eigenvalues[0])


def draw(settings: Settings, records: list[Record], figure: Any) -> None:
    """Draw one panel for each assumption."""
    columns = len(settings.arms)
    figure.set_size_inches(4.7 * columns, 4.2)
    depth = len(settings.hidden) + 1
    grid = np.linspace(0, 1, 200)
    for ax, arm in zip(figure.subplots(1, columns, squeeze=False)[0], settings.arms, strict=True):
        ax.plot(grid, depth * grid ** (1 - 1 / depth), color=GREY, label="L α^(1 − 1/L)")
        for data, colour in zip(settings.data, COLOURS, strict=False):
            rows = [r for r in records if (r["arm"], r["data"]) == (arm, data)]
            alpha = [row["largest_share"] for row in rows]
            if arm != "raw":  # where the solution of least squares is hundreds of times as sharp
                ax.plot(alpha, [row["by_data"] for row in rows], "+", color=colour, markersize=11,
                        label=f"{data}, predicted from all data")  # fmt: skip
            for i, values in enumerate(zip(*(row["sharpness"] for row in rows), strict=True)):
                ax.plot(alpha, values, "o", color=colour, markersize=5, markerfacecolor="none",
                        label=f"{data}, trained" if i == 0 else None)  # fmt: skip
        ax.set_title(TITLES[arm])
        ax.set_xlabel("largest share α of a class")
        ax.set_ylim(bottom=0)
        ax.legend(frameon=False)
        ax.set_ylabel("sharpness")


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with what the paper says of its three panels."""
    found = []
    for arm in settings.arms:
        rows = [record for record in records if record["arm"] == arm]
        by_labels = _gaps(rows)
        order = _order(settings, rows)
        median, most = np.median(by_labels), by_labels.max()
        off = f"off L α^(1 − 1/L) by {median:.1%} (median), {most:.1%} (most)"
        up = "needs two shares" if order is None else f"rank correlation with the share {order:.2f}"
        if arm == "raw":
            found += [
                Finding("without whitening, the formula breaks down", "002 §5, Fig 2a",
                        median > 0.5, f"{off}; the balanced least-squares solution, "
                        f"which training is far from, has {_span(rows, 'by_data')}"),
                Finding("without whitening, sharpness varies inconsistently with the share",
                        "002 §5, Fig 2a", None if order is None else order < 0.9, up),
            ]  # fmt: skip
        elif arm == "kaiming":
            found += [
                Finding("unbalanced initialisation leaves the prediction intact", "002 §5, Fig 2b",
                        median < 0.1, off),
                Finding("unbalanced networks are sharper with one class in excess",
                        "002 §5, Fig 2b", None if order is None else order > 0.9, up),
            ]  # fmt: skip
        else:
            found += [
                Finding("with tanh, sharpness differs slightly from the prediction",
                        "002 §5, Fig 2c", median < 0.3, off),
                Finding("tanh networks are sharper with one class in excess",
                        "002 §5, Fig 2c", None if order is None else order > 0.9, up),
            ]  # fmt: skip
    return found


def _balanced(settings: Settings) -> Any:
    return lambda dims, count, rng: balanced_stack(dims, settings.initial, count, rng)


def _gaps(rows: list[Record]) -> Any:
    return np.concatenate([np.abs(np.asarray(r["sharpness"]) / r["by_labels"] - 1) for r in rows])


def _span(rows: list[Record], name: str) -> str:
    values = [row[name] for row in rows]
    return f"{min(values):.3g} to {max(values):.3g}"


def _order(settings: Settings, rows: list[Record]) -> float | None:
    """Return the rank correlation of mean sharpness and share, the lowest of all data sets."""
    from scipy.stats import spearmanr

    if len(settings.shares) < 2:
        return None
    return min(
        float(spearmanr(*zip(*((r["largest_share"], np.mean(r["sharpness"])) for r in rows
                               if r["data"] == data), strict=True)).statistic)
        for data in settings.data
    )  # fmt: skip


EXPERIMENT = Experiment(
    id="solution-ablations",
    title="Class shares and sharpness beyond the assumptions",
    figures=("002 F2",),
    shows="sharpness of trained networks by class share: raw inputs, no balance, tanh",
    presets={
        "tiny": Settings(shares=(0.2, 0.8), hidden=(10, 10), networks=2, steps=50),
        "quick": Settings(shares=(0.1, 0.3, 0.5, 0.7, 0.9), steps=3000),
        "paper": Settings(data=("mnist", "fashion-mnist", "cifar10")),
    },
    tasks=tasks,
    run=run,
    draw=draw,
    findings=findings,
    minutes={"quick": 1, "paper": 600},
    common=("arm",),
    data=lambda settings: settings.data,
    packages=("torch",),
)
