"""Outliers and bulk of self-attention against its weights and its sink (000 Figures 2a–c)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.settings import at_least
from hessence.papers.experiments.shared.attention_by_definition import (
    attention_loss,
    curvature_along,
    split,
)
from hessence.plotting.axes import COLOURS, GREY, signed_scale

SWEEPS = {
    "keys": "norm of query and key weights",
    "value": "value weight",
    "sink": "strength of the sink",
    "massive sink": "strength of the sink, first token massive",
}
STEADY = 0.1
"""A bulk that moves by less than this part of itself is taken to be unaffected."""


@dataclass(frozen=True)
class Settings:
    """Attention with numbers for tokens; what is not swept has norm 1, as in the paper.

    The paper does not tell tokens, targets or ranges: the first two are standard normal here.
    """

    keys: Annotated[int, at_least(2)] = 1000
    sequences: int = 10
    length: int = 10
    largest_norm: float = 30.0
    largest_value: float = 3.0
    largest_sink: float = 10.0
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
    sizes = _sizes(settings, task["sweep"])
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
        "outside_printed": violated(_printed_radius(numbers, norm, norm**2 * (q @ k))),
        "deviation": _deviation(net[-1], x, y, float(sink[-1])),
    }


def _sizes(settings: Settings, sweep: str) -> Any:
    """Return the points of a sweep."""
    largest = {"keys": settings.largest_norm, "value": settings.largest_value}
    return np.linspace(0, largest.get(sweep, settings.largest_sink), settings.points)


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


def draw(settings: Settings, records: list[Record], figure: Any) -> None:
    """Draw the first network of each sweep, and below it the medians over all networks."""
    figure.set_size_inches(16, 7.6)
    axes = figure.subplots(2, len(SWEEPS))
    for (upper, lower), (sweep, name) in zip(axes.T, SWEEPS.items(), strict=True):
        sizes, rows = _sizes(settings, sweep), _rows(records, sweep)
        outliers, bulk = np.asarray(rows[0]["outliers"]), np.asarray(rows[0]["bulk"])
        upper.plot(sizes, outliers, color=COLOURS[1], label=["outlier", None, None])
        upper.plot(sizes, bulk, "--", color=COLOURS[0], label=f"bulk, {settings.keys - 1} times")
        upper.plot(sizes, -bulk, "--", color=COLOURS[0])
        upper.axhline(0, color=GREY, linestyle=":", linewidth=1)
        signed_scale(upper, _threshold(bulk))
        for values, colour, label in (
            (_sharpness(rows), COLOURS[1], "sharpness"),
            (_bulk(rows), COLOURS[0], "bulk"),
            (_sharpness(rows) / np.maximum(_bulk(rows), 1e-300), COLOURS[3], "their ratio"),
        ):
            shown = values[:, 1:]  # at zero the bulk may vanish
            low, middle, high = np.percentile(shown, [10, 50, 90], axis=0)
            lower.fill_between(sizes[1:], low, high, color=colour, alpha=0.2, linewidth=0)
            lower.plot(sizes[1:], middle, color=colour, label=label)
        lower.set_yscale("log")
        lower.set_xlabel(name)
        upper.set_title(name, fontsize=11)
        for ax in (upper, lower):
            ax.margins(x=0)
    axes[0, 0].set_ylabel("eigenvalue, first network")
    axes[1, 0].set_ylabel(f"median and 80 % of {settings.draws} networks")
    axes[0, 1].legend(frameon=False, loc="lower left")
    axes[1, 1].legend(frameon=False)


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with Theorem 3.5, Remark 3.1 and what the paper reads from them."""
    worst = max(record["deviation"] for record in records)
    expected = [settings.keys - 1] * 2
    copies = all(record["multiplicities"] == expected for record in records)
    count = len(records) * settings.points
    printed = sum(record["outside_printed"] for record in records)
    corrected = sum(record["outside"] for record in records)
    return [
        Finding(
            "the spectrum is a bulk ±γ, d_K − 1 times each, and three outliers",
            "000 Thm 3.5",
            copies and worst < 1e-5,
            f"losses along eigenvectors curve as the eigenvalues say to {worst:.0e} of the largest",
        ),
        Finding(
            "the outliers lie within tr/3 ± ξ, with ξ as printed",
            "000 Thm 3.5",
            printed == 0,
            f"fails in {printed} of {count} networks",
        ),
        Finding(
            "the outliers lie within tr/3 ± ξ, with squared norms in ξ",
            "000 Thm 3.5, corrected",
            corrected == 0,
            f"fails in {corrected} of {count} networks",
        ),
        *_on_keys(settings, _rows(records, "keys")),
        _on_values(_rows(records, "value")),
        _on_sinks(_rows(records, "sink"), "an attention sink shrinks the bulk and raises the "
                  "sharpness", "000 §3.3, Fig 2c"),
        _on_sinks(_rows(records, "massive sink"), "it does so when the sink has a massive "
                  "activation", "000 §3.3"),
    ]  # fmt: skip


