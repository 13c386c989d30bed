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

KINDS = (("linear", 2), ("linear", 4), ("relu", 2), ("relu", 4))
FIGURES = {
    "two-layer-linear": ("linear", 2),
    "four-layer-linear": ("linear", 4),
    "two-layer-relu": ("relu", 2),
    "four-layer-relu": ("relu", 4),
}
NUMBERS = ("3b, 10", "11", "12", "13")
SHADES = {"best": COLOURS[0], "second": COLOURS[1], "control": COLOURS[3], "mean": GREY}
NAMES = {
    "best": "closest pair",
    "second": "second closest pair",
    "control": "closest pair to another target",
    "mean": "mean eigenvalue",
}


@dataclass(frozen=True)
class Settings:
    """Networks with one output on D inputs, D up to the width, in two settings of weights and data.

    `samples` go with `widths`; networks of four ReLU layers take `deep_relu_widths` instead, with
    the samples of the first width: all their eigenvalues take a dense matrix, of order 45 000 and
    more at the paper's width of 150.
    """

    widths: tuple[int, ...] = (10, 150)
    samples: tuple[int, ...] = (102, 152)
    deep_relu_widths: tuple[int, ...] = (10,)
    sizes: tuple[int, ...] = (1, 2, 3, 5, 8, 10, 25, 75, 150)
    settings: tuple[Literal["orthonormal", "standard"], ...] = ("orthonormal", "standard")
    models: int = 10

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.samples):
            raise ValueError("samples must have one entry for each of the widths")
        pairs = [*zip(self.widths, self.samples, strict=True)]
        pairs += [(width, self.samples[0]) for width in self.deep_relu_widths]
        if any(samples < width + 2 for width, samples in pairs):
            raise ValueError("samples must be at least the width plus 2, to be decorrelated")
        if min(self.sizes) > min(*self.widths, *self.deep_relu_widths):
            raise ValueError("sizes must hold one that is at most the smallest width")


def tasks(settings: Settings) -> Iterator[Task]:
    """One kind of network, width and input size at a time, D ≤ m."""
    for (activation, depth), setting in product(KINDS, settings.settings):
        deep = (activation, depth) == ("relu", 4)
        widths = settings.deep_relu_widths if deep else settings.widths
        for width, size in product(widths, settings.sizes):
            if size <= width:
                yield {"activation": activation, "depth": depth, "setting": setting,
                       "width": width, "size": size}  # fmt: skip


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Draw one set of data and many networks, and look at all pairs of their eigenvalues."""
    size, width, depth = task["size"], task["width"], task["depth"]
    samples = dict(zip(settings.widths, settings.samples, strict=True)).get(
        width, settings.samples[0]
    )
    orthonormal = task["setting"] == "orthonormal"
    x, y = (decorrelated if orthonormal else standardised)(samples, size, rng)
    dims = (size, *[width] * (depth - 1), 1)
    draw_one = hs.init.orthogonal if orthonormal else hs.init.standard
    found: Record = {name: [] for name in NAMES}
    for _ in range(settings.models):
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


def _draw(activation: str, depth: int) -> Any:
    def draw(settings: Settings, records: list[Record], figure: Any) -> None:
        """Draw the closest pairs against the input size, one panel for each width and setting."""
        rows = [r for r in records if (r["activation"], r["depth"]) == (activation, depth)]
        panels = list(dict.fromkeys((r["setting"], r["width"]) for r in rows))
        panels.sort(key=lambda panel: panel[1])
        columns = max(1, len({setting for setting, _ in panels}))
        lines = max(1, -(-len(panels) // columns))
        figure.set_size_inches(max(5.5 * columns, 7), 3.8 * lines)
        axes = figure.subplots(lines, columns, squeeze=False, sharey=True)
        for ax, (setting, width) in zip(axes.flat, panels, strict=True):
            own = [r for r in rows if (r["setting"], r["width"]) == (setting, width)]
            sizes = [r["size"] for r in own]
            for name, colour in SHADES.items():
                low, middle, high = (
                    np.asarray([np.quantile(r[name], q) for r in own]) for q in (0.25, 0.5, 0.75)
                )
                style = "--" if name in ("control", "mean") else "-"
                ax.loglog(sizes, np.maximum(middle, ROUNDING), f"o{style}", color=colour,
                          markersize=4, label=NAMES[name])  # fmt: skip
                ax.fill_between(sizes, np.maximum(low, ROUNDING), np.maximum(high, ROUNDING),
                                color=colour, alpha=0.15, linewidth=0)  # fmt: skip
            weights, data = (
                ("orthonormal weights", "decorrelated data")
                if setting == "orthonormal"
                else ("standard weights", "standardised data")
            )
            ax.set_title(f"width {width}: {weights}, {data}", fontsize=10)
            ax.set_xlabel("input size D")
            ticks = spaced(sizes)
            ax.set_xticks(ticks, [str(size) for size in ticks])
            ax.minorticks_off()
        for ax in axes[:, 0]:
            ax.set_ylabel("|λᵢ + λⱼ − tr/D|, median and quartiles")
        axes[0, 0].legend(fontsize=8)

    return draw


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with §4.1, and ask whether tr/D is a special target at all."""
    found = []
    for (name, (activation, depth)), numbers in zip(FIGURES.items(), NUMBERS, strict=True):
        rows = [r for r in records if (r["activation"], r["depth"]) == (activation, depth)]
        good = [r for r in rows if r["setting"] == "orthonormal"]
        # With one input, two layers have an exact pair for any weights (Theorem 3.1).
        rest = [r for r in rows if r["setting"] == "standard" and r["size"] > 1]
        title = name.replace("-", " ").replace("relu", "ReLU")
        if good and name == "two-layer-linear":
            found.append(_on_the_pair(title, good))
        elif good:
            found.append(_on_closeness(f"orthonormal {title}", numbers, good))
        if rest:
            found.append(_on_closeness(f"standard {title}, D > 1", numbers, rest))
            found.append(_on_other_targets(title, rest))
    return found


