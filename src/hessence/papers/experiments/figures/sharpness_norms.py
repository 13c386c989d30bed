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
    on_training,
    size_tasks,
    trained_networks,
)
from hessence.papers.experiments.shared.correlations import (
    NAMES,
    NORMS,
    WHEN,
    correlation,
    draw_by_size,
    layer_rows,
    listed,
    mean_correlations,
    written,
)
from hessence.papers.experiments.shared.network_batches import (
    Networks,
    Teacher,
    alignments,
    sharpness,
    squared_norms,
    trace,
)
from hessence.papers.experiments.shared.resampling import outlasting
from hessence.plotting.axes import COLOURS, GREY

LAYERS = ("W1", "W2")
SPECTRAL = tuple(f"{layer} spectral" for layer in LAYERS)
ALIGNED = tuple(f"alignment {norm}" for norm in NORMS)
ENTRIES: dict[Teacher, str] = {
    "scaled": "the teacher's entries have variance 1/D",
    "normal": "the teacher's entries have variance 1",
}
BOTH = ("sum", "spectral norms of both layers", GREY, "--")


@dataclass(frozen=True)
class Settings(TwoLayerSettings):
    """Two-layer linear networks.

    The pictures are those of `teacher`. Findings are compared with those of `other_teacher`: the
    paper does not tell its scale, and a verdict that depends on it says so.
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
    taught = replace(settings, teacher=task["teacher"])
    dims = (task["size"], settings.width, task["size"])
    t = trained_networks(taught, "linear", task["parametrisation"], dims, rng)
    return {
        "initial": measured(t.before, t.x, t.y),
        "trained": measured(t.after, t.x, t.y),
        "excess": t.excess,
    }


def measured(nets: Networks, x: Any, y: Any) -> Record:
    """Return sharpness, trace, squared norms and alignments of every network.

    ``blocks`` is the largest eigenvalue of the Hessian's diagonal blocks, W2ᵀW2 ⊗ Σ and
    I ⊗ W1ΣW1ᵀ, and ``sum`` that of both blocks added up.
    """
    found = {"sharpness": sharpness(nets, x, y, "linear"), "trace": trace(nets, x, y)}
    found |= layer_norms(nets)
    found |= {f"alignment {norm}": v for norm, v in alignments(*nets.weights).items()}
    # The Hessian of f = c₂W₂ c₁W₁ x carries (c₁c₂)².
    scale = float(np.prod(nets.multipliers)) ** 2 / len(x)
    _, root = np.linalg.qr(x)
    seen = squared_norms(nets.weights[0] @ root.T)["spectral"]
    first = found["W2 spectral"] * np.linalg.norm(root, 2) ** 2
    return found | {"sum": scale * (first + seen), "blocks": scale * np.maximum(first, seen)}


def _draw(settings: Settings, records: list[Record], figure: Any, target: str, rows: Any) -> None:
    own = _taught(records, settings.teacher)
    draw_by_size(own, settings.parametrisations, figure, target, rows)


def draw_norms_initial(settings: Settings, records: list[Record], figure: Any) -> None:
    """At the start and for small D, sharpness follows the norms of the layer of larger entries.

    Bands are one standard error.
    """
    _draw(settings, records, figure, "sharpness", layer_rows("initial", BOTH))


def draw_norms_trained(settings: Settings, records: list[Record], figure: Any) -> None:
    """Trained, sharpness follows spectral norms more than others, and best of all their sum.

    Bands are one standard error.
    """
    _draw(settings, records, figure, "sharpness", layer_rows("trained", BOTH))


def draw_alignments(settings: Settings, records: list[Record], figure: Any) -> None:
    """Sharpness goes with spectral alignment before training where D is large, not after it.

    Bands are one standard error.
    """
    lines = [(name, f"{written(norm)} alignment", COLOURS[i], "-")
             for i, (name, norm) in enumerate(zip(ALIGNED, NORMS, strict=True))]  # fmt: skip
    _draw(settings, records, figure, "sharpness", [(WHEN[when], when, lines) for when in WHEN])


def draw_traces_initial(settings: Settings, records: list[Record], figure: Any) -> None:
    """At the start, the trace follows the Frobenius norm of the layer of larger entries.

    Bands are one standard error.
    """
    _draw(settings, records, figure, "trace", layer_rows("initial"))


def draw_traces_trained(settings: Settings, records: list[Record], figure: Any) -> None:
    """Trained, the trace follows the first layer's Frobenius norm more than its spectral norm.

    Bands are one standard error.
    """
    _draw(settings, records, figure, "trace", layer_rows("trained"))


def findings(settings: Settings, records: list[Record]) -> list[Finding]:
    """Compare with §4.2, and Appendices D.3.3 and D.4."""
    first, *others = (
        _findings(replace(settings, teacher=teacher), _taught(records, teacher))
        for teacher in settings.teachers
    )
    return [
        _agreed(finding, *rest, teachers=settings.teachers)
        for finding, *rest in zip(first, *others, strict=True)
    ]


def _taught(records: list[Record], teacher: str) -> list[Record]:
    return [record for record in records if record["teacher"] == teacher]


def _agreed(finding: Finding, other: Finding | None = None, *, teachers: list[Teacher]) -> Finding:
    """Keep a verdict that the other teacher gives too, or the teacher it depends on; tell both."""
    if other is None:
        return finding
    both = dict(zip((finding.holds, other.holds), teachers, strict=True))
    same = len(both) == 1
    return replace(
        finding,
        holds=finding.holds if same else None if None in both else True,
        condition=None if same or True not in both else ENTRIES[both[True]],
        evidence=f"{finding.evidence}. With a teacher of the other scale {other.word}: "
        f"{other.evidence}",
    )


def _findings(settings: Settings, records: list[Record]) -> list[Finding]:
    compared = outlasting(lambda rows: _compared(settings, rows), records)
    return [*compared, _on_blocks(records), on_training(settings, records)]


def _compared(settings: Settings, records: list[Record]) -> list[Finding]:
    """Return the findings that compare correlations."""
    # With one input and one output the three norms are the same number.
    wide = [r for r in records if r["size"] > 1]
    small = [r for r in records if 10 * r["size"] <= settings.width]
    found = [*_on_norms(wide), *_on_trace(wide)] if wide else []
    if small:
        found.append(_on_the_start(small))
    found += _on_alignment(settings, records)
    return found + [
        _on_drivers(settings, kind, [r for r in records if r["parametrisation"] == kind])
        for kind in settings.parametrisations
    ]


def _by_kind(records: list[Record]) -> dict[str, list[Record]]:
    kinds = dict.fromkeys(r["parametrisation"] for r in records)
    return {kind: [r for r in records if r["parametrisation"] == kind] for kind in kinds}


def _told(values: dict[str, dict[str, float]]) -> str:
    """Return numbers by parametrisation as one text."""
    return "; ".join(f"{NAMES.get(kind, kind)}: {listed(row)}" for kind, row in values.items())


def _better_layer(records: list[Record], when: str, target: str) -> dict[str, dict[str, float]]:
    """Return each norm's correlation, that of the better layer, averaged over sizes."""
    return {
        kind: {
            norm: float(np.nanmean([
                np.max([correlation(r, when, target, f"{w} {norm}") for w in LAYERS]) for r in rows
            ]))
            for norm in NORMS
        }
        for kind, rows in _by_kind(records).items()
    }  # fmt: skip


