"""Two clusters of eigenvalues on balanced data, apart by the depth (004 Figures 1 to 3)."""

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
    checkpoints,
    half_squared_error,
    torch_model,
    train,
)
from hessence.plotting import COLOURS, GREY

CLUSTERS = ("dominant", "bulk", "rest")
SHADES = dict(zip(CLUSTERS, (COLOURS[1], COLOURS[0], GREY), strict=True))


@dataclass(frozen=True)
class Settings:
    """Balanced networks that learn a map of rank r with equal singular values, on white inputs.

    `scales` are those of the inputs of networks with an activation; linear ones have 1. The
    learning rate `lr` is for inputs of scale 1; others have lr / scale², to learn as fast.
    """

    inputs: int = 10
    outputs: int = 8
    width: int = 10
    rank: int = 4
    samples: int = 400
    depths: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8, 9, 10)
    shown: tuple[int, ...] = (3, 6)
    kinds: tuple[Literal["linear", "activated"], ...] = ("linear", "activated")
    activation: Literal["tanh", "relu", "leaky-relu"] = "tanh"
    scales: tuple[float, ...] = (1.0, 0.3)
    target: float = 1.0
    initial: float = 0.8
    spread: float = 0.05
    networks: int = 3
    lr: float = 0.02
    steps: int = 3000
    looks: int = 40

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= min(self.inputs, self.outputs, self.width):
            raise ValueError("rank must be between 1 and the smallest width")
        if not self.depths or min(self.depths) < 2:
            raise ValueError("depths must be at least 2")
        if not set(self.shown) <= set(self.depths):
            raise ValueError("shown must be some of the depths")
        if self.samples < self.inputs:
            raise ValueError(f"samples must be at least the inputs, {self.inputs}")
        if not self.kinds or min(self.networks, self.steps) < 1 or self.looks < 2:
            raise ValueError("kinds, networks and steps must be at least 1, looks at least 2")

    @property
    def cases(self) -> list[tuple[str, float]]:
        """Kinds of networks and scales of their inputs."""
        scales = {"linear": (1.0,), "activated": self.scales}
        return [(kind, scale) for kind in self.kinds for scale in scales[kind]]

    @property
    def sizes(self) -> tuple[int, int]:
        """How many eigenvalues theory puts into the dominant cluster and into the bulk."""
        r = self.rank
        return r * r, r * (self.inputs + self.outputs - 2 * r)


