"""What ``hs.brackets`` returns: a proved interval for every eigenvalue, and exact counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from hessence._common.arguments import as_number, require_int
from hessence._common.arrays import Numbers, floating, to_double
from hessence._common.files import Saved
from hessence._common.messages import SHOWN, warn
from hessence.spectra.counting import (
    FIRST,
    SPREAD,
    Count,
    Slicer,
    UndecidedWarning,
    count_below,
    find,
)
from hessence.spectra.result import Inertia


@dataclass(frozen=True, eq=False, repr=False)
class Brackets(Saved, kind="brackets"):
    """Intervals that hold the eigenvalues of a Hessian, one for each; rounding is in them.

    Numbers below 1e-300, such as a logistic loss has at margins beyond 690, may be taken for zero.

    Attributes
    ----------
    lower, upper : array (p,)
        Descending; the i-th largest eigenvalue lies between ``lower[i]`` and ``upper[i]``.
    zeros : int
        At least so many eigenvalues are exactly zero.
    level : float
        The probability with which all of this holds; 1.0 where it is certain.
    method : str
        ``"two layers"``, ``"nearly orthonormal"`` from ``net.bounds``, or ``"dual"`` for any other
        model.
    reason : str
        The theorem, or why no better one applies.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> rng = np.random.default_rng(0)
    >>> net = hs.TwoLayerLinear(rng.normal(size=(40, 3)), rng.normal(size=(2, 40)))
    >>> x, y = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    >>> b, exact = hs.brackets(net, (x, y)), net.hessian(x, y).spectrum()
    >>> len(b), b.zeros, b.count(-0.5, 0.5)
    (200, 31, 38)
    >>> b.inertia(), b.inertia() == exact.inertia()
    (Inertia(positive=83, negative=79, flat=38), True)
    """

    lower: Numbers
    upper: Numbers
    zeros: int
    level: float
    method: str
    reason: str

    _slicer: ClassVar[Slicer | None] = None
    """Counts eigenvalues; it is not saved."""

    def counting_with(self, slicer: Slicer) -> Brackets:
        """Return the same brackets, able to count."""
        found = replace(self)
        object.__setattr__(found, "_slicer", slicer)
        return found

    @property
    def width(self) -> Numbers:
        """How wide each bracket is, (p,)."""
        return self.upper - self.lower

    @property
    def sharpness(self) -> tuple[float, float]:
        """The bracket of the largest eigenvalue."""
        return float(self.lower[0]), float(self.upper[0])

    def share(self, x: Any) -> tuple[Any, Any]:
        """Return bounds of the share of eigenvalues that are not above x, a number or an array.

        Examples
        --------
        >>> import hessence as hs
        >>> b = hs.brackets(hs.ScalarLinear([1.0, 0.5], [0.5, 1.0]), ([1.0, -1.0], [2.0, -2.0]))
        >>> b.share(0.75)
        (0.25, 0.5)
        """
        _, points = floating(x=x)
        places = to_double(points)
        bounds = [
            np.searchsorted(ends[::-1], places, "right") / len(self)
            for ends in (self.upper, self.lower)
        ]
        low, high = (float(b) if places.ndim == 0 else b for b in bounds)
        return low, high

    def count(self, a: float, b: float) -> Count:
        """Return how many eigenvalues lie in (a, b], an exact integer.

        Where rounding hides on which side of a threshold an eigenvalue lies, the threshold is moved
        to the right by the least distance that lets the number be proved; a warning says so. The
        ``intervals`` of the result are those within which each threshold may be moved. Only
        two-layer networks can be counted, and not from a file: else a ValueError.
        """
        low, high = as_number("a", a), as_number("b", b)
        if not low <= high:
            raise ValueError(f"a must not be above b, got a = {a!r} and b = {b!r}.")
        first, second = self._not_above(low), self._not_above(high)
        return Count(second - first, first.intervals + second.intervals)

    def histogram(self, edges: Any) -> Numbers:
        """Return how many eigenvalues lie in (edges[i], edges[i + 1]], exact integers.

        Edges may be infinite.

        Examples
        --------
        >>> import numpy as np, hessence as hs
        >>> b = hs.brackets(hs.ScalarLinear([1.0, 0.5], [0.5, 1.0]), ([1.0, -1.0], [2.0, -2.0]))
        >>> b.histogram([-np.inf, -0.1, 0.75, 1.5, np.inf])
        array([1, 1, 1, 1])
        """
        places = np.asarray(edges, dtype=np.float64)
        ordered = places.ndim == 1 and len(places) > 1 and bool((np.diff(places) >= 0).all())
        if not ordered:
            raise ValueError("edges must be two or more numbers in ascending order.")
        return np.diff([int(self._not_above(edge)) for edge in places])

    def inertia(self) -> Inertia:
        """Return how many eigenvalues are positive, negative and flat: the index of the point.

        Flat ones are those that no count can tell from zero; where there are no more than
        ``zeros``, all of them are exactly zero, and the other two numbers are exact.
        """
        slicer = self._counting()
        by_brackets = (self.lower > 0).sum(), (self.upper < 0).sum()
        if sum(by_brackets) + self.zeros == len(self):
            return Inertia(int(by_brackets[0]), int(by_brackets[1]), self.zeros)
        least = slicer.resolution
        if not self.zeros:
            eta = max(slicer.rounding(0.0), np.finfo(float).tiny)
            at_zero = slicer.cut(0.0, SPREAD * eta)
            if at_zero.fewest == at_zero.most:
                return Inertia(len(self) - at_zero.most, at_zero.most, 0)
            least = FIRST * eta
        negative, rest = (count_below(slicer, 0.0, side, least) for side in (-1, 1))
        return Inertia(len(self) - int(rest), int(negative), int(rest) - int(negative))

    def eigenvalue(self, index: int) -> tuple[float, float]:
        """Return an interval that holds one eigenvalue, as narrow as rounding allows.

        The index is 0 for the largest, −1 for the smallest.

        Examples
        --------
        >>> import hessence as hs
        >>> b = hs.brackets(hs.ScalarLinear([1.0, 0.5], [0.5, 1.0]), ([1.0, -1.0], [2.0, -2.0]))
        >>> low, high = b.eigenvalue(0)
        >>> low <= 2.0 <= high, high - low < 1e-12
        (True, True)
        """
        require_int("index", index, -len(self), len(self) - 1)
        slicer, place = self._counting(), range(len(self))[index]
        low, high = find(slicer, place, float(self.lower[place]), float(self.upper[place]))
        return float(low), float(high)

    def refine(self, k: int, which: str = "LA") -> Brackets:
        """Return brackets in which k eigenvalues are known to rounding.

        They are the largest ("LA"), the smallest ("SA"), or half of them from either end ("BE");
        ``eigenvalue(i)`` has any other.
        """
        require_int("k", k, 1, len(self))
        shares = {"LA": k, "SA": 0, "BE": (k + 1) // 2}
        if which not in shares:
            raise ValueError(f'which must be "LA", "SA" or "BE", got {which!r}.')
        top = shares[which]
        slicer = self._counting()
        lower, upper = self.lower.copy(), self.upper.copy()
        for i in (*range(top), *range(len(self) - (k - top), len(self))):
            lower[i], upper[i] = self.eigenvalue(i)
        lower = np.maximum.accumulate(lower[::-1])[::-1]
        upper = np.minimum.accumulate(upper)
        return replace(self, lower=lower, upper=upper).counting_with(slicer)

    def plot(self, ax: Any = None, *, label: str | None = None, color: Any = None) -> Any:
        """Draw the eigenvalues as a band, largest first; needs ``hessence[plot]``.

        Returns the axes. Several brackets fit on the same axes.
        """
        from hessence.plotting.spectra import draw_brackets

        return draw_brackets(self, ax, label=label, color=color)

    def _counting(self) -> Slicer:
        if self._slicer is None:
            raise ValueError(
                "exact counts need the network: they are for two-layer networks, and are not kept "
                "in files and copies; share gives bounds from the brackets."
            )
        return self._slicer

    def _not_above(self, at: float) -> Count:
        """Count the eigenvalues that are not above a number, by the brackets if they suffice."""
        slicer = self._counting()
        inside = np.flatnonzero((self.lower <= at) & (at <= self.upper))
        if not len(inside):
            number = int((self.upper < at).sum())
            above = float(self.lower[len(self) - number - 1]) if number < len(self) else np.inf
            under = float(self.upper[len(self) - number]) if number else -np.inf
            return Count(number, ((under, above),))
        found = count_below(slicer, at, 1)
        ((low, high),) = found.intervals
        if not low <= at <= high:
            warn(
                f"eigenvalues lie closer to {at:g} than rounding tells: counted at a number larger "
                f"by {(low + high) / 2 - at:.1e} instead.",
                UndecidedWarning,
            )
        return found

    def __len__(self) -> int:
        return len(self.lower)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_slicer"}

    def __repr__(self) -> str:
        count, widths = len(self), self.width
        half = SHOWN // 2
        shown = range(count) if count <= SHOWN else [*range(half), *range(-half, 0)]
        certain = "" if self.level == 1 else f", at the level {self.level:g}"
        lines = [
            f"brackets of {count} eigenvalues, {self.method}{certain}",
            f"  exactly zero   at least {self.zeros}",
            f"  median width   {np.median(widths):.1e}",
            f"  largest width  {widths.max():.1e}",
        ]
        rows = [f"  [{self.lower[i]:.6g}, {self.upper[i]:.6g}]" for i in shown]
        if count > SHOWN:
            rows.insert(half, f"  … {count - SHOWN} more …")
        return "\n".join([*lines, *rows])