def _on_norms(records: list[Record]) -> list[Finding]:
    before, after = (_better_layer(records, when, "sharpness") for when in WHEN)
    pairs = {
        kind: {"before": before[kind]["spectral"], "trained": after[kind]["spectral"]}
        for kind in after
        if kind != "ntk"
    }
    found = [
        Finding(
            "000-spectral-norm",
            all(max(row, key=lambda n: row[n]) == "spectral" for row in after.values()),
            f"trained, {_told(after)}",
            criterion="most of the three norms in every parametrisation: the better layer's "
            "correlation, mean over D > 1",
        )
    ]
    if pairs:
        found.append(
            Finding(
                "000-spectral-trained",
                all(row["trained"] > row["before"] for row in pairs.values()),
                f"spectral norm, {_told(pairs)}",
                criterion="more after training than before in the standard and the maximal-update "
                "parametrisation: the better layer's correlation, mean over D > 1",
            )
        )
    return found


def _on_trace(records: list[Record]) -> list[Finding]:
    tables = {when: _better_layer(records, when, "trace") for when in WHEN}
    rows = [row for table in tables.values() for row in table.values()]
    evidence = ". ".join(f"{WHEN[when].capitalize()}, {_told(t)}" for when, t in tables.items())
    tail = (
        ", in every parametrisation, before and after training: the better layer, mean over D > 1"
    )
    return [
        Finding(
            "000-trace-norms",
            all(max(row, key=lambda n: row[n]) == "frobenius" for row in rows),
            evidence,
            criterion=f"most of the three norms{tail}",
        ),
        Finding(
            "000-trace-all",
            min(min(row.values()) for row in rows) > 0.5,
            evidence,
            criterion=f"by more than 0.5{tail}",
        ),
    ]


