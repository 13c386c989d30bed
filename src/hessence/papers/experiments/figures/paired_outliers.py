"""Two eigenvalues that add up to tr/D (000 Figures 3 and 10–13)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.shared.correlations import spaced
from hessence.papers.experiments.shared.one_output import eigenvalues
from hessence.plotting.axes import COLOURS, GREY

CONTROLS = (0.75, 0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.15, 1.2, 1.25)
"""Multiples of tr/D that no theory singles out."""

ROUNDING = 1e-16
"""What is below this, relative to eigenvalues of the order of 1, is rounding."""

KINDS = {
    "two-layer-linear": ("linear", 2),
    "four-layer-linear": ("linear", 4),
    "two-layer-relu": ("relu", 2),
    "four-layer-relu": ("relu", 4),
}
CLAIMS = ("000-pair-two-linear", "000-pair-four-linear", "000-pair-two-relu", "000-pair-four-relu")
FIGURES = ("3b, 10", "11", "12", "13")
SHADES = {"best": COLOURS[0], "second": COLOURS[1], "control": COLOURS[3], "mean": GREY}
NAMES = {
    "best": "closest pair",
    "second": "second closest pair",
    "control": "closest pair to another target",
    "mean": "mean eigenvalue",
}
ASSUMED = ("orthonormal", "decorrelated")
BEYOND = ("standard", "standardised")
DENSE = 60
"""Up to this width, all eigenvalues of four ReLU layers are had from a dense matrix."""


@dataclass(frozen=True)
class Settings:
    """Networks with one output on D inputs, D up to the width, on every pair of weights and data.

    `samples` go with `widths`. Networks of four ReLU layers take `deep_relu_widths` instead: at the
    paper's width of 150 nothing reduces them but at D = 1, where units form a few cells. With more
    inputs nearly all units differ in their gates, and inputs and deltas span all dimensions, so
    that all eigenvalues would take a dense matrix of order 45 000 and more. `wide_models` of these
    are drawn, as each takes some seconds.
    """

    widths: tuple[int, ...] = (10, 150)
    samples: tuple[int, ...] = (102, 152)
    deep_relu_widths: tuple[int, ...] = (10, 150)
    sizes: tuple[int, ...] = (1, 2, 3, 5, 8, 10, 25, 75, 150)
    weights: tuple[Literal["orthonormal", "standard"], ...] = ("orthonormal", "standard")
    data: tuple[Literal["decorrelated", "standardised"], ...] = ("decorrelated", "standardised")
    models: int = 10
    wide_models: int = 2

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.samples):
            raise ValueError("samples must have one entry for each of the widths")
        if any(self.samples_at(width) < width + 2 for width in self.all_widths):
            raise ValueError("samples must be at least the width plus 2, to be decorrelated")
        if min(self.sizes) > min(self.all_widths):
            raise ValueError("sizes must hold one that is at most the smallest width")

    @property
    def all_widths(self) -> list[int]:
        """The widths of any network."""
        return [*self.widths, *self.deep_relu_widths]

    def samples_at(self, width: int) -> int:
        """Return the samples of a width: those of the next one that is listed, or of the last."""
        known = sorted(zip(self.widths, self.samples, strict=True))
        return next((samples for listed, samples in known if listed >= width), known[-1][1])


def tasks(settings: Settings) -> Iterator[Task]:
    """One kind of network, weights, data, width and input size at a time, D ≤ m."""
    for (activation, depth), weights, data in product(
        KINDS.values(), settings.weights, settings.data
    ):
        deep = (activation, depth) == KINDS["four-layer-relu"]
        widths = settings.deep_relu_widths if deep else settings.widths
        for width, size in product(widths, settings.sizes):
            if size == 1 or (size <= width and not (deep and width > DENSE)):
                yield {"activation": activation, "depth": depth, "weights": weights, "data": data,
                       "width": width, "size": size}  # fmt: skip


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Draw one set of data and many networks, and look at all pairs of their eigenvalues."""
    size, width, depth = task["size"], task["width"], task["depth"]
    draw_data = decorrelated if task["data"] == "decorrelated" else standardised
    x, y = draw_data(settings.samples_at(width), size, rng)
    dims = (size, *[width] * (depth - 1), 1)
    draw_one = hs.init.orthogonal if task["weights"] == "orthonormal" else hs.init.standard
    found: Record = {name: [] for name in NAMES}
    wide = (task["activation"], depth) == KINDS["four-layer-relu"] and width > DENSE
    for _ in range(settings.wide_models if wide else settings.models):
        weights = draw_one(dims, rng).weights
        values, flat = eigenvalues(weights, x, y, task["activation"])
        total = float(values.sum())
        # Copies of zero beyond the third make no new pairs among the best two.
        values = np.sort(np.concatenate([values, np.zeros(min(flat, 3))]))
        best, second = closest_pairs(values, total / size)
        found["best"].append(best)
        found["second"].append(second)
        found["control"].append(
            float(np.median([closest_pairs(values, c * total / size)[0] for c in CONTROLS]))
        )
        found["mean"].append(total / sum(w.size for w in weights))
    return found


