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
from hessence.papers.experiments.shared.clusters import Looks, looks, on_activated, on_linear
from hessence.papers.experiments.shared.gradient_descent import (
    activated_gradient,
    checkpoints,
    half_squared_error,
    torch_model,
    train,
)
from hessence.plotting.axes import COLOURS, GREY, signed_scale

CLUSTERS = ("dominant", "bulk", "rest")
SHADES = dict(zip(CLUSTERS, (COLOURS[1], COLOURS[0], GREY), strict=True))
LINEAR = 0.3
"""Up to where eigenvalues of networks with an activation are drawn on a linear scale."""
Activation = Literal["linear", "tanh", "relu", "leaky-relu"]
Place = Literal["between", "each"]
PLACES = {"between": "between layers", "each": "after each layer"}
Path = tuple[dict[int, float], dict[int, Any]]
"""Loss and eigenvalues of a network by step."""


@dataclass(frozen=True)
class Settings:
    """Balanced networks that learn a map of rank r with equal singular values, on white inputs.

    The paper's sizes and depths are missing in its text, and so is the name of its activation
    ("with a activation applied after each layer"), so that several are tried, between the layers
    only and after the last one too. `scales` are those of the inputs of networks with tanh between
    layers; all others have 1, and so have all of the paper's. The learning rate `lr` is for inputs
    of scale 1; others have lr / scale², to learn as fast. Clusters are looked at after `early`
    steps and at the end: the paper does not tell how long it trains, and with an activation that
    decides.
    """

    inputs: int = 10
    outputs: int = 8
    width: int = 10
    rank: int = 4
    samples: int = 400
    depths: tuple[Annotated[int, at_least(2)], ...] = (2, 3, 4, 5, 6, 7, 8, 9, 10)
    shown: tuple[int, ...] = (3, 6)
    activations: tuple[Activation, ...] = ("linear", "tanh", "relu", "leaky-relu")
    places: tuple[Place, ...] = ("between", "each")
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
    def cases(self) -> list[tuple[str, str, float]]:
        """Activations, where they stand, and scales of the inputs."""
        found: list[tuple[str, str, float]] = []
        for activation in self.activations:
            if activation == "linear":
                found.append((activation, "between", 1.0))
                continue
            for place in self.places:
                scaled = (activation, place) == ("tanh", "between")
                found += [
                    (activation, place, scale) for scale in (self.scales if scaled else (1.0,))
                ]
        return found

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
    for (activation, place, scale), depth in product(settings.cases, settings.depths):
        yield {"activation": activation, "place": place, "scale": scale, "depth": depth}


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
    dense_gap = 0.0
    if task["activation"] == "linear":
        found = [linear_run(settings, *pair, x, kept) for pair in zip(starts, targets, strict=True)]
        one, early = (starts[:1], targets[:1]), settings.early
        (whole,) = plain_run(settings, task, *one, x, [early])
        exact = found[0][1][early]
        dense_gap = float(np.abs(whole[1][early] - exact).max() / exact[0])
    else:
        found = plain_run(settings, task, starts, targets, x, kept)
    at_stops = [[values[stop] for _, values in found] for stop in settings.stops]
    return {
        "steps": kept,
        "losses": [[losses[step] for step in kept] for losses, _ in found],
        "first": [found[0][1][step] for step in kept] if shown else [],
        "clusters": [[split(settings, v) for v in each] for each in at_stops],
        "dominant_count": [[gap_after(settings, v) for v in each] for each in at_stops],
        "dense_gap": dense_gap,
    }


def linear_run(settings: Settings, net: Any, y: Any, x: Any, kept: list[int]) -> Path:
    """Follow the singular values through training: exact spectra, whatever the width."""
    path = hs.gradient_descent(net, x, y, lr=settings.lr, steps=settings.steps)
    return {i: path.loss[i] for i in kept}, {i: path.spectrum(i).eigenvalues for i in kept}


