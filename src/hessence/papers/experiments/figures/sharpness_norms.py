"""Sharpness and trace against norms of two linear layers (000 Figures 4, 14, 15 and 26)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any

import numpy as np

from hessence.papers.experiments import Experiment, Finding, Record, Task
from hessence.papers.experiments.settings import at_least
from hessence.papers.experiments.shared.correlation_studies import (
    TwoLayerSettings,
    layer_norms,
    size_tasks,
    teacher_note,
    trained_networks,
)
from hessence.papers.experiments.shared.correlations import (
    NAMES,
    NORMS,
    correlation,
    draw_by_size,
    listed,
    mean_correlations,
    norm_lines,
    written,
)
from hessence.papers.experiments.shared.network_batches import (
    Networks,
    Teacher,
    alignments,
    sharpness,
    trace,
)
from hessence.plotting.axes import COLOURS

LAYERS = ("W1", "W2")
DRIVERS = {
    "standard": "trained, the second matrix drives the sharpness: standard",
    "ntk": "trained, both matrices correlate well with sharpness: neural tangent",
    "mup": "trained, the first matrix drives the sharpness: maximal update (the appendix says "
    "second for both, and means one of them)",
}


@dataclass(frozen=True)
class Settings(TwoLayerSettings):
    """Two-layer linear networks.

    The pictures are those of `teacher`. Findings are compared with those of `other_teacher`: the
    paper does not tell its scale, and a verdict that depends on it is none.
    """

    networks: Annotated[int, at_least(3)] = 80
    other_teacher: Teacher | None = "normal"

    @property
    def teachers(self) -> list[Teacher]:
        """Both teachers, or the one there is."""
        both = (self.teacher, self.other_teacher)
        return list(dict.fromkeys(teacher for teacher in both if teacher is not None))


def tasks(settings: Settings) -> Iterator[Task]:
    """All networks of one parametrisation and size, and one scale of the teacher, at a time."""
    for teacher, task in product(settings.teachers, size_tasks(settings)):
        yield {**task, "teacher": teacher}


def run(settings: Settings, task: Task, rng: np.random.Generator) -> Record:
    """Measure a batch of networks, train it, and measure it again."""
    kind, size = task["parametrisation"], task["size"]
    dims, rate = (size, settings.width, size), settings.first_rate(kind, size)
    taught = replace(settings, teacher=task["teacher"])
    t = trained_networks(taught, "linear", kind, dims, rate, rng)
    least = t.y - t.x @ np.linalg.lstsq(t.x, t.y, rcond=None)[0]
    return {
        "initial": measured(t.before, t.x, t.y),
        "trained": measured(t.after, t.x, t.y),
        "excess": t.losses / (0.5 * float(np.sum(least**2)) / len(t.x)) - 1,
    }


def measured(nets: Networks, x: Any, y: Any) -> Record:
    """Return sharpness, trace, squared norms and alignments of every network."""
    found = {"sharpness": sharpness(nets, x, y, "linear"), "trace": trace(nets, x, y)}
    found |= layer_norms(nets)
    found |= {f"alignment {norm}": v for norm, v in alignments(*nets.weights).items()}
    # The Hessian of f = c₂W₂ c₁W₁ x carries (c₁c₂)².
    scale = float(np.prod(nets.multipliers)) ** 2
    both = [scale * found[f"{name} spectral"] for name in LAYERS]
    return found | {"sum": both[0] + both[1], "max": np.maximum(*both)}


def draw_norms(settings: Settings, records: list[Record], figure: Any) -> None:
    """Draw how the sharpness correlates with squared norms, and the sum of the spectral ones."""
    lines = [*norm_lines(LAYERS), ("sum", "W1 + W2, spectral", COLOURS[4], ":")]
    draw_by_size(
        _taught(records, settings.teacher), settings.parametrisations, figure, "sharpness", lines
    )


def draw_alignments(settings: Settings, records: list[Record], figure: Any) -> None:
    """Draw how the sharpness correlates with the alignments of the two matrices."""
    lines = [(f"alignment {norm}", written(norm), COLOURS[i], "-") for i, norm in enumerate(NORMS)]
    draw_by_size(
        _taught(records, settings.teacher), settings.parametrisations, figure, "sharpness", lines
    )


def draw_traces(settings: Settings, records: list[Record], figure: Any) -> None:
    """Draw how the trace correlates with squared norms."""
    own = _taught(records, settings.teacher)
    draw_by_size(own, settings.parametrisations, figure, "trace", norm_lines(LAYERS))


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with §4.2, and Appendices D.3.3 and D.4."""
    first, *others = (
        _findings(replace(settings, teacher=teacher), _taught(records, teacher))
        for teacher in settings.teachers
    )
    return [_agreed(finding, *rest) for finding, *rest in zip(first, *others, strict=True)]


