"""Attention sinks where tokens are vectors (000 Figure 9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np

import hessence as hs
from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.settings import Share, at_least
from hessence.papers.experiments.shared.attention_by_definition import (
    attention_loss,
    curvature_along,
    split,
)
from hessence.plotting.axes import COLOURS, GREY, signed_scale

Case = tuple[float, float]
"""Gain of the weights, and scale of the first token of each sequence."""


@dataclass(frozen=True)
class Settings:
    """A layer with uniform weights of variance gain/d, and standard normal tokens and targets.

    The paper tells dimensions, batch and length. Tokens, targets and weights are choices made
    here: a gain of 1/3 is PyTorch's default for linear layers, a gain of 1 the standard
    parametrisation. `massive` scales the first token of each sequence, and `share` is the part of
    the outliers that is looked at, the largest ones.
    """

    dimension: int = 10
    keys: int = 100
    sequences: int = 10
    length: Annotated[int, at_least(2)] = 10
    largest_sink: float = 10.0
    points: Annotated[int, at_least(2)] = 9
    gains: tuple[float, ...] = (1 / 3, 1.0)
    massive: tuple[float, ...] = (1.0, 5.0)
    share: Share = 0.05
    draws: int = 5

    def __post_init__(self) -> None:
        if self.keys <= 2 * self.dimension:
            raise ValueError("keys must exceed twice the dimension: else there is no bulk")


def tasks(settings: Settings) -> Iterator[Task]:
    """One network, one scale of its weights and one strength of the sink at a time."""
    strengths = np.linspace(0, settings.largest_sink, settings.points)
    for (gain, massive), draw, sink in product(_cases(settings), range(settings.draws), strengths):
        yield {"gain": gain, "massive": massive, "draw": draw, "sink": float(sink)}


def _cases(settings: Settings) -> list[tuple[float, float]]:
    return list(product(settings.gains, settings.massive))


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Find the whole spectrum through the narrow twin, and check it with losses alone."""
    d = settings.dimension
    bound = (3 * task["gain"] / d) ** 0.5
    W_v = rng.uniform(-bound, bound, size=(d, d))
    W_q, W_k = rng.uniform(-bound, bound, size=(2, d, settings.keys))
    x, y = rng.normal(size=(2, settings.sequences, settings.length, d))
    x[:, 0] *= task["massive"]
    net = hs.MatrixAttention(W_v, W_q, W_k, sink=task["sink"])
    spectrum = net.hessian(x, y).spectrum()
    bulk = [space for space in spectrum["bulk"] if space.value > 0]
    singles = np.sort([s.value for s in spectrum.spaces if not s.label.startswith("bulk")])[::-1]
    shown = max(1, round(settings.share * len(singles)))
    shapes = ((d, d), (d, settings.keys), (d, settings.keys))

    def loss(theta: Any) -> float:
        W_v, W_q, W_k = split(theta, *shapes)
        return attention_loss(W_v, W_q, W_k, x, y, task["sink"])

    tested = (spectrum.spaces[0], spectrum["bulk"][0], spectrum.spaces[-1])
    gaps = [
        curvature_along(loss, net.parameters(), space.vectors(1)[:, 0]) - space.value
        for space in tested
    ]
    return {
        "attention": float(net.attention(x)[..., 0].mean()),
        "outliers": singles[:shown],
        "smallest": singles[-1],
        "bulk": sorted((space.value for space in bulk), reverse=True),
        "multiplicity": max(int(space.multiplicity) for space in spectrum["bulk"]),
        "deviation": np.abs(gaps).max() / spectrum.norm,
    }


def draw(settings: Settings, records: list[Record], figure: Any) -> None:
    """Draw the first network, and beside it bulk and sharpness of all of them."""
    figure.set_size_inches(11, 3.6 * len(_cases(settings)))
    axes = figure.subplots(len(_cases(settings)), 2, squeeze=False)
    for (left, right), case in zip(axes, _cases(settings), strict=True):
        first = [r for r in records if _is(r, case) and r["draw"] == 0]
        strengths = [r["sink"] for r in first]
        bulk = np.asarray([r["bulk"] for r in first])
        top = [f"largest {settings.share:.0%} of the outliers"]
        outliers = np.asarray([r["outliers"] for r in first])
        left.plot(strengths, outliers, color=COLOURS[1], linewidth=1,
                  label=top + [None] * (outliers.shape[1] - 1))  # fmt: skip
        label = [f"bulk, {first[0]['multiplicity']} times each"] + [None] * (bulk.shape[1] - 1)
        left.plot(strengths, bulk, "--", color=COLOURS[0], linewidth=1, label=label)
        left.plot(strengths, -bulk, "--", color=COLOURS[0], linewidth=1)
        left.axhline(0, color=GREY, linestyle=":", linewidth=1)
        signed_scale(left, max(float(bulk.max()) / 10, 1e-12))
        left.set_ylabel("eigenvalue, first network")
        left.set_title(_told(case), fontsize=11)
        for name, colour, what in (
            ("outliers", COLOURS[1], "sharpness"),
            ("bulk", COLOURS[0], "largest of the bulk"),
        ):
            values = _largest(settings, records, case, name)
            right.plot(strengths, values.T, color=colour, alpha=0.25, linewidth=1)
            right.plot(strengths, np.median(values, axis=0), "o-", color=colour, label=what)
        share = np.median(_values(settings, records, case, "attention"), axis=0)
        above = right.secondary_xaxis("top")
        above.set_xticks(strengths[::2], [f"{s:.2f}" for s in share[::2]], fontsize=8)
        above.set_xlabel("median attention to the first token", fontsize=9)
        right.set_yscale("log")
        right.set_ylabel(f"{settings.draws} networks and their median")
        right.legend(frameon=False)
    for ax in axes[-1]:
        ax.set_xlabel("strength of the sink")
    axes[0, 0].legend(frameon=False)


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with the twin's theorem and with what the paper says of sinks."""
    worst = max(record["deviation"] for record in records)
    copies = settings.keys - 2 * settings.dimension
    regular = all(
        r["multiplicity"] == copies and len(r["bulk"]) == settings.dimension for r in records
    )
    return [
        Finding(
            "eigenvalues repeat: a bulk in signed pairs, beside outliers that are all different",
            "000 App D.1.1",
            regular and worst < 1e-5,
            f"{settings.dimension} pairs, {copies} times each; losses along eigenvectors curve as "
            f"the eigenvalues say to {worst:.0e} of the largest",
        ),
        _on_settings(settings, records),
        *(finding for case in _cases(settings) for finding in _on_sinks(settings, records, case)),
    ]


