"""Linear algebra of long vectors, without loss of digits: lengths, Gram–Schmidt, small problems.

Rows (m, n) are orthonormal bases, columns (n, b) what is to be orthogonalised; leading dimensions
are a batch in lock-step. Coefficients are NumPy's, in float64.
"""

from __future__ import annotations

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, NotFiniteError, Numbers, like, to_numpy

PIECE = 2**14
"""How many numbers to add up in single precision before going on in double precision."""


def inner_products(rows: Array, columns: Array) -> Numbers:
    """Return the inner products (*batch, m, b) of rows (*batch, m, n) and columns (*batch, n, b).

    In single precision on a CPU they are added up in pieces, and the pieces in double precision:
    PyTorch's own are off by up to 4e-4 for a million numbers, and left a basis 2e-5 away from
    orthogonal even after the second pass.
    """
    if not _in_pieces(columns):
        return to_numpy(rows @ columns).astype(np.float64, copy=False)
    total = np.zeros((*rows.shape[:-1], int(columns.shape[-1])))
    size = int(columns.shape[-2])
    for start in range(0, size, PIECE):
        piece = slice(start, min(start + PIECE, size))
        total += to_numpy(rows[..., piece] @ columns[..., piece, :])
    return total


def subtract(rows: Array, columns: Array) -> tuple[Numbers, Array]:
    """Return the inner products, and columns (*batch, n, b) without these parts of the rows.

    For orthonormal rows that is one pass of classical Gram–Schmidt.
    """
    if _in_pieces(columns):
        part = inner_products(rows, columns)
        return part, columns - rows.mT @ like(part, columns)
    along = rows @ columns
    return to_numpy(along).astype(np.float64, copy=False), columns - rows.mT @ along


def orthogonalise(rows: Array, columns: Array, first: int = 0) -> tuple[Numbers, Array]:
    """Return the coefficients along orthonormal rows, and what is left of the columns.

    Classical Gram–Schmidt, all rows at once, twice: twice is enough (Giraud et al., Numer. Math.
    101, 2005), and the second pass corrects the coefficients of the first. The first pass skips the
    rows before `first`, to which the columns must be orthogonal up to rounding.
    """
    coefficients = np.zeros((*columns.shape[:-2], int(rows.shape[-2]), int(columns.shape[-1])))
    for start in (first, 0) if rows.shape[-2] else ():
        part, columns = subtract(rows[..., start:, :], columns)
        coefficients[..., start:, :] += part
    return coefficients, columns


def lengths(columns: Array) -> Numbers:
    """Return the lengths (*batch, b) of columns (*batch, n, b).

    One by one, and in single precision as sums over a contiguous axis: these are pairwise. For a
    million numbers PyTorch's norm is off by 1e-5 then, and NumPy's sum over any other axis by 4e-4.
    """
    single = columns.dtype == api.array_namespace(columns).float32
    squares = np.empty((*columns.shape[:-2], int(columns.shape[-1])))
    with np.errstate(over="ignore"):
        for j in range(columns.shape[-1]):
            column = columns[..., j]
            squares[..., j] = to_numpy(_pairwise(column) if single else _square(column))
    if not np.isfinite(squares).all():
        raise NotFiniteError(
            "H @ v is finite, but its square is not: scale H down, or use double precision."
        )
    roots: Numbers = np.sqrt(squares)
    return roots


def eigensystem(matrix: Numbers, reference: Array) -> tuple[Numbers, Numbers]:
    """Return ascending eigenvalues and eigenvectors of the symmetric part of (*batch, m, m).

    Beside PyTorch vectors, PyTorch's own solver is used: NumPy brings its own threads, and the two
    pools, taking turns, each spin while the other works (on two busy cores a product with a basis
    and an eigenvalue problem of order 60 took 8 ms instead of 0.5).
    """
    symmetric = matrix + np.swapaxes(matrix, -1, -2)
    symmetric /= 2
    if not api.is_torch_array(reference):
        values, vectors = np.linalg.eigh(symmetric)
        return values, vectors
    xp = api.array_namespace(reference)
    values, vectors = xp.linalg.eigh(xp.asarray(symmetric))
    return to_numpy(values), to_numpy(vectors)


def with_rows(storage: Array, start: int, rows: Array) -> Array:
    """Return storage (*batch, m, n) with these rows from `start` on: the same, if it is writeable.

    Arrays of some libraries, such as JAX, are not.
    """
    stop = start + int(rows.shape[-2])
    if api.is_writeable_array(storage):
        storage[..., start:stop, :] = rows
        return storage
    parts = [storage[..., :start, :], rows, storage[..., stop:, :]]
    return api.array_namespace(storage).concat(parts, axis=-2)


def _square(vector: Array) -> Array:
    """Return the sums of squares of vectors (*batch, n)."""
    if vector.ndim == 1:
        return vector @ vector
    return (vector[..., None, :] @ vector[..., None])[..., 0, 0]


def _pairwise(vector: Array) -> Array:
    """Return the same, added up in pairs."""
    xp = api.array_namespace(vector)
    row = xp.empty(vector.shape, dtype=vector.dtype, device=api.device(vector))
    if api.is_writeable_array(row):
        row[...] = vector
    else:
        row = vector
    return xp.sum(row * row, axis=-1)


def _in_pieces(columns: Array) -> bool:
    single = api.array_namespace(columns).float32
    return columns.dtype == single and "cpu" in str(api.device(columns)).lower()
