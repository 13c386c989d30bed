"""Two clusters of eigenvalues on balanced data, apart by the depth (004 Figures 1 to 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.settings import at_least
from hessence.papers.experiments.shared.gradient_descent import (
    activated_gradient,
    checkpoints,
    half_squared_error,
    torch_model,
    train,
)
from hessence.plotting.axes import COLOURS, GREY

CLUSTERS = ("dominant", "bulk", "rest")
SHADES = dict(zip(CLUSTERS, (COLOURS[1], COLOURS[0], GREY), strict=True))
Path = tuple[dict[int, float], dict[int, Any]]
"""Loss and eigenvalues of a network by step."""


@dataclass(frozen=True)
class Settings:
    """Balanced networks that learn a map of rank r with equal singular values, on white inputs.

    `scales` are those of the inputs of networks with an activation; linear ones have 1, and so have
    all of the paper's. The learning rate `lr` is for inputs of scale 1; others have lr / scale², to
    learn as fast. Clusters are looked at after `early` steps and at the end: the paper does not
    tell how long it trains, and with an activation that decides.
    """

    inputs: int = 10
    outputs: int = 8
    width: int = 10
    rank: int = 4
    samples: int = 400
    depths: tuple[Annotated[int, at_least(2)], ...] = (2, 3, 4, 5, 6, 7, 8, 9, 10)
    shown: tuple[int, ...] = (3, 6)
    kinds: tuple[Literal["linear", "activated"], ...] = ("linear", "activated")
    activation: Literal["tanh", "relu", "leaky-relu"] = "tanh"
    scales: tuple[float, ...] = (1.0, 0.3)
    target: float = 1.0
    initial: float = 0.8
    spread: Annotated[float, at_least(0)] = 0.05
    networks: int = 3
    lr: float = 0.02
    early: int = 800
    steps: int = 10_000
    looks: Annotated[int, at_least(2)] = 40

    def __post_init__(self) -> None:
        if self.rank > min(self.inputs, self.outputs, self.width):
            raise ValueError("rank must be at most inputs, outputs and width")
        if not set(self.shown) <= set(self.depths):
            raise ValueError("shown must be some of the depths")
        if self.samples < self.inputs:
            raise ValueError(f"samples must be at least the inputs, {self.inputs}")
        if self.early >= self.steps:
            raise ValueError("early must be below steps")

    @property
    def cases(self) -> list[tuple[str, float]]:
        """Kinds of networks and scales of their inputs."""
        scales = {"linear": (1.0,), "activated": self.scales}
        return [(kind, scale) for kind in self.kinds for scale in scales[kind]]

    @property
    def stops(self) -> tuple[int, int]:
        """After how many steps clusters are looked at."""
        return self.early, self.steps

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
    shown = depth in settings.shown
    kept = sorted({*settings.stops, *checkpoints(settings.steps, settings.looks if shown else 2)})
    if task["kind"] == "linear":
        found = [linear_run(settings, *pair, x, kept) for pair in zip(starts, targets, strict=True)]
    else:
        found = activated_run(settings, starts, targets, x, kept, settings.lr / task["scale"] ** 2)
    at_stops = [[values[stop] for _, values in found] for stop in settings.stops]
    return {
        "steps": kept,
        "losses": [[losses[step] for step in kept] for losses, _ in found],
        "first": [found[0][1][step] for step in kept] if shown else [],
        "clusters": [[split(settings, v) for v in each] for each in at_stops],
        "dominant_count": [[gap_after(settings, v) for v in each] for each in at_stops],
    }


def linear_run(settings: Settings, net: Any, y: Any, x: Any, kept: list[int]) -> Path:
    """Follow the singular values through training: exact spectra, whatever the width."""
    path = hs.gradient_descent(net, x, y, lr=settings.lr, steps=settings.steps)
    return {i: path.loss[i] for i in kept}, {i: path.spectrum(i).eigenvalues for i in kept}


def activated_run(
    settings: Settings,
    starts: list[Any],
    targets: list[Any],
    x: Any,
    kept: list[int],
    rate: float,
) -> list[Path]:
    """Train a batch of networks with an activation and diagonalise their Hessians."""
    import torch

    nets = [np.stack(layers) for layers in zip(*(net.weights for net in starts), strict=True)]
    y = np.stack(targets)
    gradient = activated_gradient(x, y, settings.activation)
    found: list[Path] = [({}, {}) for _ in starts]
    for point in train(nets, gradient, rate, settings.steps, kept, halving=False):
        for i, (losses, values) in enumerate(found):
            losses[point.step] = point.loss[i]
            # Only the first network is shown along training.
            if i and point.step not in settings.stops:
                continue
            model = torch_model([w[i] for w in point.weights], settings.activation)
            data = torch.from_numpy(np.array(x)), torch.from_numpy(np.array(y[i]))
            dense = hs.hessian(model, data, half_squared_error).dense()
            values[point.step] = np.linalg.eigvalsh(dense.numpy())[::-1]
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
    found = []
    for kind, scale in settings.cases:
        rows = _rows(records, kind, scale)
        # Linear networks have arrived early; with an activation it matters when one looks.
        for stop in settings.stops[1:] if kind == "linear" else settings.stops:
            found += _on_clusters(settings, rows, kind, scale, stop)
        found.append(_on_training(settings, rows, kind, scale))
    return found


def _rows(records: list[Record], kind: str, scale: float) -> list[Record]:
    return [r for r in records if (r["kind"], r["scale"]) == (kind, scale)]


def _named(settings: Settings, kind: str, scale: float) -> tuple[str, str]:
    """Return what a group of networks is called, and where the paper has it."""
    if kind == "linear":
        return "linear", "004 Thm 3.5, Cor 3.6, Fig 2"
    where = "004 §4, Fig 3" if scale == 1 else "004 §4, Fig 3, at a scale of our own"
    return f"{settings.activation}, inputs of scale {scale:g}", where


def _on_clusters(
    settings: Settings, rows: list[Record], kind: str, scale: float, stop: int
) -> list[Finding]:
    title, where = _named(settings, kind, scale)
    name = f"{title}, {stop} steps"
    a, b = settings.sizes
    place = settings.stops.index(stop)
    counts = [count for row in rows for count in row["dominant_count"][place]]
    gaps = [c["dominant"][0] / c["bulk"][2] for row in rows for c in row["clusters"][place]]
    depths = np.asarray([row["depth"] for row in rows])
    ratios = np.asarray([_ratio(row, place) for row in rows])
    off = np.abs(ratios / depths - 1)
    bulk = np.asarray([_mean(row, "bulk", place) for row in rows])
    allowed = 0.02 if kind == "linear" else 0.25
    # At two layers the clusters are closest: a factor of two at most.
    apart = np.mean([count == a for count in counts])
    line = np.corrcoef(depths, ratios)[0, 1] if len(rows) > 2 else None
    return [
        Finding(
            f"{name}: the non-zero spectrum splits cleanly into {a} dominant and {b} bulk "
            "eigenvalues",
            where,
            apart == 1 and min(gaps) > 1,
            f"the widest gap comes after {a} eigenvalues in {apart:.0%} of {len(counts)} networks; "
            f"the least dominant one is at least {min(gaps):.2f} times the bulk's largest",
        ),
        Finding(
            f"{name}: the ratio of the clusters is the depth",
            where,
            off.max() < allowed,
            "ratio by depth: "
            + ", ".join(f"{d}: {ratio:.2f}" for d, ratio in zip(depths, ratios, strict=True))
            + f"; {off.max():.0%} off at most, {allowed:.0%} allowed",
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
    ]


def _on_training(settings: Settings, rows: list[Record], kind: str, scale: float) -> Finding:
    name, where = _named(settings, kind, scale)
    early, last = (
        np.asarray([
            losses[row["steps"].index(stop)] / losses[0] for row in rows for losses in row["losses"]
        ])
        for stop in settings.stops
    )  # fmt: skip
    return Finding(
        f"{name}: training converges",
        where,
        last.max() < (1e-6 if kind == "linear" else 0.1),
        f"the loss falls to {np.median(last):.1e} (median), {last.max():.1e} (most) of its start; "
        f"after {settings.early} steps {np.median(early):.1e} were left",
    )


def _ratio(row: Record, place: int) -> float:
    return _mean(row, "dominant", place) / _mean(row, "bulk", place)


def _mean(row: Record, name: str, place: int) -> float:
    return float(np.mean([cluster[name][1] for cluster in row["clusters"][place]]))


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
            if kind != "linear":
                ax.axvline(settings.early + 1, color=GREY, linestyle=":", linewidth=1)
            steps = np.asarray(rows[depth]["steps"]) + 1
            for i, losses in enumerate(rows[depth]["losses"]):
                middle.loglog(steps, np.maximum(losses, 1e-30), color=colour,
                              label=f"depth {depth}" if i == 0 else None)  # fmt: skip
        middle.set_xlabel("step + 1")
        middle.set_title(f"{name}, loss")
        if settings.shown:
            middle.legend(frameon=False)
        _draw_ratio(right, settings, rows, kind)
        right.set_title(f"{name}, after {settings.steps} steps")


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


def _draw_ratio(ax: Any, settings: Settings, rows: dict[int, Record], kind: str) -> None:
    depths = np.asarray(sorted(rows))
    for name in ("dominant", "bulk"):
        values = [_mean(rows[depth], name, -1) / rows[depth]["scale"] ** 2 for depth in depths]
        ax.plot(depths, values, "o-", color=SHADES[name], label=f"{name}, mean / scale²")
    marks = {-1: ("s", settings.steps)} if kind == "linear" else {
        0: ("^", settings.early), -1: ("s", settings.steps)
    }  # fmt: skip
    for place, (mark, stop) in marks.items():
        ratio = [_ratio(rows[depth], place) for depth in depths]
        ax.plot(depths, ratio, mark, color="black", markerfacecolor="none", markersize=9,
                label=f"ratio, {stop} steps")  # fmt: skip
    ax.plot(depths, depths, "--", color=GREY, label="ratio = depth")
    if kind != "linear":
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "25" else "")
    ax.set_xlabel("depth")
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, fontsize=9)


EXPERIMENT = Experiment(
    id="depth-bifurcation",
    title="Depth splits the spectrum on balanced data",
    figures=("004 F1", "004 F2", "004 F3"),
    shows="eigenvalues of deep networks along training on balanced data, and their ratio by depth",
    presets={
        "tiny": Settings(4, 3, 4, 2, samples=30, depths=(2, 3), shown=(3,), networks=2, early=20,
                         steps=50, looks=3, scales=(0.3,)),
        "quick": Settings(samples=200, depths=(2, 3, 4, 6, 8), networks=2, looks=16),
        "paper": Settings(networks=10, samples=1000),
    },
    tasks=tasks,
    run=run,
    draw={"linear": draw_linear, "activated": draw_activated},
    findings=findings,
    minutes={"quick": 0.8, "paper": 90},
    packages=("torch",),
)  # fmt: skip