def _on_settings(settings: Settings, records: list[Record]) -> Finding:
    """Count the settings in which the whole effect shows: all the findings below depend on them."""
    both = []
    for case in _cases(settings):
        bulk = _largest(settings, records, case, "bulk")
        outliers = _values(settings, records, case, "outliers")
        shrinks = bulk[:, -1] < bulk[:, 0]
        if (shrinks & (outliers[:, -1] > outliers[:, 0]).all(axis=1)).all():
            both.append(_told(case))
    return Finding(
        "a strong sink shrinks the bulk and raises the largest outliers, whatever the scales of "
        "weights and first tokens",
        "000 Fig 9, which tells neither scale",
        len(both) == len(_cases(settings)),
        f"both in all networks in {len(both)} of {len(_cases(settings))} settings"
        + (f": {'; '.join(both)}" if both else ""),
    )


def _on_sinks(settings: Settings, records: list[Record], case: Case) -> list[Finding]:
    bulk = _largest(settings, records, case, "bulk")
    outliers = _values(settings, records, case, "outliers")
    sharpness = outliers[..., 0]
    of = f" ({_told(case)})"
    smaller = bulk[:, -1] < bulk[:, 0]
    falling = (np.diff(bulk, axis=1) < 0).all(axis=1)
    larger = (outliers[:, -1] > outliers[:, 0]).all(axis=1)
    rising = (np.diff(sharpness, axis=1) > 0).all(axis=1)
    rise, top = sharpness[:, -1] / sharpness[:, 0], sharpness.max(axis=1) / sharpness[:, 0]
    return [
        Finding(
            "a strong sink makes the bulk smaller than no sink" + of,
            "000 Fig 9",
            bool(smaller.all()),
            f"in {np.mean(smaller):.0%} of {len(bulk)} networks; it falls to "
            f"{np.median(bulk[:, -1] / bulk[:, 0]):.1e} of itself in the median",
        ),
        Finding(
            "the larger the sink, the smaller the bulk, at every step" + of,
            "000 Fig 9",
            bool(falling.all()),
            f"in {np.mean(falling):.0%} of {len(bulk)} networks; at its largest the bulk is "
            f"{np.median(bulk.max(axis=1) / bulk[:, 0]):.2f} times that without a sink",
        ),
        Finding(
            "a strong sink makes the outliers larger than no sink" + of,
            "000 Fig 9",
            bool(larger.all()),
            f"all of the largest {settings.share:.0%} grow in {np.mean(larger):.0%} of "
            f"{len(bulk)} networks, the sharpness in {np.mean(rise > 1):.0%}, by a factor of "
            f"{np.median(rise):.2f} in the median",
        ),
        Finding(
            "the larger the sink, the larger the sharpness, at every step" + of,
            "000 Fig 9",
            bool(rising.all()),
            f"in {np.mean(rising):.0%} of {len(bulk)} networks; at its largest the sharpness is "
            f"{np.median(top):.2f} times that without a sink",
        ),
    ]


def _is(record: Record, case: Case) -> bool:
    return (record["gain"], record["massive"]) == case


def _told(case: Case) -> str:
    gain, massive = case
    tokens = "" if massive == 1 else f", first tokens {massive:g} times larger"
    return f"weights of variance {gain:.2g}/d{tokens}"


def _values(settings: Settings, records: list[Record], case: Case, name: str) -> Any:
    """Return a field as an array (draws, strengths, ...)."""
    rows = [r[name] for r in records if _is(r, case)]
    return np.asarray(rows).reshape(settings.draws, settings.points, *np.shape(rows[0]))


def _largest(settings: Settings, records: list[Record], case: Case, name: str) -> Any:
    return _values(settings, records, case, name)[..., 0]


EXPERIMENT = Experiment(
    id="matrix-attention-sinks",
    title="Attention sinks where tokens are vectors",
    figures=("000 F9",),
    shows="bulk and largest outliers of attention between vectors against the strength of a sink",
    presets={
        "tiny": Settings(dimension=2, keys=7, sequences=3, length=4, points=3, draws=2),
        "quick": Settings(),
        "paper": Settings(points=41, draws=50),
    },
    tasks=tasks,
    run=run,
    draw=draw,
    findings=findings,
    minutes={"quick": 0.3, "paper": 9},
    common=("gain", "massive", "sink"),
)
