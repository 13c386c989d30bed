"""Taking an orthonormal basis out of vectors, to working precision; for a batch in lock-step."""

from __future__ import annotations

import numpy as np

from hessence._common.arrays import Array, Numbers
from hessence.krylov.inner import lengths, subtract

SHRUNK = 0.7
"""A pass that leaves less than this of a vector is followed by another one."""


def take_out(rows: Array, columns: Array) -> tuple[Numbers, Array, Numbers]:
    """Return the coefficients along orthonormal rows, what is left of the columns, and its lengths.

    What is left is orthogonal to the rows up to rounding of its own length: as long as a pass
    removes much, another one follows (Kahan's criterion; twice is enough, Giraud et al., Numer.
    Math. 101, 2005, so a third is the most there is).
    """
    coefficients, columns = subtract(rows, columns)
    removed, left = np.linalg.norm(coefficients, axis=-2), lengths(columns)
    for _ in range(2):
        if (left >= SHRUNK * np.hypot(left, removed)).all():
            break
        part, columns = subtract(rows, columns)
        coefficients = coefficients + part
        removed, left = np.linalg.norm(part, axis=-2), lengths(columns)
    return coefficients, columns, left


def project_out(rows: Array, columns: Array) -> Array:
    """Return columns (n, b) without what they have in the span of orthonormal rows (m, n)."""
    for _ in range(2):
        _, columns = subtract(rows, columns)
    return columns
