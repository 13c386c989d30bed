"""Taking an orthonormal basis out of a vector, to working precision; for a batch in lock-step."""

from __future__ import annotations

import array_api_compat as api
import numpy as np

from hessence.arrays import Array, like
from hessence.krylov.inner import inner_products, lengths
from hessence.krylov.projected import Numbers

SHRUNK = 0.7
"""A pass that leaves less than this of a vector is followed by another one."""


def subtract(rows: Array, vectors: Array) -> tuple[Numbers, Array]:
    """Return the coefficients (*batch, m) along rows (*batch, m, n), and the vectors without them.

    One pass of classical Gram–Schmidt for vectors (*batch, n).
    """
    part = inner_products(rows, vectors[..., None])[..., 0]
    weights = like(part[..., None, :], rows)
    return part, vectors - api.array_namespace(rows).matmul(weights, rows)[..., 0, :]


def take_out(rows: Array, vectors: Array) -> tuple[Numbers, Array, Numbers]:
    """Return the coefficients along orthonormal rows, what is left of the vectors, and its length.

    What is left is orthogonal to the rows up to rounding of its own length: as long as a pass
    removes much, another one follows (Kahan's criterion; twice is enough, Giraud et al., Numer.
    Math. 101, 2005, so a third is the most there is).
    """
    coefficients, vectors = subtract(rows, vectors)
    removed, left = np.linalg.norm(coefficients, axis=-1), length_of(vectors)
    for _ in range(2):
        if (left >= SHRUNK * np.hypot(left, removed)).all():
            break
        part, vectors = subtract(rows, vectors)
        coefficients = coefficients + part
        removed, left = np.linalg.norm(part, axis=-1), length_of(vectors)
    return coefficients, vectors, left


def project_out(rows: Array, columns: Array) -> Array:
    """Return columns (n, b) without what they have in the span of orthonormal rows (m, n)."""
    xp = api.array_namespace(rows)
    for _ in range(2):
        part = like(inner_products(rows, columns), rows)
        columns = columns - xp.matmul(xp.matrix_transpose(rows), part)
    return columns


def length_of(vectors: Array) -> Numbers:
    """Return the lengths (*batch,) of vectors (*batch, n)."""
    return np.asarray(lengths(vectors[..., None])[..., 0])
