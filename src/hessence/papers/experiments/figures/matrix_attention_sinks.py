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
GONE = 1e-3
"""A bulk below this part of what it was is taken to have shrunk to zero."""
FULL = 0.95
"""A sink is full if the first token has this share of the attention of every token."""
SHOWN = 5
"""How many outliers and how many pairs of the bulk are drawn, the largest ones."""


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
    largest_sink: float = 60.0
    points: Annotated[int, at_least(2)] = 13
    gains: tuple[float, ...] = (1 / 3, 1.0)
    massive: tuple[float, ...] = (1.0, 5.0)
    share: Share = 0.05
    draws: int = 5

    def __post_init__(self) -> None:
        if self.keys <= 2 * self.dimension:
            raise ValueError("keys must exceed twice the dimension: else there is no bulk")


def tasks(settings: Settings) -> Iterator[Task]:
    """One network, one scale of its weights and one strength of the sink at a time."""
    # A sink takes all attention early on: there the points are close.
    strengths = settings.largest_sink * np.linspace(0, 1, settings.points) ** 3
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
    # Each comes with both signs; those that a sink has made zero are flat, and no longer bulk.
    bulk = sorted((abs(space.value) for space in spectrum["bulk"]), reverse=True)[::2]
    singles = np.sort([s.value for s in spectrum.spaces if not s.label.startswith("bulk")])[::-1]
    shown = max(1, round(settings.share * 5 * d**2))  # of d² + 2 d d_K − 2d (d_K − 2d) outliers
    shapes = ((d, d), (d, settings.keys), (d, settings.keys))

    def loss(theta: Any) -> float:
        W_v, W_q, W_k = split(theta, *shapes)
        return attention_loss(W_v, W_q, W_k, x, y, task["sink"])

    tested = (spectrum.spaces[0], spectrum["bulk"][0], spectrum.spaces[-1])
    along = [space.vectors(1)[:, 0] for space in tested]
    gaps = [
        curvature_along(loss, net.parameters(), vector) - space.value
        for space, vector in zip(tested, along, strict=True)
    ]
    return {
        "attention": float(net.attention(x)[..., 0].mean()),
        "least_attention": float(net.attention(x)[..., 0].min()),
        "outliers": singles[:shown],
        "value_share": float(np.sum(along[0][: d * d] ** 2)),  # of the top eigenvector
        "smallest": singles[-1],
        "pairs": len(bulk),
        "bulk": bulk + [0.0] * (d - len(bulk)),
        "multiplicity": max((int(s.multiplicity) for s in spectrum["bulk"]), default=0),
        "deviation": np.abs(gaps).max() / spectrum.norm,
    }


def draw_first(settings: Settings, records: list[Record], figure: Any) -> None:
    """A sink shrinks the repeated eigenvalues, later where weights and first tokens are larger.

    One network in every setting. Red are its five largest outliers, blue the five largest pairs
    of its bulk.
    """
    cases = _cases(settings)
    rows = -(-len(cases) // 2)
    figure.set_size_inches(10, 3.5 * rows)
    axes = figure.subplots(rows, 2, squeeze=False, sharex=True)
    for ax, case in zip(axes.ravel(), cases, strict=False):
        first = [r for r in records if _is(r, case) and r["draw"] == 0]
        strengths = [r["sink"] for r in first]
        bulk = np.asarray([r["bulk"][:SHOWN] for r in first])
        outliers = np.asarray([r["outliers"][:SHOWN] for r in first])
        kinds = (
            (outliers, "-", COLOURS[1], "outlier"),
            (bulk, "--", COLOURS[0], f"bulk, {first[0]['multiplicity']} times each"),
            (-bulk, "--", COLOURS[0], None),
        )
        for values, style, colour, label in kinds:
            lines = ax.plot(strengths, values, style, color=colour, linewidth=1)
            lines[0].set_label(label)
        ax.axhline(0, color=GREY, linestyle=":", linewidth=1)
        signed_scale(ax, max(float(bulk.max()) / 10, 1e-12))
        ax.set_title(_told(case), fontsize=10)
        ax.set_xscale("symlog", linthresh=5)
        ax.margins(x=0)
    for ax in axes[:, 0]:
        ax.set_ylabel("eigenvalue")
    for ax in axes[-1]:
        ax.set_xlabel("strength of the sink")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9)


