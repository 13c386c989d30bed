"""Balanced solutions: what the labels alone say about the spectrum (002 Figure 1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.settings import at_least
from hessence.papers.experiments.shared.gradient_descent import (
    balanced_networks,
    train_linear,
    white_sharpness,
)
from hessence.papers.experiments.shared.image_training import (
    ShareSettings,
    class_subset,
    draw_shares,
    label_sharpness,
    white_inputs,
)
from hessence.plotting.axes import COLOURS

ROUNDING = 1e-10
NARROW = (6, 2, 4)
"""Widths of a network whose narrowest layer is hidden."""
LEVELS = (0.3, 1, 3, 10, 30)
"""Values of the sharpness at which its map has lines."""


@dataclass(frozen=True)
class Settings(ShareSettings):
    """Random balanced networks (left), formulas (middle) and trained networks (right)."""

    size: int = 20
    depth: int = 5
    samples: int = 100
    scale: float = 3.0
    draws: int = 3
    depths: tuple[Annotated[int, at_least(2)], ...] = tuple(range(2, 11))
    norms: Annotated[int, at_least(2)] = 30
    largest_norm: float = 2.0

    def __post_init__(self) -> None:
        if self.samples < self.size:
            raise ValueError(f"samples must be at least the size, {self.size}")


def tasks(settings: Settings) -> Iterator[Task]:
    """Random networks one by one, the map of formulas at once, a batch for each share."""
    for draw in range(settings.draws):
        yield {"panel": "spectrum", "draw": draw}
    yield {"panel": "map"}
    for data in settings.data:
        for share in settings.shares:
            yield {"panel": "training", "data": data, "share": share}


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Compute one of the three panels, or a part of it."""
    if task["panel"] == "spectrum":
        return spectrum_record(settings, rng)
    if task["panel"] == "map":
        return map_record(settings, rng)
    return training_record(settings, task, rng)


def spectrum_record(settings: Settings, rng: np.random.Generator) -> Record:
    """Predict a spectrum from the labels, and diagonalise the whole Hessian."""
    d = settings.size
    x = hs.whiten(rng.normal(size=(settings.samples, d)), settings.scale)
    net = hs.DeepLinear.balanced((d,) * (settings.depth + 1), rng.uniform(size=d), rng=rng)
    y = net(x)
    predicted = hs.solution_spectrum(x, y, settings.depth).eigenvalues
    computed = np.linalg.eigvalsh(net.hessian(x, y).dense())[::-1]
    # The narrow network shows how many eigenvalues are not zero.
    narrow = hs.DeepLinear.balanced(NARROW, rng.uniform(0.5, 1, size=min(NARROW)), rng=rng)
    inputs = hs.whiten(rng.normal(size=(settings.samples, NARROW[0])))
    values = np.linalg.eigvalsh(narrow.hessian(inputs, narrow(inputs)).dense())
    return {
        "predicted": predicted,
        "computed": computed[: len(predicted)],
        "rest": np.abs(computed[len(predicted) :]).max(initial=0.0),
        "narrow_rank": int((values > 1e-9 * values.max()).sum()),
    }


def map_record(settings: Settings, rng: np.random.Generator) -> Record:
    """Find the sharpness of balanced solutions by depth and spectral norm of the labels."""
    x = hs.whiten(rng.normal(size=(20, 3)))
    target = np.linalg.qr(rng.normal(size=(3, 3)))[0] * [1.0, 0.7, 0.4]
    norms = np.linspace(0, settings.largest_norm, settings.norms + 1)[1:]
    return {
        "norms": norms,
        "sharpness": [
            [hs.solution_spectrum(x, norm * x @ target.T, depth).sharpness for norm in norms]
            for depth in settings.depths
        ],
    }


