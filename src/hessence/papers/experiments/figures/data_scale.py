"""The scale of the data against the spectrum (000 Figure 7, 001 Figure 1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.settings import at_least
from hessence.plotting.axes import COLOURS, GREY

SHADES = {"larger_outlier": COLOURS[1], "bulk": COLOURS[0], "smaller_outlier": COLOURS[3]}
SHOWN = 5
"""Variances whose spectra are shown in full."""


@dataclass(frozen=True)
class Settings:
    """Linear networks in the standard parametrisation, on Gaussian inputs and targets."""

    widths: tuple[Annotated[int, at_least(2)], ...] = (10, 100)
    samples: Annotated[int, at_least(2)] = 100_000
    smallest_variance: float = 0.1
    largest_variance: float = 20.0
    variances: Annotated[int, at_least(2)] = 25

    def __post_init__(self) -> None:
        if self.smallest_variance >= self.largest_variance:
            raise ValueError("smallest_variance must be below largest_variance")


def tasks(settings: Settings) -> Iterator[Task]:
    """One width and one variance at a time; the paper's σ² runs through (0, 20)."""
    variances = np.geomspace(
        settings.smallest_variance, settings.largest_variance, settings.variances
    )
    for width, variance in product(settings.widths, variances):
        yield {"width": width, "variance": float(variance)}


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Find the whole spectrum at initialisation, and certify it against the operator."""
    width = task["width"]
    # The standard parametrisation has variance 1/fan_in; the first layer's fan-in is one input.
    v = rng.normal(size=width)
    w = rng.normal(size=width) / width**0.5
    noise, y = rng.normal(size=(2, settings.samples))
    x = task["variance"] ** 0.5 * noise
    net = hs.ScalarLinear(w, v)
    hessian = net.hessian(x, y)
    spectrum = hessian.spectrum()
    smaller, larger = sorted(space.value for space in spectrum["outlier"])
    return {
        "larger_outlier": larger,
        "smaller_outlier": smaller,
        "bulk": max(space.value for space in spectrum["bulk"]),
        "multiplicity": sum(space.multiplicity for space in spectrum["bulk"]) // 2,
        # From the definition, so that the spectrum has something to be compared with.
        "trace": np.mean(x**2) * np.sum(w**2 + v**2),
        "residual": spectrum.verify(hessian).residual,
    }


def draw(settings: Settings, records: list[Record], figure: Any) -> None:
    """Draw eigenvalues in the paper's order for some variances, and all against the variance."""
    columns = len(settings.widths)
    figure.set_size_inches(5.5 * columns, 7.6)
    axes = figure.subplots(2, columns, squeeze=False)
    for (upper, lower), width in zip(axes.T, settings.widths, strict=True):
        rows = [record for record in records if record["width"] == width]
        _draw_spectra(upper, rows)
        upper.set_title(f"width {width}", fontsize=11)
        variances = np.asarray([row["variance"] for row in rows])
        for name, colour in SHADES.items():
            values = np.abs([row[name] for row in rows])
            lower.loglog(variances, values, "o", color=colour, markersize=4)
            lower.loglog(variances, values[-1] / variances[-1] * variances, color=colour,
                         label=name.replace("_", " "))  # fmt: skip
        lower.set_xlabel("variance σ² of the inputs (lines: in proportion to it)")
        lower.legend()
    axes[0, 0].set_ylabel("eigenvalue")
    axes[1, 0].set_ylabel("size of the eigenvalue")


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with Theorem 3.1 and what the paper reads from it."""
    residual = max(record["residual"] for record in records)
    copies = all(record["multiplicity"] == record["width"] - 1 for record in records)
    paired = max(
        abs((r["larger_outlier"] + r["smaller_outlier"]) / r["trace"] - 1) for r in records
    )
    powers = {name: [_power(records, width, name) for width in settings.widths] for name in SHADES}
    spreads = [_spread(records, width) for width in settings.widths]
    return [
        Finding(
            "the spectrum is ±δ, m − 1 times each, and two outliers",
            "000 Thm 3.1, 001 Thm 1",
            copies and residual < 1e-12,
            f"largest residual {residual:.0e} in {len(records)} networks",
        ),
        Finding(
            "the two outliers add up to the trace",
            "001 eq 2",
            paired < 1e-12,
            f"largest deviation {paired:.0e}",
        ),
        Finding(
            "eigenvalues scale in proportion to the variance of the inputs",
            "000 §3.1, 001 §1",
            all(abs(power - 1) < 0.05 for each in powers.values() for power in each),
            "powers of σ²: "
            + "; ".join(
                f"{name.replace('_', ' ')} {', '.join(f'{power:.3f}' for power in each)}"
                for name, each in powers.items()
            ),
        ),
        Finding(
            "normalising the data brings the spectrum together",
            "001 Fig 1",
            min(spreads) > 1.5,
            "the range of the eigenvalues grows from the smallest to the largest variance by "
            + ", ".join(f"{spread:.1f}" for spread in spreads),
        ),
    ]


def _draw_spectra(ax: Any, rows: list[Record]) -> None:
    chosen = np.unique(np.linspace(0, len(rows) - 1, SHOWN).round().astype(int))
    for row, shade in zip(
        [rows[i] for i in chosen], np.linspace(0.3, 1.0, len(chosen)), strict=True
    ):
        m = row["multiplicity"]
        bulk = np.repeat([-row["bulk"], row["bulk"]], m)
        outliers = np.asarray([row["smaller_outlier"], row["larger_outlier"]])
        values = np.sort(np.concatenate([bulk, outliers]))
        ranks = np.arange(1, len(values) + 1)
        label = f"σ² = {row['variance']:.3g}"
        ax.plot(ranks, values, color=COLOURS[0], alpha=shade, linewidth=1.5, label=label)
        places = np.searchsorted(values, outliers)
        ax.plot(ranks[places], outliers, "o", color=COLOURS[1], alpha=shade, markersize=5)
    ax.set_yscale("symlog", linthresh=0.1)
    ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("rank of the eigenvalue, from the most negative (dots: outliers)")
    ax.legend(loc="upper left")


def _power(records: list[Record], width: int, name: str) -> float:
    """Return the power of σ² that the size of an eigenvalue grows with."""
    rows = [record for record in records if record["width"] == width]
    sizes = np.log(np.abs([row[name] for row in rows]))
    return float(np.polyfit(np.log([row["variance"] for row in rows]), sizes, 1)[0])


def _spread(records: list[Record], width: int) -> float:
    rows = [record for record in records if record["width"] == width]
    ranges = [row["larger_outlier"] + row["bulk"] for row in (rows[0], rows[-1])]
    return float(ranges[1] / ranges[0])


EXPERIMENT = Experiment(
    id="data-scale",
    title="The scale of the data sets the scale of the spectrum",
    figures=("000 F7", "001 F1"),
    shows="eigenvalues of linear networks at initialisation against the variance of the inputs",
    presets={
        "tiny": Settings(widths=(3,), samples=100, variances=3),
        "quick": Settings(),
        "paper": Settings(widths=(10, 100), variances=200),
    },
    tasks=tasks,
    run=run,
    draw=draw,
    findings=findings,
    minutes={"quick": 0.02, "paper": 0.1},
    common=("variance",),
)