def _on_the_pair(title: str, rows: list[Record]) -> Finding:
    off, apart = _medians(rows, "best", "mean"), _medians(rows, "second", "best")
    return Finding(
        "with orthonormal weights and decorrelated data, one pair adds up to tr/D, orders of "
        f"magnitude closer than the next pair and the mean eigenvalue: {title}",
        "000 §4.1, Fig 3a, 10",
        off.max() < 1e-2 and apart.min() > 100,
        f"closest pair off by at most {off.max():.0e} mean eigenvalues, the second at least "
        f"{apart.min():.0e} times as far (medians at each of {len(rows)} sizes and widths)",
    )


def _on_closeness(title: str, numbers: str, rows: list[Record]) -> Finding:
    off, apart = _medians(rows, "best", "mean"), _medians(rows, "second", "best")
    return Finding(
        f"a pair adds up to nearly tr/D, and the second closest is close too: {title}",
        f"000 §4.1, Fig {numbers}",
        np.median(off) < 1 and np.median(apart) < 100,
        f"closer than the mean eigenvalue, which most of them have to be, at {np.sum(off < 1)} of "
        f"{len(rows)} sizes and widths; "
        f"median {np.median(off):.1g} mean eigenvalues, worst {off.max():.1g}; the second "
        f"{np.median(apart):.1f} times as far",
    )


def _on_other_targets(title: str, rows: list[Record]) -> Finding:
    missed = _medians(rows, "control", "best")
    return Finding(
        "this closeness is owed to a pair, as other targets within 25% of tr/D are missed by far "
        f"more: standard {title}, D > 1",
        "000 §4.1, the hypothesis; a control of our own",
        np.median(missed) > 10,
        f"other targets are missed by {np.median(missed):.1f} times as much in the median, "
        f"{missed.min():.2g} to {missed.max():.2g} times; by more than 10 times, which most of "
        f"them have to be, at {np.sum(missed > 10)} of {len(rows)} sizes and widths, by more than "
        f"2 times at {np.sum(missed > 2)}",
    )


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
    "eigenvalue and other targets; four ReLU layers, which nothing reduces, at widths up to 20",
    presets={
        "tiny": Settings((4,), (12,), (3,), sizes=(1, 2, 3), models=2),
        "quick": Settings(),
        "paper": Settings(
            deep_relu_widths=(10, 20),
            sizes=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 30, 50, 75, 100, 125, 150),
            models=100,
        ),
    },
    tasks=tasks,
    run=run,
    draw={name: _draw(*kind) for name, kind in FIGURES.items()},
    findings=findings,
    minutes={"quick": 0.9, "paper": 25},
)
