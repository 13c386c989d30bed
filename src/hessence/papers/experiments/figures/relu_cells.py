"""The spectrum of a ReLU network, coloured by cell (000 Figure 1, 001 Figure 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.settings import Share, at_least
from hessence.papers.experiments.shared.scalar_by_definition import summed_hessian
from hessence.plotting.axes import COLOURS, GREY
from hessence.plotting.spectra import draw_spectrum

ROUNDING = 1e-10
"""Deviations below this, relative to the largest eigenvalue, are rounding."""
PROPORTIONAL = 0.1
"""How far medians may be from proportionality; every share has samples of its own."""


@dataclass(frozen=True)
class Settings:
    """A ReLU network of one input and one output, and samples on both sides of zero."""

    width: int = 10
    positive: Annotated[int, at_least(0)] = 6
    samples: int = 1000
    noise: Annotated[float, at_least(0)] = 1.0
    shares: tuple[Share, ...] = (0.5, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
    draws: int = 20

    def __post_init__(self) -> None:
        if self.positive > self.width:
            raise ValueError(f"positive must be at most the width, {self.width}")


def tasks(settings: Settings) -> Iterator[Task]:
    """One network, and one share of samples that are positive, at a time."""
    for share, draw in product(settings.shares, range(settings.draws)):
        yield {"share": share, "draw": draw}


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Find the spectrum in closed form, and by summing the Hessian up sample by sample."""
    w = rng.normal(size=settings.width)
    v = np.abs(rng.normal(size=settings.width))
    v[settings.positive :] *= -1
    size = np.abs(rng.normal(size=settings.samples))
    count = round(task["share"] * settings.samples)
    x = np.where(np.arange(settings.samples) < count, size, -size)
    y = np.maximum(x, 0) + settings.noise * rng.normal(size=settings.samples)
    spectrum = hs.ScalarReLU(w, v).hessian(x, y).spectrum()
    direct = np.linalg.eigvalsh(summed_hessian(w, v, x, y, relu=True))[::-1]
    deviation = np.abs(spectrum.eigenvalues - direct).max() / np.abs(direct).max()
    return {
        "plus_sharpness": max((s.value for s in spectrum["outlier/+cell"]), default=0.0),
        "minus_sharpness": max((s.value for s in spectrum["outlier/-cell"]), default=0.0),
        "sharpness": direct[0],
        "deviation": deviation,
        "spectrum": spectrum.to_dict(),
    }


def draw_spectrum_by_cell(settings: Settings, records: list[Record], figure: Any) -> None:
    """Each cell of a ReLU network brings two outliers of its own, and a bulk in signed pairs."""
    figure.set_size_inches(7, 4.2)
    ax = figure.subplots()
    draw_spectrum(hs.Spectrum.from_dict(records[0]["spectrum"]), ax)
    q = settings.positive
    ax.set_title(f"width {settings.width}: {q} units in the + cell, {settings.width - q} in the −")