def decorrelated(samples: int, size: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return inputs and targets of mean 0 and variance 1 without any correlation in the sample."""
    columns = np.concatenate([np.ones((samples, 1)), rng.normal(size=(samples, size + 1))], axis=1)
    basis, _ = np.linalg.qr(columns)
    data = basis[:, 1:] * samples**0.5
    return data[:, :size], data[:, size:]


def standardised(samples: int, size: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return Gaussian inputs and targets, each shifted and scaled to mean 0 and variance 1."""
    data = rng.normal(size=(samples, size + 1))
    data = (data - data.mean(axis=0)) / data.std(axis=0)
    return data[:, :size], data[:, size:]


def closest_pairs(values: Any, target: float) -> tuple[float, float]:
    """Return the two smallest |λ_i + λ_j − target| over pairs i < j of sorted eigenvalues."""
    count = len(values)
    index = np.arange(count)
    # The two best partners of each, itself left out, are among the three on either side.
    places = np.searchsorted(values, target - values)[:, None] + np.arange(-3, 3)
    inside = np.clip(places, 0, count - 1)
    fits = (places == inside) & (inside != index[:, None])
    gaps = np.where(fits, np.abs(values[:, None] + values[inside] - target), np.inf)
    # Each pair is there twice at most, so the first four entries hold two pairs.
    pairs: dict[tuple[int, int], float] = {}
    for flat in np.argsort(gaps, axis=None)[:4]:
        i, column = divmod(int(flat), gaps.shape[1])
        if fits[i, column]:
            j = int(inside[i, column])
            pairs[min(i, j), max(i, j)] = float(gaps[i, column])
    best, second, *_ = [*sorted(pairs.values()), np.inf, np.inf]
    return best, second


def _draw(activation: str, depth: int, records: list[Record], figure: Any) -> None:
    rows = [r for r in records if (r["activation"], r["depth"]) == (activation, depth)]
    lines = list(dict.fromkeys((r["weights"], r["data"]) for r in rows))
    sizes_at = {r["width"]: {o["size"] for o in rows if o["width"] == r["width"]} for r in rows}
    widths = [w for w, sizes in sizes_at.items() if len(sizes) > 1] or list(sizes_at)
    panels = list(product(lines, widths))
    columns = max(2, len(widths))
    figure.set_size_inches(10, 2.3 * -(-len(panels) // columns) + 0.8)
    axes = figure.subplots(-(-len(panels) // columns), columns, squeeze=False, sharex="col",
                           sharey=True)  # fmt: skip
    for ax, ((weights, data), width) in zip(axes.flat, panels, strict=False):
        own = [r for r in rows if (r["weights"], r["data"], r["width"]) == (weights, data, width)]
        _panel(ax, own)
        ax.set_title(f"{weights} weights, {data} data, width {width}", fontsize=10)
    for ax in axes[-1]:
        ax.set_xlabel("input size D")
    figure.supylabel("|λᵢ + λⱼ − tr/D|, median and quartiles", fontsize=10)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=9)


def _panel(ax: Any, own: list[Record]) -> None:
    sizes = [r["size"] for r in own]
    for name, colour in SHADES.items():
        low, middle, high = (
            np.maximum([np.quantile(r[name], q) for r in own], ROUNDING) for q in (0.25, 0.5, 0.75)
        )
        style = "--" if name in ("control", "mean") else "-"
        ax.loglog(sizes, middle, f"o{style}", color=colour, markersize=4, label=NAMES[name])
        ax.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
    ticks = spaced(sizes)
    ax.set_xticks(ticks, [str(size) for size in ticks])
    ax.minorticks_off()


def draw_two_linear(settings: Settings, records: list[Record], figure: Any) -> None:
    """Two linear layers have a pair at tr/D only with orthonormal weights on decorrelated data.

    One input is an exception: there every network has the pair.
    """
    _draw("linear", 2, records, figure)


def draw_four_linear(settings: Settings, records: list[Record], figure: Any) -> None:
    """Beyond a few inputs, four linear layers have a pair as close to other targets as to tr/D."""
    _draw("linear", 4, records, figure)


def draw_two_relu(settings: Settings, records: list[Record], figure: Any) -> None:
    """Beyond a few inputs, two ReLU layers have a pair as close to other targets as to tr/D."""
    _draw("relu", 2, records, figure)


def draw_four_relu(settings: Settings, records: list[Record], figure: Any) -> None:
    """Beyond a few inputs, four ReLU layers have a pair as close to other targets as to tr/D."""
    _draw("relu", 4, records, figure)


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with §4.1, and ask whether tr/D is a special target at all."""
    found, beyond = [], []
    for (name, kind), claim, number in zip(KINDS.items(), CLAIMS, FIGURES, strict=True):
        own = [r for r in records if (r["activation"], r["depth"]) == kind]
        by_setting = {
            key: [r for r in own if (r["weights"], r["data"]) == key]
            for key in dict.fromkeys((r["weights"], r["data"]) for r in own)
        }
        linear, title = name == "two-layer-linear", name.replace("-", " ").replace("relu", "ReLU")
        if linear and (good := by_setting.pop(ASSUMED, [])):
            found.append(_on_the_pair(good))
        # With one or two inputs, theorems give pairs of their own.
        many = {key: kept for key, rows in by_setting.items()
                if (kept := [r for r in rows if r["size"] > 2])}  # fmt: skip
        if BEYOND in many:
            reached = _reached(own) if name == "four-layer-relu" else ""
            found.append(_on_closeness(f"{title}, standard weights and data", f"000 §4.1, Fig "
                                       f"{number}", claim, many, BEYOND, reached))  # fmt: skip
            beyond += many[BEYOND]
        mixed = {key: rows for key, rows in many.items() if key != BEYOND}
        if linear and mixed:
            found.append(_on_closeness(f"{title}, one of the two assumptions", "000 Fig 10",
                                       "000-pair-mixed", mixed))  # fmt: skip
    return [*found, *(_on_all(beyond) if beyond else [])]


def _reached(rows: list[Record]) -> str:
    widths = sorted({r["width"] for r in rows if r["size"] > 1})
    alone = sorted({r["width"] for r in rows} - set(widths))
    told = f". All eigenvalues were had at the widths {', '.join(map(str, widths))}"
    if alone:
        wide = [r for r in rows if r["width"] in alone]
        off, control = _medians(wide, "best", "mean"), _medians(wide, "control", "best")
        told += (
            f", by cells with one input at {', '.join(map(str, alone))}, where the closest pair "
            f"is off by {np.median(off):.1g} mean eigenvalues and other targets are missed by "
            f"{np.median(control):.2g} times as much"
        )
    return f"{told}; the paper has 150, of order 45 000 and more, which nothing known reduces"


def _on_the_pair(rows: list[Record]) -> Finding:
    off, apart = _medians(rows, "best", "mean"), _medians(rows, "second", "best")
    return Finding(
        "000-best-pair",
        off.max() < 1e-2 and apart.min() > 100,
        f"closest pair off by at most {off.max():.0e} mean eigenvalues, the second at least "
        f"{apart.min():.0e} times as far, {len(rows)} sizes and widths",
        criterion="off by less than a hundredth of the mean eigenvalue and the second more than "
        "100 times as far, medians at every size and width",
    )


def _on_closeness(
    title: str, where: str, claim: str, groups: dict[tuple[str, str], list[Record]],
    decides: tuple[str, str] | None = None, more: str = "",
) -> Finding:  # fmt: skip
    told, holds = [], []
    for (weights, data), rows in groups.items():
        off, control = _medians(rows, "best", "mean"), _medians(rows, "control", "best")
        close = bool(np.median(off) < 1 and np.median(control) >= 2)
        if decides in (None, (weights, data)):
            holds.append(close)
        told.append(
            f"{weights} weights, {data} data: off by {np.median(off):.1g} mean eigenvalues, other "
            f"targets missed by {np.median(control):.2g} times as much ({control.min():.2g} to "
            f"{control.max():.2g} at {len(rows)} sizes and widths)"
        )
    return Finding(
        claim,
        all(holds),
        f"{'; '.join(told)}{more}",
        criterion="within a mean eigenvalue, and ten other targets within a quarter of tr/D missed "
        "by at least twice as much, medians over networks, sizes and widths, D > 2"
        + ("" if decides is None else f"; {decides[0]} weights and {decides[1]} data decide"),
    )


def _on_all(rows: list[Record]) -> list[Finding]:
    kinds = {
        name.replace("-", " ").replace("relu", "ReLU"): own
        for name, kind in KINDS.items()
        if (own := [r for r in rows if (r["activation"], r["depth"]) == kind])
    }
    apart = {name: float(np.median(_medians(own, "second", "best"))) for name, own in kinds.items()}
    missed = {
        name: float(np.median(_medians(own, "control", "best"))) for name, own in kinds.items()
    }
    return [
        Finding(
            "000-no-best-pair",
            max(apart.values()) < 100,
            "the second is so many times as far: "
            + ", ".join(f"{name} {value:.1f}" for name, value in apart.items()),
            criterion="less than 100 times as far, median over networks, sizes and widths, D > 2, "
            "for every kind of network",
        ),
        Finding(
            "000-pair-persists",
            min(missed.values()) >= 2,
            "other targets are missed by so many times as much: "
            + ", ".join(f"{name} {value:.2f}" for name, value in missed.items()),
            criterion="at least twice as much, median over networks, sizes and widths, D > 2, for "
            "every kind of network",
        ),
    ]


def _medians(rows: list[Record], above: str, below: str) -> Any:
    """Return the median ratio of two quantities over the networks of each record."""
    return np.asarray(
        [np.median(np.divide(r[above], np.maximum(r[below], ROUNDING))) for r in rows]
    )


EXPERIMENT = Experiment(
    id="paired-outliers",
    title="Pairs of eigenvalues that add up to tr/D",
    figures=("000 F3", "000 F10", "000 F11", "000 F12", "000 F13"),
    shows="how close two eigenvalues come to adding up to tr/D, beside the next pair, the mean "
    "eigenvalue and other targets; four ReLU layers at small widths, and at 150 with one input",
    presets={
        "tiny": Settings((4,), (12,), (3,), sizes=(1, 2, 3), models=2),
        "quick": Settings(),
        "paper": Settings(
            deep_relu_widths=(10, 20, 40, 150),
            sizes=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 30, 50, 75, 100, 125, 150),
            models=100,
            wide_models=10,
        ),
    },
    tasks=tasks,
    run=run,
    draw={
        "two-layer-linear": draw_two_linear,
        "four-layer-linear": draw_four_linear,
        "two-layer-relu": draw_two_relu,
        "four-layer-relu": draw_four_relu,
    },
    findings=findings,
    minutes={"quick": 1.2, "paper": 120},
)