def tasks(settings: Settings) -> Iterator[Task]:
    """Networks of one depth at a time, with or without an activation."""
    for (kind, scale), depth in product(settings.cases, settings.depths):
        yield {"kind": kind, "scale": scale, "depth": depth}


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Train networks and find all their eigenvalues at several steps."""
    x = hs.whiten(rng.normal(size=(settings.samples, settings.inputs)), task["scale"])
    depth = task["depth"]
    dims = (settings.inputs, *[settings.width] * (depth - 1), settings.outputs)
    starts, targets = [], []
    for _ in range(settings.networks):
        near = rng.uniform(-settings.spread, settings.spread, size=settings.rank)
        net = hs.DeepLinear.balanced(dims, settings.initial * (1 + near), rng=rng)
        left, _, right = np.linalg.svd(net.product)
        chosen = slice(settings.rank)
        starts.append(net)
        targets.append(settings.target * x @ (left[:, chosen] @ right[chosen]).T)
    kept = checkpoints(settings.steps, settings.looks if depth in settings.shown else 2)
    if task["kind"] == "linear":
        found = [linear_run(settings, *pair, x, kept) for pair in zip(starts, targets, strict=True)]
    else:
        found = activated_run(settings, starts, targets, x, kept, settings.lr / task["scale"] ** 2)
    losses = [loss for loss, _ in found]
    ends = [values[-1] for _, values in found]
    return {
        "steps": kept,
        "losses": losses,
        "first": found[0][1] if depth in settings.shown else [],
        "clusters": [split(settings, values) for values in ends],
        "dominant_count": [gap_after(settings, values) for values in ends],
    }


def linear_run(
    settings: Settings, net: Any, y: Any, x: Any, kept: list[int]
) -> tuple[list[float], list[Any]]:
    """Follow the singular values through training: exact spectra, whatever the width."""
    path = hs.gradient_descent(net, x, y, lr=settings.lr, steps=settings.steps)
    return [path.loss[i] for i in kept], [path.spectrum(i).eigenvalues for i in kept]


def activated_run(
    settings: Settings,
    starts: list[Any],
    targets: list[Any],
    x: Any,
    kept: list[int],
    rate: float,
) -> list[tuple[list[float], list[Any]]]:
    """Train a stack of networks with an activation and diagonalise their Hessians."""
    import torch

    stack = [np.stack(layers) for layers in zip(*(net.weights for net in starts), strict=True)]
    y = np.stack(targets)
    gradient = activated_gradient(x, y, settings.activation)
    found: list[tuple[list[float], list[Any]]] = [([], []) for _ in starts]
    # Only the first network is shown along training.
    for shot in train(stack, gradient, rate, settings.steps, kept, halving=False):
        for i, (losses, values) in enumerate(found):
            losses.append(shot.loss[i])
            if i and shot.step != kept[-1]:
                continue
            model = torch_model([w[i] for w in shot.weights], settings.activation)
            data = torch.from_numpy(np.array(x)), torch.from_numpy(np.array(y[i]))
            dense = hs.hessian(model, data, half_squared_error).dense()
            values.append(np.linalg.eigvalsh(dense.numpy())[::-1])
    return found


def split(settings: Settings, values: Any) -> dict[str, list[float]]:
    """Return least, mean and largest of the two clusters, and the largest size of the rest."""
    a, b = settings.sizes
    parts = {"dominant": values[:a], "bulk": values[a : a + b]}
    rest = float(np.abs(values[a + b :]).max(initial=0.0))
    spans = {
        name: [float(v.min()), float(v.mean()), float(v.max())] if len(v) else [np.nan] * 3
        for name, v in parts.items()
    }
    return {**spans, "rest": [rest]}


def gap_after(settings: Settings, values: Any) -> int:
    """Return after how many of the eigenvalues of both clusters the largest ratio comes."""
    both = np.maximum(values[: sum(settings.sizes)], 1e-9 * values[0])
    return int(np.argmax(both[:-1] / both[1:])) + 1


def draw_linear(settings: Settings, records: list[Record], figure: Any) -> None:
    """Draw eigenvalues and loss along training, and the ratio against the depth."""
    _draw(settings, records, figure, "linear")


def draw_activated(settings: Settings, records: list[Record], figure: Any) -> None:
    """Draw the same for networks with an activation."""
    _draw(settings, records, figure, "activated")


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with Theorem 3.5, Corollary 3.6 and Section 4."""
    return [
        finding
        for kind, scale in settings.cases
        for finding in _findings(settings, _rows(records, kind, scale), kind, scale)
    ]


def _rows(records: list[Record], kind: str, scale: float) -> list[Record]:
    return [r for r in records if (r["kind"], r["scale"]) == (kind, scale)]


def _findings(settings: Settings, rows: list[Record], kind: str, scale: float) -> list[Finding]:
    where = "004 Thm 3.5, Cor 3.6, Fig 2" if kind == "linear" else "004 §4, Fig 3"
    name = "linear" if kind == "linear" else f"{settings.activation}, inputs of scale {scale:g}"
    a, b = settings.sizes
    counts = [count for row in rows for count in row["dominant_count"]]
    gaps = [c["dominant"][0] / c["bulk"][2] for row in rows for c in row["clusters"]]
    depths = np.asarray([row["depth"] for row in rows])
    ratios = np.asarray([_mean(row, "dominant") / _mean(row, "bulk") for row in rows])
    off = np.abs(ratios / depths - 1)
    bulk = np.asarray([_mean(row, "bulk") for row in rows])
    falls = np.asarray([row["losses"][i][-1] / row["losses"][i][0] for row in rows
                        for i in range(settings.networks)])  # fmt: skip
    # At two layers the clusters are closest: a factor of two at most.
    apart = np.mean([count == a for count in counts])
    line = np.corrcoef(depths, ratios)[0, 1] if len(rows) > 2 else None
    return [
        Finding(
            f"{name}: the non-zero spectrum splits into {a} dominant and {b} bulk eigenvalues",
            where,
            apart == 1 and min(gaps) > 1,
            f"the widest gap comes after {a} eigenvalues in {apart:.0%} of {len(counts)} networks; "
            f"dominant ones are at least {min(gaps):.2f} times the bulk's largest",
        ),
        Finding(
            f"{name}: the ratio of the clusters is the depth",
            where,
            off.max() < (0.02 if kind == "linear" else 0.25),
            "ratio by depth: "
            + ", ".join(f"{d}: {ratio:.2f}" for d, ratio in zip(depths, ratios, strict=True)),
        ),
        Finding(
            f"{name}: the ratio grows linearly with depth",
            where,
            None if line is None else line > 0.98,
            "needs three depths" if line is None else f"correlation {line:.4f}",
        ),
        Finding(
            f"{name}: the bulk stays nearly the same at all depths",
            where,
            None if len(rows) < 2 else bulk.max() / bulk.min() < 1.5,
            f"mean of the bulk from {bulk.min():.3g} to {bulk.max():.3g}",
        ),
        Finding(
            f"{name}: training converges",
            where,
            falls.max() < (1e-6 if kind == "linear" else 0.1),
            f"the loss falls to {np.median(falls):.1e} (median), {falls.max():.1e} (most) of its "
            "start",
        ),
    ]


