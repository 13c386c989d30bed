r"""Eigenvalues of very many very small symmetric matrices, all at once.

One after the other, LAPACK spends most of its time on each matrix before it does any arithmetic.
Cyclic Jacobi rotations do the same few operations to every matrix, entry by entry, so that the
processor's vector units work on many matrices at a time; see Golub & Van Loan, section 8.5.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from hessence._common.arrays import Numbers

CHUNK = 2**14
"""How many matrices are rotated at a time, so that their entries stay in the cache."""

CONVERGED = 2.0**-55
"""How far from an eigenvalue a diagonal entry may stay, relative to a matrix's largest entry."""

SURE = 2
"""How many rounds are made before it is asked which matrices need no more."""

Entries = dict[tuple[int, int], Any]
"""The upper half of many matrices, entry by entry; None where all of them are zero."""


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
    order = _tournament(size)
    entries: Entries = {(p, q): matrices[q, p] for p, q in order}
    entries |= {(p, p): matrices[p, p] for p in range(size)}
    # At size 1 no square over- or underflows.
    scale = reduce(np.maximum, (np.abs(matrices[q, p]) for p, q in entries))
    scale[scale == 0] = 1.0
    entries = {place: entry / scale for place, entry in entries.items()}
    values, rest = np.empty((size, len(scale))), np.arange(len(scale))
    for _ in range(SURE):
        for p, q in order:
            _rotate(entries, p, q, size)
    while True:
        turning = reduce(np.logical_or, (_matters(entries, *pair) for pair in order))
        if not turning.all():
            for p in range(size):
                values[p, rest[~turning]] = entries[p, p][~turning]
            entries = {
                place: None if entry is None else entry[turning] for place, entry in entries.items()
            }
            rest = rest[turning]
        if not len(rest):
            found: Numbers = values * scale
            return found
        for p, q in order:
            _rotate(entries, p, q, size)


def _tournament(size: int) -> list[tuple[int, int]]:
    """Return all pairs, such that one follows another that it has nothing in common with.

    The second leaves the zero of the first, and the two after them find both.

    Examples
    --------
    >>> _tournament(4)
    [(0, 3), (1, 2), (0, 2), (1, 3), (0, 1), (2, 3)]
    """
    # The first player stays, the others go round; an odd number has one that rests.
    players, order = list(range(size + size % 2)), []
    for _ in players[1:]:
        for a, b in zip(players, reversed(players[len(players) // 2 :]), strict=False):
            if max(a, b) < size:
                order.append((min(a, b), max(a, b)))
        players = [players[0], players[-1], *players[1:-1]]
    return order


def _matters(entries: Entries, p: int, q: int) -> Any:
    """Tell where an entry a moves eigenvalues: by |a| at most, and by a²/gap where they differ."""
    between = entries[p, q]
    if between is None:
        return np.False_
    apart = np.maximum(np.abs(entries[q, q] - entries[p, p]), np.abs(between))
    return between * between > CONVERGED * apart


def _rotate(entries: Entries, p: int, q: int, size: int) -> None:
    """Turn the axes p and q so that the entry between them vanishes."""
    between, gap = entries[p, q], entries[q, q] - entries[p, p]
    if between is None:
        return
    twice = between + between
    root = np.sqrt(gap * gap + twice * twice + np.finfo(float).tiny)
    # The smaller of the two angles; none where there is nothing to turn.
    tangent = twice / (gap + np.copysign(root, gap))
    cosine = 1 / np.sqrt(1 + tangent * tangent)
    sine = tangent * cosine
    moved = tangent * between
    entries[p, p] = entries[p, p] - moved
    entries[q, q] = entries[q, q] + moved
    entries[p, q] = None
    for r in range(size):
        if r in (p, q):
            continue
        first, second = (min(p, r), max(p, r)), (min(q, r), max(q, r))
        a, b = entries[first], entries[second]
        if a is None and b is None:
            continue
        if a is None:
            entries[first], entries[second] = -sine * b, cosine * b
        elif b is None:
            entries[first], entries[second] = cosine * a, sine * a
        else:
            entries[first], entries[second] = cosine * a - sine * b, sine * a + cosine * b
