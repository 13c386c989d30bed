"""Pairs of curves, one pair for each seed, averaged over seeds and compared with error bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

POINTS = 200
"""Places at which curves are interpolated, averaged and compared."""

RESAMPLINGS, LEVEL = 2000, 0.95
"""How often seeds are drawn anew, with repetition; and the level of all intervals."""

Curve = tuple[Sequence[float], Sequence[float]]


def on_shared_places(pairs: Sequence[tuple[Curve, Curve]]) -> tuple[Any, Any, Any] | None:
    """Return places (points,), and both kinds of curves there, (seeds, points), NaN if unreached.

    A seed counts where both of its curves are. The places go down to what half of the seeds reach.
    None if there are no such places.
    """
    lows = np.asarray([max(min(x) for x, _ in pair) for pair in pairs])
    high = min(min(max(x) for x, _ in pair) for pair in pairs)
    low = float(np.median(lows))
    if low >= high:
        return None
    places = np.linspace(low, high, POINTS)
    reached = places >= lows[:, None]
    first, second = (
        np.where(reached, [_interpolated(pair[i], places) for pair in pairs], np.nan)
        for i in range(2)
    )
    return places, first, second


def _interpolated(curve: Curve, places: Any) -> Any:
    x, y = (np.asarray(values) for values in curve)
    order = np.argsort(x, kind="stable")
    return np.interp(places, x[order], y[order])


def mean_and_error(rows: Any) -> tuple[Any, Any]:
    """Return the mean over rows and its standard error; NaN is left out."""
    known = np.isfinite(rows)
    count = known.sum(axis=0)
    mean = np.where(known, rows, 0).sum(axis=0) / count
    square = np.where(known, (rows - mean) ** 2, 0).sum(axis=0) / np.maximum(count - 1, 1)
    return mean, np.sqrt(square / count)


@dataclass(frozen=True)
class Comparison:
    """How often the first kind's mean is the larger one, and how much larger it is.

    `share` is of all places, and `shares` are those of resamplings. `ratio` and `lowest` are
    geometric means of the first mean over the second, over all places and over the lowest fifth of
    them, each with the ends of its interval.
    """

    share: float
    shares: Any
    ratio: tuple[float, float, float]
    lowest: tuple[float, float, float]


def compare(first: Any, second: Any) -> Comparison:
    """Compare means over seeds of positive curves, and of seeds drawn anew, pair by pair."""
    seeds = len(first)
    drawn = np.random.default_rng(0).integers(seeds, size=(RESAMPLINGS, seeds))
    drawn = np.concatenate([np.arange(seeds)[None], drawn])
    # Both curves of a seed are known at the same places, so that sums compare as means do.
    known = np.isfinite(first)[drawn].any(axis=1)
    sums = [np.where(known, np.nansum(rows[drawn], axis=1), 1.0) for rows in (first, second)]
    shares = np.mean(sums[0] > sums[1], axis=1, where=known)
    logs = np.log(sums[0] / sums[1])
    tail = _tail(seeds)
    spans = []
    for part in (slice(None), slice(POINTS // 5)):
        count = np.maximum(known[:, part].sum(axis=1), 1)
        ratio = np.exp(logs[:, part].sum(axis=1) / count)
        low, high = np.quantile(ratio[1:], (tail, 1 - tail))
        spans.append((float(ratio[0]), float(low), float(high)))
    return Comparison(float(shares[0]), shares[1:], *spans)


def _tail(seeds: int) -> float:
    """Return the share of resamplings beyond each end of an interval, for few seeds.

    Resamplings of n seeds vary by (n − 1)/n of what they should, and seeds are few enough for
    Student's distribution: T. Hesterberg, What teachers should know about the bootstrap, The
    American Statistician 69 (2015), "expanded percentile interval".
    """
    from scipy.special import ndtr, stdtrit

    return float(ndtr(-((seeds / (seeds - 1)) ** 0.5) * stdtrit(seeds - 1, (1 + LEVEL) / 2)))
