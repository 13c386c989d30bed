"""The table of ``hessence reproduce --list``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hessence.experiments.protocol import Experiment
from hessence.report import Table


def experiment_table(experiments: Sequence[Experiment[Any]]) -> Table:
    """Lay out what there is, how long it takes, and what data it needs."""
    headings = ("id", "figures", "quick", "paper", "data", "shows")
    rows = [
        (
            e.id,
            ", ".join(e.figures),
            _effort(e, "quick"),
            _effort(e, "paper"),
            _data(e),
            e.shows,
        )
        for e in experiments
    ]
    return Table(headings, rows)


def duration(minutes: float) -> str:
    """Return a rough time for people.

    Examples
    --------
    >>> duration(0.1), duration(12), duration(300)
    ('6 s', '12 min', '5 h')
    """
    if minutes < 1:
        return f"{max(1, round(60 * minutes))} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def _effort(experiment: Experiment[Any], preset: str) -> str:
    count = sum(1 for _ in experiment.tasks(experiment.presets[preset]))
    where = " on a GPU" * (preset in experiment.gpu)
    return f"{count} task{'s' * (count != 1)}, {duration(experiment.minutes[preset])}{where}"


def _data(experiment: Experiment[Any]) -> str:
    quick, paper = (
        ", ".join(experiment.data(experiment.presets[name])) for name in ("quick", "paper")
    )
    return (quick or "–") if quick == paper else f"{quick or '–'} (paper: {paper or '–'})"
