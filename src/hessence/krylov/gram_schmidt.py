"""Taking an orthonormal basis out of a vector, to working precision."""

from __future__ import annotations

import array_api_compat as api

from hessence.arrays import Array, like
from hessence.krylov.inner import inner_products, lengths
from hessence.krylov.projected import Numbers

SHRUNK = 0.7
"""A pass that leaves less than this of a vector is followed by another one."""


def subtract(rows: Array, vector: Array) -> tuple[Numbers, Array]:
    """Return the coefficients of a vector (n,) along rows (m, n), and the vector without them.

    One pass of classical Gram–Schmidt.
    """
    part = inner_products(rows, vector[:, None])[:, 0]
    return part, vector - api.array_namespace(rows).matmul(like(part, rows), rows)


def take_out(rows: Array, vector: Array) -> tuple[Numbers, Array, float]:
    """Return the coefficients along orthonormal rows, what is left of the vector, and its length.

    What is left is orthogonal to the rows up to rounding of its own length: as long as a pass
    removes much, another one follows (Kahan's criterion; twice is enough, Giraud et al., Numer.
    Math. 101, 2005, so a third is the most there is).
    """
    coefficients, vector = subtract(rows, vector)
    length, removed = length_of(vector), float((coefficients**2).sum())
    for _ in range(2):
        if length * length >= SHRUNK**2 * (length * length + removed):
            break
        part, vector = subtract(rows, vector)
        coefficients = coefficients + part
        length, removed = length_of(vector), float((part**2).sum())
    return coefficients, vector, length


def length_of(vector: Array) -> float:
    """Return the length of one vector (n,)."""
    return float(lengths(vector[:, None])[0])
