"""What ``hessence reproduce --list`` prints."""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Sequence
from typing import Any

from hessence.papers import papers_named
from hessence.papers.experiments.datasets import VARIABLE
from hessence.papers.experiments.protocol import Experiment
from hessence.papers.experiments.settings import kind_in_words, text_of
from hessence.papers.page import Table

LEAST_WIDTH = 40
"""Text is not broken into narrower lines than this."""


def listing(experiments: Sequence[Experiment[Any]], width: int | None = None) -> str:
    """Return the experiments, the papers they are from, and where data are looked for.

    A table, if it fits into so many columns or they are not limited; else a paragraph for each
    experiment, with its further lines indented.
    """
    table = experiment_table(experiments)
    listed = table.to_text()
    notes = [f"{n}  {title}" for n, title in papers_named(_figures(experiments)).items()]
    notes += ["", f"Data other than digits are read from the folder that {VARIABLE} names."]
    if width is None:
        return "\n".join([listed, "", *notes])
    if max(map(len, listed.splitlines())) > width:
        listed = "\n".join(_paragraph(table.headings, row, width) for row in table.rows)
    return "\n".join([listed, "", *(_wrapped(note, width) for note in notes)])


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


def fields_table(experiment: Experiment[Any]) -> Table:
    """Lay out what ``--set`` takes: every field, its kind, and what it is in the presets."""
    quick, paper = experiment.presets["quick"], experiment.presets["paper"]
    kinds = typing.get_type_hints(type(quick), include_extras=True)
    rows = [
        (name, text_of(getattr(quick, name)), text_of(getattr(paper, name)), kind_in_words(kind))
        for name, kind in kinds.items()
    ]
    return Table(("field", "quick", "paper", "takes"), rows)


def described(experiments: Sequence[Experiment[Any]]) -> str:
    """Return what some experiments show, and the fields of their settings."""
    parts = []
    for e in experiments:
        head = f"{e.id}  {e.title} ({', '.join(e.figures)})\n{e.shows}."
        parts.append(f"{head}\n\n--set FIELD=VALUE takes:\n{fields_table(e).to_text()}")
    return "\n\n".join(parts)


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


def _figures(experiments: Sequence[Experiment[Any]]) -> list[str]:
    return [figure for experiment in experiments for figure in experiment.figures]


def _paragraph(headings: Sequence[str], row: Sequence[str], width: int) -> str:
    """Return a row of the table, line by line."""
    name, figures, *rest, shows = row
    efforts = "; ".join(f"{h}: {cell}" for h, cell in zip(headings[2:-1], rest, strict=True))
    lines = [_wrapped(f"{name}  {figures}", width)]
    lines += [_wrapped(text, width, first="    ") for text in (shows, efforts)]
    return "\n".join(lines)


def _wrapped(text: str, width: int, first: str = "") -> str:
    return textwrap.fill(
        text,
        max(width, LEAST_WIDTH),
        initial_indent=first,
        subsequent_indent="    ",
        break_on_hyphens=False,
    )


def _effort(experiment: Experiment[Any], preset: str) -> str:
    count = sum(1 for _ in experiment.tasks(experiment.presets[preset]))
    where = " on a GPU" * (preset in experiment.gpu)
    return f"{count} task{'s' * (count != 1)}, {duration(experiment.minutes[preset])}{where}"


def _data(experiment: Experiment[Any]) -> str:
    quick, paper = (
        ", ".join(experiment.data(experiment.presets[name])) for name in ("quick", "paper")
    )
    return (quick or "–") if quick == paper else f"{quick or '–'} (paper: {paper or '–'})"