def draw_density(settings: Settings, records: list[Record], figure: Any) -> None:
    """The larger outlier of a cell is proportional to the cell's share of the samples."""
    figure.set_size_inches(7, 4.2)
    ax = figure.subplots()
    order = sorted(settings.shares)
    for name, label, colour, own_share in (
        ("plus_sharpness", "+ cell", COLOURS[0], np.asarray(order)),
        ("minus_sharpness", "− cell", COLOURS[1], 1 - np.asarray(order)),
    ):
        low, middle, high = np.percentile(_by_share(records, order, name), [10, 50, 90], axis=1)
        slope = middle @ own_share / (own_share @ own_share)
        ax.vlines(order, low, high, color=colour, alpha=0.3, linewidth=3)
        ax.plot(order, middle, "o", color=colour)
        ax.plot(order, slope * own_share, color=GREY, linewidth=1, zorder=0)
        side = "left" if name == "plus_sharpness" else "right"
        best = int(np.argmax(own_share))
        ax.annotate(label, (order[best], middle[best]), xytext=(8 if side == "left" else -8, 0),
                    textcoords="offset points", color=colour, va="center", ha=side)  # fmt: skip
    ax.set_xlabel("share of samples with x > 0")
    ax.set_ylabel("larger outlier of the cell")
    ax.set_title(
        f"median and 80 % of {settings.draws} networks (grey: in proportion to the cell's share)"
    )
    ax.set_xlim(0, 1)
    ax.set_ylim(bottom=0)


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with Theorem 3.4 and what the paper reads from it."""
    worst = max(record["deviation"] for record in records)
    q = settings.positive
    expected = {"/+cell": _shape(q), "/-cell": _shape(settings.width - q)}
    right = [_shapes(record["spectrum"]) == expected for record in records]
    gaps = [
        abs(max(r["plus_sharpness"], r["minus_sharpness"]) / r["sharpness"] - 1) for r in records
    ]
    middle = _proportionality(settings, records)
    rounding = f"less than {ROUNDING:g} of the largest eigenvalue"
    return [
        Finding(
            "000-T3.4 001-T4",
            worst < ROUNDING,
            f"largest deviation of all {2 * settings.width} eigenvalues from those of the Hessian "
            f"summed sample by sample {worst:.0e}, in {len(records)} networks",
            criterion=f"eigenvalues deviate by {rounding}",
        ),
        Finding(
            "001-C5",
            all(right) and worst < ROUNDING,
            f"so many in {sum(right)} of {len(right)} networks, whose eigenvalues are those of the "
            "summed Hessian",
            criterion=f"these numbers in every network, and eigenvalues deviate by {rounding}",
        ),
        Finding(
            "000-relu-top",
            max(gaps) < ROUNDING,
            f"largest difference between the larger of both cells' outliers and λ_max of the "
            f"summed Hessian {max(gaps):.0e}",
            criterion=f"{rounding}",
        ),
        Finding(
            "000-density 001-density",
            None if middle is None else middle < PROPORTIONAL,
            "needs two shares"
            if middle is None
            else f"medians of the larger outliers lie within {middle:.1%} of proportionality, at "
            f"{len(set(settings.shares))} shares",
            criterion=f"medians within {PROPORTIONAL:.0%} of proportionality",
        ),
    ]


def _by_share(records: list[Record], shares: list[float], name: str) -> list[list[float]]:
    return [[r[name] for r in records if r["share"] == share] for share in shares]


def _shape(units: int) -> tuple[int, int]:
    """Return how many outliers and how many bulk eigenvalues a cell of so many units has."""
    return (2, 2 * units - 2) if units else (0, 0)


def _shapes(spectrum: dict[str, Any]) -> dict[str, tuple[int, int]]:
    rows = list(zip(spectrum["labels"], spectrum["multiplicities"], strict=True))

    def count(label: str) -> int:
        return sum(int(multiplicity) for name, multiplicity in rows if name == label)

    return {cell: (count(f"outlier{cell}"), count(f"bulk{cell}")) for cell in ("/+cell", "/-cell")}


def _proportionality(settings: Settings, records: list[Record]) -> float | None:
    """Return how far the medians are from a line through zero, relative to its top."""
    order = sorted(settings.shares)
    if len(order) < 2:
        return None
    worst = 0.0
    for name, own_share in (
        ("plus_sharpness", np.asarray(order)),
        ("minus_sharpness", 1 - np.asarray(order)),
    ):
        middle = np.median(_by_share(records, order, name), axis=1)
        slope = middle @ own_share / (own_share @ own_share)
        if slope:
            worst = max(worst, np.abs(middle / slope - own_share).max() / own_share.max())
    return float(worst)


EXPERIMENT = Experiment(
    id="relu-cells",
    title="ReLU: one spectrum for each cell",
    figures=("000 F1", "001 F2"),
    shows="all eigenvalues of a ReLU network, by the cell they come from",
    presets={
        "tiny": Settings(samples=100, shares=(0.5, 0.25), draws=2),
        "quick": Settings(),
        "paper": Settings(samples=10_000, draws=100),
    },
    tasks=tasks,
    run=run,
    draw={"spectrum": draw_spectrum_by_cell, "density": draw_density},
    findings=findings,
    minutes={"quick": 0.02, "paper": 0.2},
    common=("share",),
)
