"""Outliers and bulk of self-attention against its weights and its sink (000 Figures 2a–c)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Record, Task
from hessence.papers.experiments.settings import at_least
from hessence.papers.experiments.shared.attention_by_definition import (
    attention_loss,
    curvature_along,
    split,
)
from hessence.papers.experiments.shared.attention_sweeps import (
    bulks,
    findings,
    rows_of,
    sharpnesses,
    sizes_of,
)
from hessence.plotting.axes import COLOURS, GREY, signed_scale

SWEEPS = {
    "keys": "norm of query and key weights",
    "value": "value weight",
    "sink": "strength of the sink",
    "massive sink": "strength of the sink, first token massive",
}


@dataclass(frozen=True)
class Settings:
    """Attention with numbers for tokens; what is not swept has norm 1, as in the paper.

    The paper does not tell tokens, targets or ranges: the first two are standard normal here, and
    the value weight goes as far as the norms do.
    """

    keys: Annotated[int, at_least(2)] = 1000
    sequences: int = 10
    length: int = 10
    largest_norm: float = 30.0
    largest_value: float = 30.0
    largest_sink: float = 20.0
    massive: float = 5.0
    points: Annotated[int, at_least(3)] = 61
    draws: int = 20


def tasks(settings: Settings) -> Iterator[Task]:
    """One sweep of one network at a time: all its points are one batch."""
    for sweep, draw in product(SWEEPS, range(settings.draws)):
        yield {"sweep": sweep, "draw": draw}


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Find the spectra along a sweep, the paper's bounds, and a check from losses alone."""
    q, k = (w / np.linalg.norm(w) for w in rng.normal(size=(2, settings.keys)))
    x, y = rng.normal(size=(2, settings.sequences, settings.length))
    if task["sweep"] == "massive sink":
        x[:, 0] *= settings.massive
    sizes = sizes_of(settings, task["sweep"])
    one = np.ones_like(sizes)
    norm, value, sink = (sizes if task["sweep"].endswith(name) else at for name, at in
                         (("keys", one), ("value", one), ("sink", 0 * one)))  # fmt: skip
    net = hs.SelfAttention(value, norm[:, None] * q, norm[:, None] * k).with_sink(sink)
    spectrum = net.hessian(x, y).spectrum()
    outliers = np.sort([space.value for space in spectrum["outlier"]], axis=0)[::-1]
    numbers = net.statistics(x, y)
    bounds = net.bounds(x, y)
    trace = numbers.alpha + 2 * numbers.zeta * norm**2
    slack = 1e-9 * np.abs(outliers).max(axis=0)

    def violated(radius: Any) -> int:
        return int(np.sum((np.abs(outliers - trace / 3) > radius + slack).any(axis=0)))

    return {
        "outliers": outliers.T,
        "bulk": np.abs(numbers.gamma),
        "condition": spectrum.condition_number,
        "condition_bound": bounds.condition_number,
        "multiplicities": sorted(space.multiplicity for space in spectrum["bulk"]),
        "outside": violated(bounds.xi),
        "outside_printed": violated(printed := _printed_radius(numbers, norm, norm**2 * (q @ k))),
        "condition_printed": np.divide(
            2 * trace + 3 * printed,
            6 * np.abs(numbers.gamma),
            out=np.full_like(trace, np.nan),
            where=numbers.gamma != 0,
        ),
        "attention": net.attention(x)[..., 0].min(axis=(-2, -1)),
        "deviation": _deviation(net[-1], x, y, float(sink[-1])),
    }


def _printed_radius(numbers: Any, norm: Any, inner: Any) -> Any:
    """Return ξ of Theorem 3.5 as printed, where norms in the trace are not squared."""
    s = numbers
    inside = 3 * s.gamma**2 + 6 * s.zeta * s.gamma * inner
    inside = inside + 3 * (s.beta**2 - s.alpha * s.zeta) * 2 * norm**2
    return 2 / 3 * np.sqrt(np.maximum(inside + (2 * s.zeta * norm + s.alpha) ** 2, 0))


