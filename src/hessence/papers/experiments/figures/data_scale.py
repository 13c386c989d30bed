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
from hessence.papers.experiments.shared.scalar_by_definition import summed_hessian
from hessence.plotting.axes import COLOURS, GREY

SHADES = {"larger_outlier": COLOURS[1], "bulk": COLOURS[0], "smaller_outlier": COLOURS[3]}
SHOWN = 5
"""Variances whose spectra are shown in full."""
ROUNDING = 1e-10
"""Deviations below this, relative to the largest eigenvalue, are rounding."""
PROPORTIONAL = 0.05
"""How far a power may be from one."""


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
    """Find the spectrum at initialisation in closed form, and by summing over samples."""
    width = task["width"]
    # The standard parametrisation has variance 1/fan_in; the first layer's fan-in is one input.
    v = rng.normal(size=width)
    w = rng.normal(size=width) / width**0.5
    noise, y = rng.normal(size=(2, settings.samples))
    x = task["variance"] ** 0.5 * noise
    spectrum = hs.ScalarLinear(w, v).hessian(x, y).spectrum()
    smaller, larger = sorted(space.value for space in spectrum["outlier"])
    dense = summed_hessian(w, v, x, y, relu=False)
    direct = np.linalg.eigvalsh(dense)[::-1]
    return {
        "larger_outlier": larger,
        "smaller_outlier": smaller,
        "bulk": max(space.value for space in spectrum["bulk"]),
        "multiplicity": sum(space.multiplicity for space in spectrum["bulk"]) // 2,
        "trace": np.trace(dense),
        "deviation": np.abs(spectrum.eigenvalues - direct).max() / np.abs(direct).max(),
    }


def draw_spectra(settings: Settings, records: list[Record], figure: Any) -> None:
    """The larger the inputs, the wider the spectrum: two outliers, and a bulk of two levels."""
    figure.set_size_inches(10, 4.2)
    axes = figure.subplots(1, len(settings.widths), squeeze=False)[0]
    for ax, width in zip(axes, settings.widths, strict=True):
        rows = [record for record in records if record["width"] == width]
        chosen = np.unique(np.linspace(0, len(rows) - 1, SHOWN).round().astype(int))
        shades = np.linspace(0.3, 1.0, len(chosen))
        for row, shade in zip([rows[i] for i in chosen], shades, strict=True):
            _draw_spectrum(ax, row, float(shade))
        ax.set_yscale("symlog", linthresh=0.1)
        ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.margins(x=0.12)
        ax.set_xlabel("rank of the eigenvalue (dots: outliers)")
        ax.set_title(f"width {width}")
    axes[0].set_ylabel("eigenvalue")


def _draw_spectrum(ax: Any, row: Record, shade: float) -> None:
    bulk = np.repeat([-row["bulk"], row["bulk"]], row["multiplicity"])
    outliers = np.asarray([row["smaller_outlier"], row["larger_outlier"]])
    values = np.sort(np.concatenate([bulk, outliers]))
    ranks = np.arange(1, len(values) + 1)
    ax.plot(ranks, values, color=COLOURS[0], alpha=shade, linewidth=1.5)
    places = np.searchsorted(values, outliers)
    ax.plot(ranks[places], outliers, "o", color=COLOURS[1], alpha=shade, markersize=5)
    ax.annotate(f"σ² = {row['variance']:.2g}", (len(values) // 2 + 2, row["bulk"]), fontsize=9,
                xytext=(0, 3), textcoords="offset points", color=COLOURS[0])  # fmt: skip


def draw_proportion(settings: Settings, records: list[Record], figure: Any) -> None:
    """Outliers and bulk grow in proportion to the variance of the inputs, at every width."""
    figure.set_size_inches(10, 4.2)
    axes = figure.subplots(1, len(settings.widths), squeeze=False)[0]
    for ax, width in zip(axes, settings.widths, strict=True):
        rows = [record for record in records if record["width"] == width]
        variances = np.asarray([row["variance"] for row in rows])
        for name, colour in SHADES.items():
            values = np.abs([row[name] for row in rows])
            ax.loglog(variances, values, "o", color=colour, markersize=4)
            ax.loglog(variances, values[-1] / variances[-1] * variances, color=colour, linewidth=1)
            ax.annotate(name.replace("_", " "), (variances[0], values[0]), xytext=(6, -14),
                        textcoords="offset points", color=colour)  # fmt: skip
        ax.margins(y=0.1)
        ax.set_xlabel("variance σ² of the inputs (lines: in proportion to it)")
        ax.set_title(f"width {width}")
    axes[0].set_ylabel("size of the eigenvalue")


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with Theorem 3.1 and what the paper reads from it."""
    worst = max(record["deviation"] for record in records)
    copies = all(record["multiplicity"] == record["width"] - 1 for record in records)
    paired = max(
        abs((r["larger_outlier"] + r["smaller_outlier"]) / r["trace"] - 1) for r in records
    )
    powers = {name: [_power(records, width, name) for width in settings.widths] for name in SHADES}
    spreads = [_spread(records, width) for width in settings.widths]
    return [
        Finding(
            "000-T3.1 001-T1",
            copies and worst < ROUNDING,
            f"largest deviation of all eigenvalues from those of the Hessian summed over "
            f"{settings.samples} samples {worst:.0e}, in {len(records)} networks of widths "
            f"{', '.join(map(str, settings.widths))}",
            criterion=f"eigenvalues deviate by less than {ROUNDING:g} of the largest",
        ),
        Finding(
            "000-eq122 001-eq2",
            paired < ROUNDING,
            f"largest deviation from the trace of the summed Hessian {paired:.0e}",
            criterion=f"less than {ROUNDING:g} of the trace",
        ),
        Finding(
            "000-scaling 001-scaling",
            all(abs(power - 1) < PROPORTIONAL for each in powers.values() for power in each),
            "the targets have no correlation with the inputs but by chance; powers of σ²: "
            + "; ".join(
                f"{name.replace('_', ' ')} {', '.join(f'{power:.3f}' for power in each)}"
                for name, each in powers.items()
            ),
            criterion=f"outliers and bulk grow with a power of σ² within {PROPORTIONAL:g} of 1",
        ),
        Finding(
            "001-normalised",
            min(spreads) > 1,
            f"the range of the eigenvalues at variance {settings.largest_variance:g} is "
            f"{', '.join(f'{spread:.1f}' for spread in spreads)} times that at the variance "
            "nearest to 1",
            criterion="a smaller range of eigenvalues at variance 1 than at the largest variance",
        ),
    ]


def _power(records: list[Record], width: int, name: str) -> float:
    """Return the power of σ² that the size of an eigenvalue grows with."""
    rows = [record for record in records if record["width"] == width]
    sizes = np.log(np.abs([row[name] for row in rows]))
    return float(np.polyfit(np.log([row["variance"] for row in rows]), sizes, 1)[0])


def _spread(records: list[Record], width: int) -> float:
    """Return the range of the eigenvalues at the largest variance over that nearest to 1."""
    rows = [record for record in records if record["width"] == width]
    unit = min(rows, key=lambda row: abs(np.log(row["variance"])))
    ranges = [row["larger_outlier"] + row["bulk"] for row in (unit, rows[-1])]
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
    draw={"spectra": draw_spectra, "proportion": draw_proportion},
    findings=findings,
    minutes={"quick": 0.3, "paper": 3},
    common=("variance",),
)