def _taught(records: list[Record], teacher: str) -> list[Record]:
    return [record for record in records if record["teacher"] == teacher]


def _agreed(finding: Finding, other: Finding | None = None) -> Finding:
    """Keep a verdict that the other teacher gives too; report both."""
    if other is None:
        return finding
    same = other.holds == finding.holds
    so = "the same" if same else "otherwise, so that nothing is decided"
    told = f"{finding.evidence}. With the other teacher {so}"
    return replace(
        finding, holds=finding.holds if same else None, evidence=f"{told}: {other.evidence}"
    )


def _findings(settings: Settings, records: list[Record]) -> list[Finding]:
    found = []
    for kind in settings.parametrisations:
        own = [r for r in records if r["parametrisation"] == kind]
        # With one input and one output the three norms are the same number.
        wide = [r for r in own if r["size"] > 1]
        if wide:
            found += _on_norms(kind, wide)
            found += _on_trace(kind, wide)
        found += _on_layers(settings, kind, own)
    return [*found, _on_the_sum(records), _on_training(settings, records)]


def _on_norms(kind: str, rows: list[Record]) -> list[Finding]:
    means = {when: _by_norm(rows, when, "sharpness") for when in ("initial", "trained")}
    title, after = NAMES[kind], means["trained"]
    return [
        Finding(
            f"sharpness correlates most with the squared spectral norm: {title}, trained",
            "000 §4.2, Fig 4, 14",
            max(after, key=lambda n: after[n]) == "spectral",
            f"better of the two layers, mean over D > 1: {listed(after)}",
        ),
        Finding(
            f"this shows most in trained networks: {title}",
            "000 §4.2",
            after["spectral"] > means["initial"]["spectral"],
            f"spectral norm, {means['initial']['spectral']:.2f} at initialisation and "
            f"{after['spectral']:.2f} trained",
        ),
    ]


def _by_norm(rows: list[Record], when: str, target: str) -> dict[str, float]:
    """Return each norm's correlation, that of the better layer, averaged over sizes."""
    best = {
        norm: [max(correlation(r, when, target, f"{w} {norm}") for w in LAYERS) for r in rows]
        for norm in NORMS
    }
    return {norm: float(np.mean(values)) for norm, values in best.items()}


def _on_layers(settings: Settings, kind: str, own: list[Record]) -> list[Finding]:
    spectral = [f"{w} spectral" for w in LAYERS]
    aligned = [f"alignment {norm}" for norm in NORMS]
    found = []
    small = [r for r in own if 10 * r["size"] <= settings.width]
    if kind in ("standard", "mup") and small:
        means = mean_correlations(small, "initial", "sharpness", spectral)
        found.append(
            Finding(
                "at initialisation and small D the first, larger matrix drives the sharpness: "
                + NAMES[kind],
                "000 App D.3.3",
                means[spectral[0]] > 0.5 and means[spectral[0]] > means[spectral[1]],
                f"mean over D ≤ m/10: {listed(means)}",
            )
        )
    large = [r for r in own if 2 * r["size"] >= settings.width]
    alike = own if kind == "ntk" else large
    if alike:
        means = mean_correlations(alike, "initial", "sharpness", [*spectral, *aligned])
        norm, alignment = (max(means[n] for n in names) for names in (spectral, aligned))
        found.append(
            Finding(
                "where the layers start alike, sharpness correlates more with alignment than with "
                f"norms: {NAMES[kind]}, at initialisation",
                "000 App D.3.3, Fig 15",
                alignment > norm,
                f"means over {'all D' if kind == 'ntk' else 'D ≥ m/2'}: {listed(means)}",
            )
        )
    rest = [r for r in own if r not in large]
    halves = {
        name: mean_correlations(rows, "trained", "sharpness", spectral)
        for name, rows in (("D < m/2", rest), ("D ≥ m/2", large))
        if rows
    }
    found.append(
        Finding(
            DRIVERS[kind],
            "000 App D.3.3",
            all(_drives(kind, *(means[n] for n in spectral)) for means in halves.values()),
            "; ".join(f"{name}: {listed(means)}" for name, means in halves.items()),
        )
    )
    return found