def _deviation(net: Any, x: Any, y: Any, sink: float) -> float:
    """Return how far eigenvalues are from the loss's curvature along their eigenvectors."""
    keys = len(net.w_q)
    shapes = ((1, 1), (1, keys), (1, keys))

    def loss(theta: Any) -> float:
        W_v, W_q, W_k = split(theta, *shapes)
        return attention_loss(W_v, W_q, W_k, x[..., None], y[..., None], sink)

    spectrum = net.hessian(x, y).spectrum()
    gaps = [
        curvature_along(loss, net.parameters(), space.vectors(1)[:, 0]) - space.value
        for space in spectrum.spaces
    ]
    return float(np.abs(gaps).max() / spectrum.norm)


def draw_first(settings: Settings, records: list[Record], figure: Any) -> None:
    """Longer weights move the outliers of self-attention more than its bulk, which a sink removes.

    One network; weights that are not swept have norm 1, and there is a sink only where it is swept.
    """
    figure.set_size_inches(10, 7)
    axes = figure.subplots(2, 2).ravel()
    for ax, (sweep, name) in zip(axes, SWEEPS.items(), strict=True):
        row = rows_of(records, sweep)[0]
        sizes, bulk = sizes_of(settings, sweep), np.asarray(row["bulk"])
        ax.plot(sizes, np.asarray(row["outliers"]), color=COLOURS[1], label=["outlier", None, None])
        ax.plot(sizes, bulk, "--", color=COLOURS[0], label=f"bulk, {settings.keys - 1} times")
        ax.plot(sizes, -bulk, "--", color=COLOURS[0])
        ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
        signed_scale(ax, _threshold(bulk))
        ax.set_xlabel(name)
        ax.margins(x=0)
    for ax in axes[::2]:
        ax.set_ylabel("eigenvalue")
    axes[1].legend(loc="upper left")


def draw_medians(settings: Settings, records: list[Record], figure: Any) -> None:
    """The ratio of sharpness to bulk grows with a sink, and not with the value weight.

    Medians of all networks, and bands that hold 80 % of them.
    """
    figure.set_size_inches(10, 7)
    axes = figure.subplots(2, 2).ravel()
    for ax, (sweep, name) in zip(axes, SWEEPS.items(), strict=True):
        sizes, rows = sizes_of(settings, sweep)[1:], rows_of(records, sweep)
        sharpness, bulk = (values[:, 1:] for values in (sharpnesses(rows), bulks(rows)))
        for values, colour, label in (
            (sharpness, COLOURS[1], "sharpness"),
            (bulk, COLOURS[0], "bulk"),
            (sharpness / np.maximum(bulk, 1e-300), COLOURS[3], "their ratio"),
        ):
            low, middle, high = np.percentile(values, [10, 50, 90], axis=0)
            ax.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)
            ax.plot(sizes, middle, color=colour, label=label)
        ax.set_yscale("log")
        ax.set_xlabel(name)
        ax.margins(x=0)
    for ax in axes[::2]:
        ax.set_ylabel(f"median of {settings.draws} networks")
    axes[2].legend()


def _threshold(bulk: Any) -> float:
    """Return the power of ten where the scale turns linear: about the bulk's size."""
    return float(10 ** np.floor(np.log10(max(np.max(bulk), 1e-12))))


EXPERIMENT = Experiment(
    id="attention-outliers",
    title="Self-attention: what moves the outliers and what moves the bulk",
    figures=("000 F2a", "000 F2b", "000 F2c"),
    shows="outliers and bulk of attention against query and key norm, value weight and sink",
    presets={
        "tiny": Settings(keys=20, sequences=3, length=4, points=7, draws=2),
        "quick": Settings(),
        "paper": Settings(points=201, draws=200),
    },
    tasks=tasks,
    run=run,
    draw={"first-network": draw_first, "medians": draw_medians},
    findings=findings,
    minutes={"quick": 0.1, "paper": 2},
    common=("sweep",),
)