def training_record(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Train balanced networks on whitened images and measure their sharpness."""
    images = class_subset(task["data"], settings.subset, task["share"], settings.shares, rng)
    x, y = white_inputs(images.x), images.one_hot
    dims = (x.shape[1], *settings.hidden, y.shape[1])
    start = balanced_networks(dims, settings.initial, settings.networks, rng)
    (end,) = train_linear(start, x, y, settings.lr, settings.steps, [settings.steps])
    largest = float(y.mean(axis=0).max())
    solution = hs.solution_spectrum(x, y, settings.layers)
    least = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    return {
        "largest_share": largest,
        "by_labels": label_sharpness(settings.layers, largest),
        "by_data": solution.sharpness,
        "sharpness": white_sharpness(end.weights, x, y),
        "loss": end.loss,
        "least_loss": np.sum(least**2) / (2 * len(x)),
        "balance": [hs.DeepLinear([w[i] for w in end.weights]).balance()
                    for i in range(settings.networks)],
        "samples": len(x),
        "inputs": x.shape[1],
    }  # fmt: skip


def draw_formulas(settings: Settings, records: list[Record], figure: Any) -> None:
    """Labels predict every eigenvalue; deeper solutions are sharper, except for small labels."""
    figure.set_size_inches(9, 3.6)
    left, right = figure.subplots(1, 2)
    first = records[0]
    ranks = np.arange(1, len(first["predicted"]) + 1)
    left.semilogy(ranks, first["computed"], "o", color=COLOURS[0], markersize=5,
                  markerfacecolor="white", label="computed")  # fmt: skip
    left.semilogy(ranks, first["predicted"], color=COLOURS[1], label="predicted from the data")
    left.set_ylim(bottom=max(min(first["predicted"]), 1e-7 * max(first["predicted"])) / 3)
    left.set_xlabel("rank of the eigenvalue")
    left.set_ylabel("eigenvalue")
    left.set_title(f"L = {settings.depth}, d = {settings.size}, σ = {settings.scale:g}")
    left.legend()
    table = next(record for record in records if record["panel"] == "map")
    if len(settings.depths) > 1:
        shades = right.pcolormesh(table["norms"], settings.depths, table["sharpness"], norm="log",
                                  shading="nearest")  # fmt: skip
        figure.colorbar(shades, ax=right, label="sharpness")
        low, high = np.min(table["sharpness"]), np.max(table["sharpness"])
        if levels := [level for level in LEVELS if low < level < high]:
            lines = right.contour(table["norms"], settings.depths, table["sharpness"], levels,
                                  colors="black", linewidths=0.8)  # fmt: skip
            right.clabel(lines, fontsize=9, fmt="%g")
        edge = np.exp(-np.asarray(settings.depths) / 2)
        right.plot(edge, settings.depths, "--", color="white")
    right.set_xlim(min(table["norms"]), settings.largest_norm)
    right.set_xlabel("largest singular value of Y/√n")
    right.set_ylabel("depth")
    right.set_title("left of the dashes, depth flattens")


def draw_trained(settings: Settings, records: list[Record], figure: Any) -> None:
    """Trained networks are the sharper, the larger one class is; inputs count as well as labels."""
    columns = len(settings.data)
    figure.set_size_inches(max(3.2 * columns, 6.4), 3.8)
    axes = figure.subplots(1, columns, squeeze=False, sharey=True)[0]
    for ax, data in zip(axes, settings.data, strict=True):
        draw_shares(ax, settings, [row for row in _trained(records) if row["data"] == data])
        ax.set_title(f"{data}, {settings.layers} layers")
    for ax in axes[1:]:
        ax.set_ylabel("")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with equations 9, 13 and 14."""
    random = [record for record in records if record["panel"] == "spectrum"]
    worst = max(
        max(np.abs(np.subtract(r["predicted"], r["computed"])).max(), r["rest"])
        / max(r["predicted"])
        for r in random
    )
    ranks = sorted({record["narrow_rank"] for record in random})
    trained = _trained(records)
    by_labels = np.concatenate([_gaps(record, "by_labels") for record in trained])
    by_data = np.concatenate([_gaps(record, "by_data") for record in trained])
    close = np.sum(by_data < 0.01)
    excess = [np.max(np.subtract(r["loss"], r["least_loss"])) for r in trained]
    least = [record["least_loss"] for record in trained]
    return [
        Finding(
            "002-eq9a 002-eq13",
            worst < ROUNDING,
            f"largest deviation {worst:.0e} in {len(random)} networks",
            criterion=f"all eigenvalues within {ROUNDING:.0e} of the largest",
        ),
        Finding(
            "002-counts",
            max(ranks) <= min(NARROW) ** 2,
            f"a {'-'.join(map(str, NARROW))} network has {', '.join(map(str, ranks))}, "
            f"not {min(NARROW) ** 2}: pairs with one zero singular value count too",
            criterion=f"{min(NARROW) ** 2} at most in a {'-'.join(map(str, NARROW))} network",
        ),
        _depth_finding(settings, records),
        Finding(
            "002-trained",
            max(by_labels) < 0.1,
            f"off by {np.median(by_labels):.1%} (median), {max(by_labels):.1%} (most), since the "
            f"labels are no linear function of the inputs (least loss {min(least):.2g} to "
            f"{max(least):.2g})",
            criterion="every network within 10 %",
        ),
        Finding(
            "002-trained-data",
            close == len(by_data),
            f"{close} of {len(by_data)} networks within 1 %, the worst {max(by_data):.1%} off, "
            f"with losses up to {max(excess):.2g} above the least",
            criterion="every network within 1 %",
        ),
        _share_finding(settings, trained),
    ]


def _trained(records: list[Record]) -> list[Record]:
    return [record for record in records if record["panel"] == "training"]


def _gaps(record: Record, name: str) -> Any:
    return np.abs(np.asarray(record["sharpness"]) / record[name] - 1)


def _depth_finding(settings: Settings, records: list[Record]) -> Finding:
    table = next(record for record in records if record["panel"] == "map")
    values = np.asarray(table["sharpness"])
    order = np.argsort(settings.depths)
    grows = (np.diff(values[order], axis=0) > 0).all(axis=0)
    norms = np.asarray(table["norms"])
    least = norms[~grows].max(initial=0.0)
    told = f"at every depth for norms of Y/√n above {least:.2g}" + (
        "" if grows.all() else ", below which the first layers added flatten"
    )
    enough = len(order) > 1
    return Finding(
        "002-depth",
        bool(grows.all()) if enough else None,
        told if enough else "needs two depths",
        criterion=f"each layer more sharpens, for norms of Y/√n up to {settings.largest_norm:g}",
    )


def _share_finding(settings: Settings, trained: list[Record]) -> Finding:
    told, rising = [], []
    for data in settings.data:
        rows = [record for record in trained if record["data"] == data]
        rows.sort(key=lambda row: row["largest_share"])
        steps = np.diff([row["sharpness"] for row in rows], axis=0) > 0
        rising.append(steps.all())
        told.append(f"{data} {steps.all(axis=0).sum()} of {steps.shape[1]} draws")
    enough = len(settings.shares) > 1
    return Finding(
        "002-largest-class",
        all(rising) if enough else None,
        f"sharpness rises throughout: {', '.join(told)}" if enough else "needs two shares",
        criterion="in every draw, sharpness rises at each step to a larger share",
    )


EXPERIMENT = Experiment(
    id="balanced-solutions",
    title="Labels predict the spectrum of balanced solutions",
    figures=("002 F1",),
    shows="spectra of balanced solutions from the labels, by depth, and of trained networks",
    presets={
        "tiny": Settings(size=4, depth=3, samples=20, draws=1, depths=(2, 3), norms=3,
                         shares=(0.2, 0.8), hidden=(10, 10), networks=2, steps=50),
        "quick": Settings(),
        "paper": Settings(data=("mnist", "fashion-mnist", "cifar10")),
    },
    tasks=tasks,
    run=run,
    draw={"formulas": draw_formulas, "trained": draw_trained},
    findings=findings,
    minutes={"quick": 0.5, "paper": 15},
    data=lambda settings: settings.data,
)  # fmt: skip
