"""Counts next to an eigenvalue, against 50 digits."""

from __future__ import annotations

import warnings

import mpmath
import numpy as np

import hessence as hs


def exact_eigenvalues(v, w, x, y):
    """All eigenvalues of ½ E(w·(v x) − y)² in (v, w), from a Hessian of 50 digits, ascending."""
    m, n = len(v), len(x)
    mp = mpmath.mp
    vs, ws, xs, ys = ([mp.mpf(float(a)) for a in array] for array in (v, w, x, y))
    inner = mp.fsum(a * b for a, b in zip(vs, ws, strict=True))
    second = mp.fsum(a * a for a in xs) / n
    first = mp.fsum((inner * a - b) * a for a, b in zip(xs, ys, strict=True)) / n
    gradient = [*ws, *vs]
    H = mp.matrix(2 * m, 2 * m)
    for i in range(2 * m):
        for j in range(2 * m):
            H[i, j] = second * gradient[i] * gradient[j] + (first if abs(i - j) == m else 0)
    return sorted(mp.eigsy(H, eigvals_only=True))


def test_counts_change_where_the_eigenvalues_of_fifty_digits_are():
    rng = np.random.default_rng(5)
    with mpmath.workdps(50):
        for scale in (1e-6, 1.0, 1e6):
            v, w = rng.normal(size=(2, 3))
            x, y = scale * rng.normal(size=5), scale * rng.normal(size=5)
            found = hs.brackets(hs.ScalarLinear(w, v), (x, y))
            values = exact_eigenvalues(v, w, x, y)
            norm = float(max(abs(values[0]), abs(values[-1])))
            for value in {float(value) for value in values}:
                for step in (-1e-9, -1e-12, 0.0, 1e-12, 1e-9):
                    at = value + step * norm
                    # Too close to it the threshold moves, and the count is right where it says.
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore" if abs(step) < 1e-9 else "error")
                        count = found.count(-np.inf, at)
                    low, high = count.intervals[1]
                    assert abs(at - (low + high) / 2) < 1e-9 * norm or low <= at <= high
                    for end in (low, high):
                        assert count == sum(each <= mpmath.mpf(end) for each in values)
            for index, value in enumerate(reversed(values)):
                low, high = found.eigenvalue(index)
                assert mpmath.mpf(low) <= value <= mpmath.mpf(high)
                assert found.lower[index] <= value <= found.upper[index]
                assert high - low < 1e-11 * norm