def _on_keys(settings: Settings, rows: list[Record]) -> list[Finding]:
    sizes = _sizes(settings, "keys")
    bulk, sharpness = _bulk(rows), _sharpness(rows)
    change = np.abs(bulk - bulk[:, :1])
    moved = np.maximum.accumulate(change, axis=1) / bulk[:, :1]
    steady = sizes[np.sum(np.median(moved, axis=0) < STEADY) - 1]
    beside = np.median(change[:, -1] / np.abs(sharpness[:, -1] - sharpness[:, 0]))
    first, half = max(1, len(sizes) // 30), len(sizes) // 2
    rise = sharpness[:, -1] / sharpness[:, first]
    power = np.log(sharpness[:, -1] / sharpness[:, half]) / np.log(sizes[-1] / sizes[half])
    ratio = np.asarray([row["condition"] for row in rows])
    bound = np.asarray([row["condition_bound"] for row in rows])
    rising = np.mean((np.diff(ratio, axis=1) > 0).all(axis=1))
    sharper = np.mean((np.diff(sharpness, axis=1) > 0).all(axis=1))
    final = np.mean(ratio[:, -1] > ratio[:, first])
    return [
        Finding(
            "growing query and key weights move the outliers and not the bulk",
            "000 §3.3, Fig 2a",
            beside < STEADY,
            f"in the median network the bulk moves by {beside:.1%} of what the sharpness moves by",
        ),
        Finding(
            f"the bulk is approximately constant in the query and key weights, up to norm "
            f"{sizes[-1]:g}",
            "000 §3.3, Fig 2a",
            steady == sizes[-1],
            f"in the median network within {STEADY:.0%} of itself up to norm {steady:g}, and off "
            f"by {np.median(moved[:, -1]):.0%} at some norm up to {sizes[-1]:g}",
        ),
        Finding(
            "the largest eigenvalue grows with the query and key weights",
            "000 §3.3, Fig 2a",
            sharper == 1,
            f"at every point of the sweep in {sharper:.0%} of {len(rows)} networks; by a factor of "
            f"{np.median(rise):.1f} in the median from norm {sizes[first]:g} to {sizes[-1]:g}, "
            f"at last with power {np.median(power):.2f} of the norm",
        ),
        Finding(
            "the condition number has the lower bound (2 tr + 3ξ)/(6 abs(γ)), with ξ corrected",
            "000 Rem 3.1",
            bool(np.all(ratio * (1 + 1e-9) >= np.where(np.isnan(bound), 0, bound))),
            f"the bound is {np.nanmedian(bound / ratio):.2f} of the condition number in the median",
        ),
        Finding(
            "the condition number is monotonic in the query and key weights",
            "000 §3.3",
            rising == 1,
            f"at every point of the sweep in {rising:.0%} of {len(rows)} networks; larger at norm "
            f"{sizes[-1]:g} than at {sizes[first]:g} in {final:.0%}",
        ),
    ]


def _on_values(rows: list[Record]) -> Finding:
    ratio = np.asarray([row["condition"] for row in rows])[:, 1:]
    steps = np.diff(ratio, axis=1)
    one_way = np.mean((steps > 0).all(axis=1) | (steps < 0).all(axis=1))
    moved = np.median(_bulk(rows)[:, -1] / _bulk(rows)[:, len(ratio[0]) // 3])
    return Finding(
        "the value weight moves bulk and outliers, and the condition number is not monotonic in it",
        "000 §3.3, Fig 2b",
        bool(one_way < 0.5 and abs(moved - 1) > STEADY),
        f"monotonic in {one_way:.0%} of {len(rows)} networks; from a third to the end of the sweep "
        f"the bulk changes by a factor of {moved:.1f} in the median",
    )


def _on_sinks(rows: list[Record], claim: str, where: str) -> Finding:
    bulk, sharpness = _bulk(rows), _sharpness(rows)
    smaller, sharper = bulk[:, -1] < bulk[:, 0], sharpness[:, -1] > sharpness[:, 0]
    steady = (np.diff(bulk, axis=1) < 0).all(axis=1)
    both = np.mean(smaller & sharper)
    return Finding(
        claim,
        where,
        both > 0.9,
        f"both in {both:.0%} of {len(rows)} networks; the bulk falls to "
        f"{np.median(bulk[:, -1] / bulk[:, 0]):.1e} of itself in the median, without ever rising "
        f"in {np.mean(steady):.0%}; the sharpness grows by a factor of "
        f"{np.median(sharpness[:, -1] / sharpness[:, 0]):.1f}",
    )


def _rows(records: list[Record], sweep: str) -> list[Record]:
    return [record for record in records if record["sweep"] == sweep]


def _bulk(rows: list[Record]) -> Any:
    return np.asarray([row["bulk"] for row in rows])


def _sharpness(rows: list[Record]) -> Any:
    return np.maximum(np.asarray([row["outliers"] for row in rows])[..., 0], _bulk(rows))


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
    draw=draw,
    findings=findings,
    minutes={"quick": 0.1, "paper": 2},
    common=("sweep",),
)
