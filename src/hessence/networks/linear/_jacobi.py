r"""Eigenvalues of very many very small symmetric matrices, all at once.

One after the other, LAPACK spends most of its time on each matrix before it does any arithmetic.
Cyclic Jacobi rotations do the same few operations to every matrix, entry by entry, so that the
processor's vector units work on many matrices at a time; see Golub & Van Loan, section 8.5.
"""

from __future__ import annotations

from functools import reduce
from itertools import combinations

import numpy as np

from hessence._common.arrays import Numbers

CHUNK = 2**14
"""How many matrices are rotated at a time, so that their entries stay in the cache."""

CONVERGED = 2.0**-55
"""How far from an eigenvalue a diagonal entry may stay, relative to a matrix's largest entry."""


def small_eigenvalues(matrices: Numbers) -> Numbers:
    """Return the eigenvalues of matrices (k, k, n) in no order, (k, n); it reads the lower half.

    Examples
    --------
    >>> small_eigenvalues(np.asarray([[[2.0], [0.0]], [[1.0], [2.0]]])).round(15).T
    array([[1., 3.]])
    """
    size, _, count = matrices.shape
    values = np.empty((size, count))
    for start in range(0, count, CHUNK):
        own = slice(start, start + CHUNK)
        values[:, own] = _rotated(matrices[..., own])
    return values


def _rotated(matrices: Numbers) -> Numbers:
    """Rotate until every matrix is diagonal; those that are, are put aside."""
    size = len(matrices)
    pairs = list(combinations(range(size), 2))
    entries = {(p, q): matrices[q, p] for p, q in pairs} | {
        (p, p): matrices[p, p] for p in range(size)
    }
    # At size 1 no square over- or underflows.
    scale = reduce(np.maximum, map(np.abs, entries.values()))
    scale[scale == 0] = 1.0
    entries = {place: entry / scale for place, entry in entries.items()}
    values, rest = np.empty((size, len(scale))), np.arange(len(scale))
    while True:
        turning = reduce(np.logical_or, (_matters(entries, *pair) for pair in pairs))
        if not turning.all():
            for p in range(size):
                values[p, rest[~turning]] = entries[p, p][~turning]
            entries = {place: entry[turning] for place, entry in entries.items()}
            rest = rest[turning]
        if not len(rest):
            found: Numbers = values * scale
            return found
        for p, q in pairs:
            _rotate(entries, p, q, size)


def _matters(entries: dict[tuple[int, int], Numbers], p: int, q: int) -> Numbers:
    """Tell where an entry a moves eigenvalues: by |a| at most, and by a²/gap where they differ."""
    between = entries[p, q]
    apart = np.maximum(np.abs(entries[q, q] - entries[p, p]), np.abs(between))
    matters: Numbers = between * between > CONVERGED * apart
    return matters


def _rotate(entries: dict[tuple[int, int], Numbers], p: int, q: int, size: int) -> None:
    """Turn the axes p and q so that the entry between them vanishes."""
    between, gap = entries[p, q], entries[q, q] - entries[p, p]
    twice = between + between
    root = np.sqrt(gap * gap + twice * twice) + np.abs(gap)
    # The smaller of the two angles; none where there is nothing to turn.
    tangent = twice / np.copysign(root + np.finfo(float).tiny, gap)
    cosine = 1 / np.sqrt(1 + tangent * tangent)
    sine = tangent * cosine
    moved = tangent * between
    entries[p, p] = entries[p, p] - moved
    entries[q, q] = entries[q, q] + moved
    entries[p, q] = np.zeros_like(between)
    for r in range(size):
        if r in (p, q):
            continue
        first, second = (min(p, r), max(p, r)), (min(q, r), max(q, r))
        a, b = entries[first], entries[second]
        entries[first], entries[second] = cosine * a - sine * b, sine * a + cosine * b
