"""Exact counts of eigenvalues, and enclosures of any one of them.

A :class:`Slicer` bounds the number of eigenvalues below a number from both sides, and says within
which interval. Everything here is proved if its bounds are.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from hessence._common.arrays import Numbers

SPREAD = 1.25
"""Counts are made at this many η, the error of rounding, on either side of a number."""

FIRST, GROWTH, TRIES = 3.0, 4.0, 16
"""An undecided count is tried again at FIRST η, then at distances that grow by a factor."""


class Slice(NamedTuple):
    """How many eigenvalues lie below any number of an interval."""

    fewest: int
    most: int
    interval: tuple[float, float]
    poles: int  # how many eigenvalues of the functional part lie below
    eigenvalues: Numbers
    """Those of C, ascending: each increases with λ between poles, and crosses zero where λ crosses
    an eigenvalue of H."""


class Slicer(Protocol):
    """What bounds the number of eigenvalues below a number."""

    resolution: float

    @property
    def size(self) -> int:
        """The number of all eigenvalues."""

    def rounding(self, at: float) -> float:
        """Return what rounding may move eigenvalues near a number by."""

    def cut(self, at: float, spread: float) -> Slice:
        """Bound the number of eigenvalues below `at`, to within `spread` > ``rounding(at)``."""


class Count(int):
    """A number of eigenvalues, and where it is proved.

    Attributes
    ----------
    intervals : tuple of pairs of float
        For each threshold, from where to where it may be moved without the number changing.

    Examples
    --------
    >>> import hessence as hs
    >>> b = hs.brackets(hs.ScalarLinear([1.0, 0.5], [0.5, 1.0]), ([1.0, -1.0], [2.0, -2.0]))
    >>> count = b.count(0.1, 1.5)  # of 2, 1, 1/2 and −1
    >>> count, count + 1, len(count.intervals)
    (2, 3, 2)
    """

    intervals: tuple[tuple[float, float], ...]

    def __new__(cls, number: int, intervals: tuple[tuple[float, float], ...]) -> Self:
        """Return the number with its intervals."""
        found = super().__new__(cls, number)
        found.intervals = intervals
        return found

    def __reduce__(self) -> Any:
        return type(self), (int(self), self.intervals)


class UndecidedWarning(UserWarning):
    """Eigenvalues lie so close to a threshold that rounding hides on which side they are."""


class NotDecidedError(ValueError):
    """No count could be proved anywhere near a threshold."""


def count_below(slicer: Slicer, at: float, side: int, least: float = 0.0) -> Count:
    """Count the eigenvalues below a number, moved to the given side until the count is proved.

    With the side 1 these are the eigenvalues not above `at`, to rounding; with −1, those below it.
    The first try is at the distance `least`.
    """
    distance = least
    for _ in range(TRIES):
        place = at + side * distance
        eta = _finest(slicer, place)
        found = slicer.cut(place, SPREAD * eta)
        if found.fewest == found.most:
            return Count(found.fewest, (found.interval,))
        distance = max(FIRST * eta, GROWTH * distance)
    raise NotDecidedError(
        f"no count can be proved within {distance:.1e} of {at:g}: at least {found.fewest} and at "
        f"most {found.most} eigenvalues lie below; count at another number."
    )


def find(slicer: Slicer, index: int, low: float, high: float) -> tuple[float, float]:
    """Narrow down the eigenvalue of an index, descending from 0, that lies within [low, high].

    With no pole left between the ends, the zero of the eigenvalue of C is interpolated (Illinois);
    otherwise the interval is halved.
    """
    below = slicer.size - 1 - index
    ends: list[tuple[int, float] | None] = [None, None]
    last = -1
    while True:
        finest = max(_finest(slicer, low), _finest(slicer, high))
        if high - low <= 8 * finest:
            return low, high
        at = _interpolated(low, high, ends)
        at = min(max(at, low + 3 * finest), high - 3 * finest)
        found = slicer.cut(at, SPREAD * finest)
        value = _deciding(found, below)
        if found.most <= below:
            low = max(low, found.interval[1])
            side = 0
        elif found.fewest > below:
            high = min(high, found.interval[0])
            side = 1
        else:
            # The eigenvalue is here, to rounding: enclose it from both sides.
            return _enclosed(slicer, below, at, finest, low, high)
        ends[side] = None if value is None else (found.poles, value)
        other = ends[1 - side]
        if side == last and other is not None:
            ends[1 - side] = (other[0], other[1] / 2)
        last = side


def _finest(slicer: Slicer, at: float) -> float:
    return max(slicer.rounding(at), abs(at) * np.finfo(float).eps, np.finfo(float).tiny)


def _deciding(found: Slice, below: int) -> float | None:
    """Return the eigenvalue of C whose sign decides on which side the wanted one is."""
    place = found.poles - below - 1
    return float(found.eigenvalues[place]) if 0 <= place < len(found.eigenvalues) else None


def _interpolated(low: float, high: float, ends: list[tuple[int, float] | None]) -> float:
    first, second = ends
    middle = low + (high - low) / 2
    if first is None or second is None or first[0] != second[0] or not first[1] < 0 < second[1]:
        return middle
    return low + (high - low) * first[1] / (first[1] - second[1])


def _enclosed(
    slicer: Slicer, below: int, at: float, finest: float, low: float, high: float
) -> tuple[float, float]:
    """Return the smallest interval around a number that is proved to hold the wanted eigenvalue."""
    for side in (-1, 1):
        for attempt in range(TRIES):
            place = at + side * FIRST * finest * GROWTH ** (attempt / 2)
            if not low < place < high:
                break
            found = slicer.cut(place, SPREAD * finest)
            if side < 0 and found.most <= below:
                low = max(low, found.interval[1])
                break
            if side > 0 and found.fewest > below:
                high = min(high, found.interval[0])
                break
    return low, high
