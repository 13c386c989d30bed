"""Runs of experiments that were made once and are kept with the library: what they found."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hessence.papers.experiments.protocol import PRESETS, Finding
from hessence.papers.experiments.results import Result

FILE = Path(__file__).with_name("recorded.json")
"""Written by ``docs/gallery.py``, never by hand."""


@dataclass(frozen=True)
class Run:
    """One run of an experiment: how it was made, and its findings.

    Attributes
    ----------
    experiment, preset : str
        What was run, and at which size.
    changed : dict
        Settings other than the preset's.
    command : str
        What makes the run again.
    date, machine : str
        When, and on what.
    seconds : float
        The processor's time for all tasks together.
    findings : tuple of Finding
        What came out.
    """

    experiment: str
    preset: str
    changed: dict[str, Any]
    command: str
    date: str
    machine: str
    seconds: float
    findings: tuple[Finding, ...]

    @property
    def told(self) -> str:
        """How the run was made, in a few words."""
        made = ", ".join(filter(None, (duration(self.seconds), self.machine, self.date)))
        return f"{self.command}; {made}"

    @property
    def key(self) -> tuple[str, int, str]:
        """What tells runs apart, and puts them in order."""
        size = PRESETS.index(self.preset)
        return self.experiment, size, json.dumps(self.changed, sort_keys=True)


def run_of(result: Result) -> Run:
    """Return the run that left a folder of results."""
    described = result.described
    return Run(
        result.stated["experiment"],
        described["preset"],
        described["changed"],
        described["command"],
        described["date"],
        described["machine"],
        described["seconds"],
        tuple(result.findings),
    )


@cache
def recorded_runs() -> tuple[Run, ...]:
    """Return the runs that are kept with the library."""
    entries = json.loads(FILE.read_text(encoding="utf-8"))
    return tuple(
        Run(**{**entry, "findings": tuple(Finding(**found) for found in entry["findings"])})
        for entry in entries
    )


def merged(fresh: Iterable[Run], kept: Iterable[Run]) -> tuple[Run, ...]:
    """Return all runs in order.

    A fresh one takes the place of the same run made before, and of those that had changed all that
    it changes of a preset's settings and more besides.
    """
    made = {run.key: run for run in fresh}
    runs = {run.key: run for run in kept if not any(_replaces(new, run) for new in made.values())}
    return tuple(run for _, run in sorted({**runs, **made}.items()))


def _replaces(new: Run, old: Run) -> bool:
    same = (new.experiment, new.preset) == (old.experiment, old.preset)
    return same and new.changed.items() <= old.changed.items()


def as_text(runs: Iterable[Run]) -> str:
    """Return runs as the text of the file that keeps them."""
    entries = [dataclasses.asdict(run) for run in runs]
    return json.dumps(entries, indent=1, ensure_ascii=False) + "\n"


def duration(seconds: float) -> str:
    """Return a time in a unit that suits it.

    Examples
    --------
    >>> duration(0.3), duration(12.3), duration(700), duration(30_000)
    ('1 s', '12 s', '12 min', '8.3 h')
    """
    seconds = max(seconds, 1.0)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
