"""Lengths and inner products of long vectors in single precision, without loss of digits."""

from __future__ import annotations

import array_api_compat as api
import numpy as np

from hessence.arrays import Array, to_numpy
from hessence.krylov.projected import Numbers

PIECE = 2**14
"""How many numbers in single precision to add up before going on in double precision."""


def inner_products(rows: Array, columns: Array) -> Numbers:
    """Return the inner products (*batch, m, b) of rows (*batch, m, n) and columns (*batch, n, b).

    In single precision on a CPU they are added up in pieces, and the pieces in double precision:
    PyTorch's own are off by up to 4e-4 for a million numbers, and left a basis 2e-5 away from
    orthogonal even after the second pass.
    """
    xp = api.array_namespace(rows)
    size = int(columns.shape[-2])
    single = columns.dtype == xp.float32 and str(api.device(columns)) == "cpu"
    total = np.zeros((*rows.shape[:-1], int(columns.shape[-1])))
    for start in range(0, size, PIECE if single else size):
        piece = slice(start, start + PIECE if single else size)
        total += to_numpy(xp.matmul(rows[..., piece], columns[..., piece, :]))
    return total


def lengths(columns: Array) -> Numbers:
    """Return the lengths (*batch, b) of columns (*batch, n, b).

    One by one, as sums over a contiguous axis: these are pairwise. For a million numbers in single
    precision PyTorch's norm is off by 1e-5, and NumPy's sum over any other axis by 4e-4.
    """
    xp = api.array_namespace(columns)
    each = [columns[..., j] for j in range(columns.shape[-1])]
    squares = xp.stack([xp.sum(column * column, axis=-1) for column in each], axis=-1)
    roots: Numbers = np.sqrt(to_numpy(squares).astype(np.float64))
    return roots
