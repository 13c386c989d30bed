"""Correlations over a batch of networks, as numbers and as lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hessence.papers.experiments.protocol import Record
from hessence.plotting.axes import COLOURS, GREY

NORMS = ("spectral", "frobenius", "nuclear")
NAMES = {"standard": "standard", "ntk": "neural tangent", "mup": "maximal update"}
WHEN = {"initial": "at initialisation", "trained": "trained"}


def pearson(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the correlation coefficient, over the pairs that are finite; NaN if there is none.

    Examples
    --------
    >>> pearson([1, 2, 3, float("nan")], [2, 4, 6, 0]).__round__(12)
    1.0
    """
    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    keep = np.isfinite(x) & np.isfinite(y)
    if keep.sum() < 3:
        return float("nan")
    x, y = x[keep] - x[keep].mean(), y[keep] - y[keep].mean()
    scale = np.linalg.norm(x) * np.linalg.norm(y)
    return float(x @ y / scale) if scale else float("nan")


def correlation(record: Record, when: str, target: str, name: str) -> float:
    """Return how a quantity correlates with a target over the networks of one record."""
    return pearson(record[when][target], record[when][name])


def draw_line(
    ax: Any, places: Sequence[float], values: Any, networks: int, colour: str, **style: Any
) -> None:
    """Draw correlations and a band of one standard error, (1 − r²)/√N."""
    r = np.asarray(values, dtype=float)
    error = (1 - r**2) / max(networks - 1, 1) ** 0.5
    ax.plot(places, r, color=colour, markersize=4, **style)
    ax.fill_between(places, r - error, r + error, color=colour, alpha=0.12, linewidth=0)


Line = tuple[str, str, str, str]
"""A quantity to draw: its name in the records, a label, a colour and a style."""


def draw_by_size(
    records: list[Record],
    kinds: Sequence[str],
    figure: Any,
    target: str,
    rows: Sequence[tuple[str, str, Sequence[Line]]],
) -> None:
    """Draw correlations against D = K: a column for each parametrisation, and rows as told.

    A row has a title, the moment it is about (see `WHEN`), and its lines.
    """
    figure.set_size_inches(10, 2.6 * len(rows) + 1)
    axes = figure.subplots(len(rows), len(kinds), sharex=True, sharey=True, squeeze=False)
    for (title, when, lines), panels in zip(rows, axes, strict=True):
        for ax, kind in zip(panels, kinds, strict=True):
            own = [r for r in records if r["parametrisation"] == kind]
            sizes = [r["size"] for r in own]
            for name, label, colour, style in lines:
                values = [correlation(r, when, target, name) for r in own]
                draw_line(ax, sizes, values, networks_of(own), colour, linestyle=style,
                          marker="o", label=label)  # fmt: skip
            ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
            ax.set_xscale("log")
            ticks = spaced(sizes)
            ax.set_xticks(ticks, [str(size) for size in ticks])
            ax.minorticks_off()
            ax.set_title(f"{NAMES[kind]}, {title}", fontsize=10)
    axes[0, 0].set_ylim(-1.05, 1.05)
    for ax in axes[-1]:
        ax.set_xlabel("input and output size D = K")
    figure.supylabel(f"correlation with the {target}", fontsize=10)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=9)


def spaced(sizes: Sequence[int]) -> list[int]:
    """Return the sizes that have room for a label on a logarithmic axis."""
    kept: list[int] = []
    for size in sorted(sizes):
        if not kept or size >= 1.5 * kept[-1]:
            kept.append(size)
    return kept


def layer_rows(when: str, *more: Line) -> list[tuple[str, str, list[Line]]]:
    """Return one row for each of two layers, with the three norms of it as lines."""
    return [
        (
            f"layer {layer[1:]}",
            when,
            [(f"{layer} {norm}", f"{written(norm)} norm", COLOURS[i], "-")
             for i, norm in enumerate(NORMS)] + [*more],
        )
        for layer in ("W1", "W2")
    ]  # fmt: skip


def networks_of(records: list[Record]) -> int:
    """Return how many networks stand behind each correlation."""
    return len(records[0]["initial"]["sharpness"]) if records else 0


def mean_correlations(
    records: list[Record], when: str, target: str, names: Sequence[str]
) -> dict[str, float]:
    """Return each quantity's correlation, averaged over records."""
    table = [[correlation(r, when, target, name) for name in names] for r in records]
    if not table or np.isnan(table).all():
        return dict.fromkeys(names, float("nan"))
    return dict(zip(names, np.nanmean(table, axis=0).tolist(), strict=True))


def listed(values: dict[str, float]) -> str:
    """Return numbers by name as one text.

    Examples
    --------
    >>> listed({"W1": 0.5, "W2": -0.25})
    'W1 0.50, W2 −0.25'
    """
    return ", ".join(
        f"{written(name)} {value:.2f}".replace("-", "−") for name, value in values.items()
    )


def written(name: str) -> str:
    """Return a name as it is written: Frobenius keeps his capital."""
    return name.replace("frobenius", "Frobenius")