def plain_run(
    settings: Settings,
    task: Task,
    starts: list[Any],
    targets: list[Any],
    x: Any,
    kept: list[int],
) -> list[Path]:
    """Train all weights of a batch of networks, and diagonalise their Hessians by autodiff."""
    import torch

    nets = [np.stack(layers) for layers in zip(*(net.weights for net in starts), strict=True)]
    y = np.stack(targets)
    name, last = task["activation"], task["place"] == "each"
    gradient = activated_gradient(x, y, name, last)
    rate = settings.lr / task["scale"] ** 2
    found: list[Path] = [({}, {}) for _ in starts]
    for point in train(nets, gradient, rate, kept[-1], kept, halving=False):
        for i, (losses, values) in enumerate(found):
            losses[point.step] = point.loss[i]
            # Only the first network is shown along training.
            if i and point.step not in settings.stops:
                continue
            model = torch_model([w[i] for w in point.weights], name, last)
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
    """Linear networks end with two clusters of eigenvalues, whose ratio is the depth."""
    rows = {row["depth"]: row for row in _rows(records, ("linear", "between", 1.0))}
    panels = len(settings.shown) + 2 if rows else 1
    figure.set_size_inches(9, 3.2 * ((panels + 1) // 2))
    axes = figure.subplots((panels + 1) // 2, 2, squeeze=False).ravel()
    for ax in axes[panels if rows else 0 :]:
        ax.set_axis_off()
    if not rows:
        return
    loss, ratio = axes[panels - 2 : panels]
    for ax, depth, colour in zip(axes, settings.shown, COLOURS, strict=False):
        _draw_paths(ax, settings, rows[depth])
        ax.set_title(f"depth {depth}")
        ax.legend(loc="center right", bbox_to_anchor=(1, 0.7), fontsize=8)
        steps = np.asarray(rows[depth]["steps"]) + 1
        for i, losses in enumerate(rows[depth]["losses"]):
            loss.loglog(steps, np.maximum(losses, 1e-30), color=colour,
                        label=f"depth {depth}" if i == 0 else None)  # fmt: skip
    loss.set_xlabel("step + 1")
    loss.set_ylabel("loss")
    if settings.shown:
        loss.legend()
    depths = sorted(rows)
    for name in ("dominant", "bulk"):
        means = [_mean(rows[depth], name, -1) for depth in depths]
        ratio.plot(depths, means, "o-", color=SHADES[name], label=f"{name} mean")
    ratio.plot(depths, [_ratio(rows[depth], -1) for depth in depths], "s", color="black",
               markerfacecolor="none", markersize=9, label="their ratio")  # fmt: skip
    ratio.plot(depths, depths, "--", color=GREY, label="depth")
    ratio.set_xticks(depths)
    ratio.set_xlabel("depth")
    ratio.legend()


def draw_activated(settings: Settings, records: list[Record], figure: Any) -> None:
    """How cleanly eigenvalues split depends on the activation, its place and the steps taken.

    Red are as many eigenvalues as theory has dominant ones, blue as many as it has in the bulk, and
    grey the rest. The dotted line is the earlier of the two steps at which the split is judged.
    """
    depth = settings.shown[-1] if settings.shown else None
    shown: tuple[list[Any], list[str]] = ([], [])
    for ax, case in _grid(settings, figure):
        row = next((r for r in _rows(records, case) if r["depth"] == depth), None)
        if row is None:
            ax.set_axis_off()
            continue
        _draw_paths(ax, settings, row)
        signed_scale(ax, LINEAR)
        ax.axvline(settings.early + 1, color=GREY, linestyle=":", linewidth=1)
        ax.set_title(f"{case[0]} {PLACES[case[1]]}", fontsize=10)
        shown = ax.get_legend_handles_labels()
    figure.suptitle(f"depth {depth}", fontsize=10)
    figure.legend(*shown, loc="outside lower center", ncols=3)


def draw_ratios(settings: Settings, records: list[Record], figure: Any) -> None:
    """With an activation the ratio grows with depth, but comes close to it only for small inputs.

    The ratio is that of the mean dominant eigenvalue to the mean of the bulk.
    """
    for ax, case in _grid(settings, figure):
        scales = [c[2] for c in settings.cases if c[:2] == case[:2]]
        for scale in scales:
            colour = COLOURS[0] if scale == 1 else COLOURS[1]
            rows = sorted(_rows(records, (*case[:2], scale)), key=lambda row: row["depth"])
            depths = [row["depth"] for row in rows]
            for place, (mark, stop) in enumerate(zip("^s", settings.stops, strict=True)):
                ax.plot(depths, [_ratio(row, place) for row in rows], mark, color=colour,
                        markerfacecolor="none",
                        label=f"{stop} steps, inputs of scale {scale:g}")  # fmt: skip
        ax.plot(settings.depths, settings.depths, "--", color=GREY, label="depth")
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "25" else "")
        ax.set_xlabel("depth")
        ax.set_ylabel("ratio")
        ax.set_title(f"{case[0]} {PLACES[case[1]]}", fontsize=10)
    shown = {label: h for ax in figure.axes
             for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}  # fmt: skip
    figure.legend(shown.values(), shown, loc="outside upper center", ncols=3)


def _grid(settings: Settings, figure: Any) -> Iterator[tuple[Any, tuple[str, str, float]]]:
    """Yield a panel for each activation (columns) and each place where it stands (rows)."""
    names = [name for name in settings.activations if name != "linear"]
    figure.set_size_inches(max(3.2 * len(names), 5), 0.6 + 2.7 * len(settings.places))
    if names:
        axes = figure.subplots(len(settings.places), len(names), squeeze=False)
        for (i, place), (j, name) in product(enumerate(settings.places), enumerate(names)):
            scale = next(c[2] for c in settings.cases if c[:2] == (name, place))
            yield axes[i, j], (name, place, scale)


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


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with Theorem 3.5, Corollary 3.6 and Section 4."""
    found: list[Finding] = []
    seen: list[Looks] = []
    others: list[Looks] = []
    for case in settings.cases:
        rows = _rows(records, case)
        activation, place, scale = case
        name = "linear" if activation == "linear" else f"{activation} {PLACES[place]}"
        name += "" if scale == 1 else f" (inputs of scale {scale:g})"
        both = [
            looks(rows, name, i, stop, settings.sizes[0]) for i, stop in enumerate(settings.stops)
        ]
        if activation == "linear":
            found += on_linear(both[-1], max(row["dense_gap"] for row in rows))
        else:
            (seen if scale == 1 else others).extend(both)
    return found + (on_activated(seen, others) if seen else [])


def _rows(records: list[Record], case: tuple[str, str, float]) -> list[Record]:
    return [r for r in records if (r["activation"], r["place"], r["scale"]) == case]


def _ratio(row: Record, place: int) -> float:
    return _mean(row, "dominant", place) / _mean(row, "bulk", place)


def _mean(row: Record, name: str, place: int) -> float:
    return float(np.mean([cluster[name][1] for cluster in row["clusters"][place]]))


EXPERIMENT = Experiment(
    id="depth-bifurcation",
    title="Depth splits the spectrum on balanced data",
    figures=("004 F1", "004 F2", "004 F3"),
    shows="eigenvalues of deep networks along training on balanced data, and their ratio by depth; "
    "sizes and depths are ours, since the text of the document has lost its own",
    presets={
        "tiny": Settings(4, 3, 4, 2, samples=30, depths=(2, 3), shown=(3,), networks=2, early=20,
                         steps=50, looks=3, scales=(0.3,)),
        "quick": Settings(samples=200, depths=(2, 3, 4, 6), networks=2, looks=12, steps=6000),
        "paper": Settings(networks=10, samples=1000),
    },
    tasks=tasks,
    run=run,
    draw={"linear": draw_linear, "activated": draw_activated, "ratios": draw_ratios},
    findings=findings,
    minutes={"quick": 2.0, "paper": 300},
    packages=("torch",),
)  # fmt: skip
