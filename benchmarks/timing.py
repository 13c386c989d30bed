"""Medians of interleaved repeats, so that a busy machine slows both sides alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hessence.report import Table


@dataclass(frozen=True)
class Comparison:
    """How the library's time compares with a reference's."""

    task: str
    reference: str
    seconds: float
    reference_seconds: float
    goal: str

    @property
    def ratio(self) -> float:
        """Our time over the reference's."""
        return self.seconds / self.reference_seconds


def compare(
    task: str,
    ours: Callable[[], Any],
    reference: str,
    theirs: Callable[[], Any],
    goal: str,
    repeats: int = 15,
) -> Comparison:
    """Time two functions in turn and take the median of each."""
    ours(), theirs()
    mine, other = medians([ours, theirs], repeats)
    return Comparison(task, reference, mine, other, goal)


def medians(functions: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Time functions in turn and return the median seconds of each."""
    seconds = [[_seconds(function) for function in functions] for _ in range(repeats)]
    return [statistics.median(times) for times in zip(*seconds, strict=True)]


def print_table(comparisons: Iterable[Comparison]) -> None:
    """Print one row for each comparison."""
    headings = ("task", "time", "reference", "its time", "ratio", "goal")
    rows = [
        (
            c.task,
            _duration(c.seconds),
            c.reference,
            _duration(c.reference_seconds),
            _ratio(c.ratio),
            c.goal,
        )
        for c in comparisons
    ]
    print(Table(headings, rows, numeric=frozenset({1, 3, 4})).to_text())


def _seconds(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _ratio(ratio: float) -> str:
    if ratio >= 1:
        return f"{ratio:.2g}×"
    return f"1/{1 / ratio:,.{0 if ratio < 0.1 else 1}f}"


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