def draw_medians(settings: Settings, records: list[Record], figure: Any) -> None:
    """A strong sink takes the bulk away in the median; the sharpness rises only for small weights.

    Thick lines are medians, bands hold 80 % of the networks, and thin lines are the largest of all.
    At the dotted line the median network gives the first token 95 % of all attention.
    """
    cases = _cases(settings)
    rows = -(-len(cases) // 2)
    figure.set_size_inches(10, 3.5 * rows)
    axes = figure.subplots(rows, 2, squeeze=False, sharex=True)
    for ax, case in zip(axes.ravel(), cases, strict=False):
        strengths = np.asarray([r["sink"] for r in records if _is(r, case) and r["draw"] == 0])
        for name, colour, what in (
            ("outliers", COLOURS[1], "sharpness"),
            ("bulk", COLOURS[0], "largest of the bulk"),
        ):
            values = _largest(settings, records, case, name)
            low, middle, high = np.percentile(values, (10, 50, 90), axis=0)
            ax.fill_between(strengths, low, high, color=colour, alpha=0.2, linewidth=0)
            ax.plot(strengths, values.max(axis=0), color=colour, alpha=0.6, linewidth=0.8)
            ax.plot(strengths, middle, color=colour, linewidth=2.2, label=what)
        share = np.median(_values(settings, records, case, "attention"), axis=0)
        if share.max() > FULL:
            ax.axvline(np.interp(FULL, share, strengths), color=GREY, linestyle=":", linewidth=1.5)
        ax.set_yscale("log")
        ax.set_ylim(bottom=1e-8 * float(values.max()))  # of the bulk, which comes last
        ax.set_title(_told(case), fontsize=10)
        ax.set_xscale("symlog", linthresh=5)
        ax.margins(x=0)
    for ax in axes[:, 0]:
        ax.set_ylabel(f"eigenvalue, {settings.draws} networks")
    for ax in axes[-1]:
        ax.set_xlabel("strength of the sink")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9)


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with the twin's theorem and with what the paper says of sinks."""
    worst = max(record["deviation"] for record in records)
    copies = settings.keys - 2 * settings.dimension
    regular = all(
        r["multiplicity"] == copies and r["pairs"] == settings.dimension
        for r in records
        if r["sink"] == 0
    )
    return [
        Finding(
            "000-matrix-bulk",
            regular and worst < 1e-5,
            f"{settings.dimension} pairs, {copies} times each; losses along eigenvectors curve as "
            f"the eigenvalues say to {worst:.0e} of the largest",
            criterion="without a sink d pairs, d_K − 2d times each, and the loss's own second "
            "differences along eigenvectors within 1e-5 of the largest eigenvalue",
        ),
        *_on_sinks(settings, records),
    ]


def _on_sinks(settings: Settings, records: list[Record]) -> list[Finding]:
    cases = _cases(settings)
    bulk = [_largest(settings, records, case, "bulk") for case in cases]
    sharpness = [_largest(settings, records, case, "outliers") for case in cases]
    full = [_values(settings, records, case, "least_attention")[:, :-1] >= FULL for case in cases]
    left = [part[:, -1] / part[:, 0] for part in bulk]
    last = [_values(settings, records, case, "least_attention")[:, -1] >= FULL for case in cases]
    kept = np.concatenate([part[sunk] for part, sunk in zip(left, last, strict=True)])
    grown = [part[:, -1] / part[:, 0] for part in sharpness]
    rises = [np.diff(part, axis=1) > 0 for part in bulk]
    steps = sum(int(part.sum()) for part in full)
    wrong = sum(int((up & part).sum()) for up, part in zip(rises, full, strict=True))
    early = float(np.mean([up.any(axis=1).mean() for up in rises]))
    sharper = [float(np.mean((np.diff(part, axis=1) > 0).all(axis=1))) for part in sharpness]

    def each(texts: list[str]) -> str:
        return "; ".join(f"{text} ({_told(c)})" for text, c in zip(texts, cases, strict=True))

    shares = [np.median(_values(settings, records, c, "value_share"), axis=0) for c in cases]
    values = [", ".join(f"{part[at]:.0%}" for part in shares) for at in (0, -1)]
    strong = f"a sink of {settings.largest_sink:g}"
    return [
        Finding(
            "000-sink-matrix-bulk",
            None if not len(kept) else kept.max() < GONE,
            f"{strong} leaves at most {kept.max() if len(kept) else 1:.0e} of it in the "
            f"{len(kept)} such networks; in all "
            + each([f"{len(part)}, {part.max():.0e}" for part in left]),
            criterion=f"less than {GONE:g} of the bulk is left in every network in which the sink "
            f"takes {FULL:.0%} of every token's attention or more",
            condition=None if max(part.max() for part in left) < GONE
            else f"the sink takes {FULL:.0%} of every token's attention or more",
        ),
        Finding(
            "000-sink-steps",
            None if not steps else wrong == 0,
            f"the bulk grows at {wrong} of {steps} such steps; at weaker sinks it grows before it "
            f"shrinks in {early:.0%} of networks",
            criterion="at every step from sinks at which the first token has "
            f"{FULL:.0%} of every token's attention or more",
            condition=f"the first token has {FULL:.0%} of the attention or more" if early else None,
        ),
        Finding(
            "000-sink-matrix-outliers",
            min(np.mean(part > 1) for part in grown) > 0.5,
            f"{strong} makes λ_max larger in " + each(
                [f"{np.mean(part > 1):.0%}, {np.median(part):.2f} times as large in the median"
                 for part in grown]
            ) + f". Value weights have {values[0]} of its eigenvector without a sink, in the same "
            f"order and in the median, and {values[1]} with it",
            criterion="in most networks of every setting",
        ),
        Finding(
            "000-sink-sharpness-steps",
            min(sharper) > 0.5,
            "at every step in " + each([f"{part:.0%}" for part in sharper]),
            criterion="at every step of the sweep in most networks of every setting",
        ),
    ]  # fmt: skip


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
    draw={"first-network": draw_first, "medians": draw_medians},
    findings=findings,
    minutes={"quick": 0.5, "paper": 9},
    common=("gain", "massive", "sink"),
)