def _on_the_start(small: list[Record]) -> Finding:
    means = {
        kind: mean_correlations(rows, "initial", "sharpness", SPECTRAL)
        for kind, rows in _by_kind(small).items()
        if kind != "ntk"
    }
    return Finding(
        "000-larger-drives",
        all(
            first > 0.5 and first > second for first, second in (m.values() for m in means.values())
        ),
        f"at initialisation, {_told(means)}",
        criterion="the first layer by more than 0.5 and more than the second, mean over D ≤ m/10, "
        "standard and maximal update",
    )


def _on_alignment(settings: Settings, records: list[Record]) -> list[Finding]:
    """Layers start alike in the neural-tangent parametrisation, elsewhere if D is large."""
    alike = [r for r in records if r["parametrisation"] == "ntk" or 2 * r["size"] >= settings.width]
    means = {
        kind: mean_correlations(rows, "initial", "sharpness", [*SPECTRAL, *ALIGNED])
        for kind, rows in _by_kind(alike).items()
    }
    if not means:
        return []
    return [
        Finding(
            "000-alignment",
            all(
                max(row[n] for n in ALIGNED) > max(row[n] for n in SPECTRAL)
                for row in means.values()
            ),
            f"at initialisation, {_told(means)}",
            criterion="the best alignment more than the better layer's squared spectral norm: mean "
            "over all D (neural tangent) or D ≥ m/2 (standard, maximal update)",
        )
    ]


def _on_drivers(settings: Settings, kind: str, own: list[Record]) -> Finding:
    large = [r for r in own if 2 * r["size"] >= settings.width]
    rest = [r for r in own if 2 * r["size"] < settings.width]
    halves = {
        name: mean_correlations(rows, "trained", "sharpness", SPECTRAL)
        for name, rows in (("D < m/2", rest), ("D ≥ m/2", large))
        if rows
    }
    name, criterion = {
        "standard": ("000-second-standard",
                     "the second layer's squared spectral norm more than the first's"),
        "ntk": ("000-both-ntk",
                "both layers' squared spectral norms by more than 0.5"),
        "mup": ("000-first-mup",
                "the first layer's squared spectral norm more than the second's"),
    }[kind]  # fmt: skip
    return Finding(
        name,
        all(_drives(kind, *(means[n] for n in SPECTRAL)) for means in halves.values()),
        f"trained, {_told(halves)}",
        criterion=f"{criterion}, for D below and from half of the width on",
    )


def _drives(kind: str, first: float, second: float) -> bool:
    """Tell whether the layers' correlations are as the paper has them."""
    if kind == "ntk":
        return min(first, second) > 0.5
    return second > first if kind == "standard" else first > second


def _on_blocks(records: list[Record]) -> Finding:
    ratios = {
        name: np.concatenate([np.divide(r["trained"]["sharpness"], r["trained"][name])
                              for r in records])
        for name in ("blocks", "sum")
    }  # fmt: skip
    low, middle, high = np.nanquantile(ratios["blocks"], (0.05, 0.5, 0.95))
    means = mean_correlations(records, "trained", "sharpness", ["blocks", "sum"])
    return Finding(
        "000-block-dominant",
        middle < 1.05,
        f"trained, the sharpness is {middle:.2f} times theirs in the median, {low:.2f} to "
        f"{high:.2f} in 90 % of the networks, and {np.nanmedian(ratios['sum']):.2f} times the sum "
        f"of both; mean correlations {listed(means)}",
        criterion="within five per cent in the median",
    )


EXPERIMENT = Experiment(
    id="sharpness-norms",
    title="Sharpness and the norms of two linear layers",
    figures=("000 F4", "000 F14", "000 F15", "000 F26"),
    shows="how the largest eigenvalue and the trace correlate with squared norms and alignments of "
    "the weights, before and after training",
    presets={
        "tiny": Settings(width=6, sizes=(1, 2, 3), networks=4, samples=64),
        "quick": Settings(width=50, sizes=(1, 2, 3, 5, 10, 17, 25, 30, 35, 40, 50), networks=150),
        "paper": Settings(sizes=(1, 2, 3, 5, 8, 10, 15, 20, 30, 40, 50, 60, 80, 100), networks=200),
    },
    tasks=tasks,
    run=run,
    draw={
        "norms-initial": draw_norms_initial,
        "norms-trained": draw_norms_trained,
        "alignments": draw_alignments,
        "traces-initial": draw_traces_initial,
        "traces-trained": draw_traces_trained,
    },
    findings=findings,
    minutes={"quick": 2, "paper": 25},
    common=("teacher",),
)