def _mean(row: Record, name: str) -> float:
    return float(np.mean([cluster[name][1] for cluster in row["clusters"]]))


def _draw(settings: Settings, records: list[Record], figure: Any, kind: str) -> None:
    scales = [scale for own, scale in settings.cases if own == kind]
    columns = len(settings.shown) + 2
    figure.set_size_inches(4.1 * columns, 4.4 * max(len(scales), 1))
    if not scales:
        return
    for axes, scale in zip(
        figure.subplots(len(scales), columns, squeeze=False), scales, strict=True
    ):
        rows = {row["depth"]: row for row in _rows(records, kind, scale)}
        *left, middle, right = axes
        name = "linear" if kind == "linear" else f"{settings.activation}, scale {scale:g}"
        for ax, depth, colour in zip(left, settings.shown, COLOURS, strict=False):
            _draw_paths(ax, settings, rows[depth])
            ax.set_title(f"{name}, depth {depth}")
            steps = np.asarray(rows[depth]["steps"]) + 1
            for i, losses in enumerate(rows[depth]["losses"]):
                middle.loglog(steps, np.maximum(losses, 1e-30), color=colour,
                              label=f"depth {depth}" if i == 0 else None)  # fmt: skip
        middle.set_xlabel("step + 1")
        middle.set_title(f"{name}, loss")
        if settings.shown:
            middle.legend(frameon=False)
        _draw_ratio(right, rows)
        right.set_title(f"{name}, after training")


def _draw_paths(ax: Any, settings: Settings, row: Record) -> None:
    steps = np.asarray(row["steps"]) + 1
    a, b = settings.sizes
    values = np.asarray(row["first"])
    parts = (values[:, a + b :], values[:, a : a + b], values[:, :a])
    for name, part in zip(CLUSTERS[::-1], parts, strict=True):
        if not part.size:
            continue
        label = f"{name}, {part.shape[1]} eigenvalues"
        ax.plot(steps, part[:, 0], color=SHADES[name], linewidth=0.8, label=label)
        ax.plot(steps, part[:, 1:], color=SHADES[name], linewidth=0.5, alpha=0.5)
    ax.set_xscale("log")
    ax.set_xlabel("step + 1")
    ax.set_ylabel("eigenvalue")
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15))


def _draw_ratio(ax: Any, rows: dict[int, Record]) -> None:
    depths = np.asarray(sorted(rows))
    for name in ("dominant", "bulk"):
        values = [_mean(rows[depth], name) / rows[depth]["scale"] ** 2 for depth in depths]
        ax.plot(depths, values, "o-", color=SHADES[name], label=f"{name}, mean / scale²")
    ratio = [_mean(rows[depth], "dominant") / _mean(rows[depth], "bulk") for depth in depths]
    ax.plot(depths, ratio, "s", color="black", markerfacecolor="none", markersize=9, label="ratio")
    ax.plot(depths, depths, "--", color=GREY, label="ratio = depth")
    ax.set_xlabel("depth")
    ax.legend(frameon=False)


EXPERIMENT = Experiment(
    id="depth-bifurcation",
    title="Depth splits the spectrum on balanced data",
    figures=("004 F1", "004 F2", "004 F3"),
    shows="eigenvalues of deep networks along training on balanced data, and their ratio by depth",
    presets={
        "tiny": Settings(4, 3, 4, 2, samples=30, depths=(2, 3), shown=(3,), networks=2, steps=50,
                         looks=3, scales=(0.3,)),
        "quick": Settings(samples=200, depths=(2, 3, 4, 6, 8), networks=2, steps=800,
                          looks=12),
        "paper": Settings(networks=10, samples=1000, steps=10_000),
    },
    tasks=tasks,
    run=run,
    draw={"linear": draw_linear, "activated": draw_activated},
    findings=findings,
    minutes={"quick": 1, "paper": 30},
    packages=("torch",),
)  # fmt: skip
