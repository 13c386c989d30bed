"""Medians of interleaved repeats, so that a busy machine slows both sides alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hessence.papers.page import Table


@dataclass(frozen=True)
class Comparison:
    """How the library's time compares with a reference's.

    Attributes
    ----------
    task, reference : str
        What is done, and beside what.
    seconds, reference_seconds : float
        Our time and the reference's.
    most : float or None
        How large our share of the reference's time may be, None if there is no goal.
    note : str
        What else was measured.
    """

    task: str
    reference: str
    seconds: float
    reference_seconds: float
    most: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float:
        """Our time over the reference's."""
        return self.seconds / self.reference_seconds

    @property
    def verdict(self) -> str:
        """The goal, and whether it was met."""
        if self.most is None:
            return ""
        return f"{_ratio(self.most)} {'met' if self.ratio <= self.most else 'MISSED'}"


def compare(
    task: str,
    ours: Callable[[], Any],
    reference: str,
    theirs: Callable[[], Any],
    most: float | None = None,
    repeats: int = 15,
    burst: int = 1,
) -> Comparison:
    """Time two functions in turn and take the median of each.

    Parameters
    ----------
    task, ours, reference, theirs, most
        See ``Comparison``.
    repeats : int
        How often.
    burst : int
        How many calls follow one another each time; the time is that of one.
    """
    functions = [bursts(function, burst) for function in (ours, theirs)]
    for function in functions:
        function()
    mine, other = (seconds / burst for seconds in medians(functions, repeats))
    return Comparison(task, reference, mine, other, most)


def compare_with_dense(
    task: str,
    ours: Callable[[], Any],
    loss: Callable[[Tensor], Tensor],
    theta: Tensor,
    size: int,
    most: float | None = None,
    repeats: int = 7,
) -> Comparison:
    """Time a function, and extrapolate automatic differentiation with a dense solver to its size.

    Parameters
    ----------
    task, ours, most
        See ``Comparison``.
    loss, theta : callable, tensor (q,)
        A loss and its parameters, few enough for the dense way. It is timed in two parts, of which
        the matrix grows as q² and its eigenvalues as q³.
    size : int
        The number of parameters of the task.
    repeats : int
        How often ours is timed; the dense way is three times.
    """
    ours()
    (seconds,) = medians([ours], repeats)
    matrix = torch.autograd.functional.hessian(loss, theta)
    build, solve = medians(
        [
            lambda: torch.autograd.functional.hessian(loss, theta),
            lambda: torch.linalg.eigvalsh(matrix),
        ],
        repeats=3,
    )
    growth = size / theta.numel()
    dense = build * growth**2 + solve * growth**3
    return Comparison(task, "dense autodiff, extrapolated", seconds, dense, most)


def bursts(function: Callable[[], Any], count: int) -> Callable[[], None]:
    """Return a function that calls another one several times."""

    def repeat() -> None:
        for _ in range(count):
            function()

    return repeat


def medians(functions: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Time functions in turn and return the median seconds of each."""
    seconds = [[_seconds(function) for function in functions] for _ in range(repeats)]
    return [statistics.median(times) for times in zip(*seconds, strict=True)]


def print_table(comparisons: Iterable[Comparison]) -> None:
    """Print one row for each comparison."""
    headings = ("task", "time", "reference", "its time", "ratio", "goal", "")
    rows = [
        (
            c.task,
            _duration(c.seconds),
            c.reference,
            _duration(c.reference_seconds),
            _ratio(c.ratio),
            c.verdict,
            c.note,
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