def _drives(kind: str, first: float, second: float) -> bool:
    """Tell whether the layers' correlations are as the paper has them."""
    if kind == "ntk":
        return min(first, second) > 0.5
    return second > first if kind == "standard" else first > second


def _on_trace(kind: str, rows: list[Record]) -> list[Finding]:
    means = {when: _by_norm(rows, when, "trace") for when in ("initial", "trained")}
    evidence = "; ".join(f"{when}: {listed(m)}" for when, m in means.items())
    return [
        Finding(
            f"the trace correlates most with the squared Frobenius norm: {NAMES[kind]}",
            "000 App D.4, Fig 26",
            all(max(m, key=lambda n: m[n]) == "frobenius" for m in means.values()),
            evidence,
        ),
        Finding(
            f"the trace correlates strongly, by more than 0.5, with all norms: {NAMES[kind]}",
            "000 App D.4, Fig 26",
            min(min(m.values()) for m in means.values()) > 0.5,
            evidence,
        ),
    ]


def _on_the_sum(records: list[Record]) -> Finding:
    ratios = {
        name: float(np.nanmedian(np.concatenate(
            [np.divide(r["trained"]["sharpness"], r["trained"][name]) for r in records]
        )))
        for name in ("max", "sum")
    }  # fmt: skip
    means = mean_correlations(records, "trained", "sharpness", ["max", "sum"])
    return Finding(
        "the larger squared spectral norm is the sharpness, cross-layer blocks being negligible",
        "000 App D.3.3",
        abs(ratios["max"] - 1) < 0.1,
        f"median of sharpness over the larger {ratios['max']:.2f}, over the sum of both "
        f"{ratios['sum']:.2f}; mean correlation with the sum {means['sum']:.3f}, trained",
    )


def _on_training(settings: Settings, records: list[Record]) -> Finding:
    excess = np.concatenate([r["excess"] for r in records]).astype(float)
    worst = max(float(np.nanmedian(np.asarray(r["excess"], dtype=float))) for r in records)
    lost = int(np.isnan(excess).sum())
    return Finding(
        "training brings the loss close to the noise",
        "000 App D.1.3",
        worst < 1,
        f"losses end {np.nanmedian(excess):.1%} above the least-squares fit in the median, "
        f"{worst:.1%} at the hardest size; {lost} of {excess.size} diverged and are left out"
        f"{teacher_note(settings)}",
    )


EXPERIMENT = Experiment(
    id="sharpness-norms",
    title="Sharpness and the norms of two linear layers",
    figures=("000 F4", "000 F14", "000 F15", "000 F26"),
    shows="how the largest eigenvalue and the trace correlate with squared norms and alignments of "
    "the weights, before and after training",
    presets={
        "tiny": Settings(width=6, sizes=(1, 2), networks=4, samples=64, batch=32, epochs=5),
        "quick": Settings(),
        "paper": Settings(
            width=100,
            sizes=(1, 2, 3, 5, 8, 10, 15, 20, 30, 40, 50, 60, 80, 100),
            networks=200,
            epochs=5000,
        ),
    },
    tasks=tasks,
    run=run,
    draw={"norms": draw_norms, "alignments": draw_alignments, "traces": draw_traces},
    findings=findings,
    minutes={"quick": 2.2, "paper": 380},
    common=("teacher",),
)
