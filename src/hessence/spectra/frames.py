"""Orthogonal bases adapted to a few vectors, applied in O(m) without an m × m matrix."""

from __future__ import annotations

import array_api_compat as api
import numpy as np

from hessence._common.arrays import (
    Array,
    Numbers,
    epsilon,
    identity,
    stack_rows,
    to_numpy,
    transpose,
    unit,
    zero_rows,
)

DROPPED = 16
"""A share of a column below this many ε gets no direction of its own."""

TALL = 32
"""A matrix with this many times as many rows as columns is tall."""


class Frame:
    r"""An orthogonal Q whose first r columns span given vectors, held as r Householder reflectors.

    For :math:`A \in \mathbb{R}^{m \times r}` this is the Q of :math:`A = QR` with a non-negative
    diagonal in R, so for a single vector the first column is that vector, normalised. Columns
    r + 1 … m span the orthogonal complement. A vector that vanishes, or depends on earlier ones,
    does no harm: its column is then some unit vector orthogonal to the others. The vectors come as
    columns (..., m, r); if r > m, the m columns of Q all count as span.

    Examples
    --------
    >>> import numpy as np
    >>> frame = Frame(np.asarray([[3.0], [4.0], [0.0]]))
    >>> frame.span(np.ones((1, 1)))[:, 0].round(15)
    array([0.6, 0.8, 0. ])
    >>> complement = frame.complement(np.eye(2))
    >>> bool(np.abs(complement.T @ np.asarray([3.0, 4.0, 0.0])).max() < 1e-15)
    True
    """

    def __init__(self, vectors: Array) -> None:
        xp = api.array_namespace(vectors)
        self._xp = xp
        self.order = int(vectors.shape[-2])
        self.rank = min(self.order, int(vectors.shape[-1]))
        index = xp.arange(self.order, device=api.device(vectors))
        reflectors, signs = [], []
        for j in range(self.rank):
            column = vectors[..., j]
            direction = unit(xp.where(index >= j, column, xp.zeros_like(column)))
            head = direction[..., j]
            one = xp.ones_like(head)
            sign = xp.where(head < 0, -one, one)
            # The reflector maps the direction to −sign·e_j, so that this sum never cancels.
            normal = direction + sign[..., None] * xp.astype(index == j, direction.dtype)
            vanished = xp.all(direction == 0, axis=-1)
            weight = xp.where(vanished, 0 * one, 1 / (1 + xp.abs(head)))
            reflectors.append((normal, weight))
            signs.append(xp.where(vanished, one, -sign))
            vectors = self._reflect(normal, weight, vectors)
        self._reflectors = reflectors
        self._signs = (xp.stack(signs, axis=-1) if signs else vectors[..., 0, :])[..., None]

    def coordinates(self, columns: Array) -> Array:
        """Return the coordinates (..., r, n) of columns (..., m, n) along the span."""
        for normal, weight in self._reflectors:
            columns = self._reflect(normal, weight, columns)
        return columns[..., : self.rank, :] * self._signs

    def span(self, coordinates: Array) -> Array:
        """Embed coordinates (..., r, n) along the span as vectors (..., m, n)."""
        coordinates = coordinates * self._signs
        return self._apply(stack_rows(coordinates, zero_rows(self.order - self.rank, coordinates)))

    def complement(self, coordinates: Array) -> Array:
        """Embed coordinates (..., m − r, n) in the complement as vectors (..., m, n)."""
        return self._apply(stack_rows(zero_rows(self.rank, coordinates), coordinates))

    def _apply(self, columns: Array) -> Array:
        for normal, weight in reversed(self._reflectors):
            columns = self._reflect(normal, weight, columns)
        return columns

    def _reflect(self, normal: Array, weight: Array, columns: Array) -> Array:
        overlap = self._xp.matmul(normal[..., None, :], columns)
        return columns - normal[..., :, None] * (weight[..., None, None] * overlap)


class Complement:
    r"""The orthogonal complement of orthonormal columns, by one block reflector.

    With :math:`Q_1` (m × r) the columns and :math:`X|X^\top Q_1|` the polar decomposition of their
    first r rows, :math:`Y = Q_1 + E X` with E the first r columns of the identity, the matrix
    :math:`I - Y (I + P)^{-1} Y^\top` is orthogonal and symmetric, and maps E to the span of
    :math:`Q_1`: its other columns span the complement. P, the symmetric factor, has no negative
    eigenvalue, so that nothing is divided by a small number. Two thin products apply it, where the
    reflectors of a :class:`Frame` come one by one.
    """

    def __init__(self, basis: Array) -> None:
        self._xp = xp = api.array_namespace(basis)
        self.rank = int(basis.shape[-1])
        left, singular, right = xp.linalg.svd(basis[..., : self.rank, :])
        polar = xp.matmul(left, right)
        below = basis[..., self.rank :, :]
        self._normals = xp.concat([basis[..., : self.rank, :] + polar, below], axis=-2)
        inverse = transpose(right) / (1 + singular)[..., None, :]
        self._inverse = xp.matmul(inverse, right)

    def __call__(self, coordinates: Array) -> Array:
        """Embed coordinates (..., m − r, n) in the complement as vectors (..., m, n)."""
        return self.turn(stack_rows(zero_rows(self.rank, coordinates), coordinates))

    def turn(self, columns: Array) -> Array:
        """Multiply columns (..., m, n) by the reflector, whose first r columns span the basis."""
        xp = self._xp
        overlap = xp.matmul(self._inverse, xp.matmul(transpose(self._normals), columns))
        return columns - xp.matmul(self._normals, overlap)


class TwoSided:
    """Matrices (..., m, n) in bases that begin with the spans of given rows and columns.

    The spans have orthonormal bases (m, b) and (n, a). What is multiplied from either side by
    vectors of the spans is seen only in the first b rows and the first a columns. The change of
    bases is its own inverse.

    Examples
    --------
    >>> import numpy as np
    >>> turn = TwoSided(np.asarray([[0.6], [0.8]]), np.asarray([[0.0], [0.0], [1.0]]))
    >>> turn.seen.astype(int)
    array([[1, 1, 1],
           [1, 0, 0]])
    >>> turn(np.outer([0.8, -0.6], [1.0, 0.0, 0.0])).round(12)[0]
    array([0., 0., 0.])
    """

    def __init__(self, rows: Array, columns: Array) -> None:
        # What spans everything, or nothing, needs no turning.
        self._rows, self._columns = (
            Complement(basis) if 0 < basis.shape[-1] < basis.shape[-2] else None
            for basis in (rows, columns)
        )
        self.seen: Numbers = np.zeros((int(rows.shape[0]), int(columns.shape[0])), dtype=bool)
        self.seen[: int(rows.shape[1])] = True
        self.seen[:, : int(columns.shape[1])] = True

    def __call__(self, matrices: Array) -> Array:
        """Change from either bases to the others."""
        if self._rows is not None:
            matrices = self._rows.turn(matrices)
        if self._columns is not None:
            matrices = transpose(self._columns.turn(transpose(matrices)))
        return matrices


class GrowingSpan:
    """The span of columns (m, n) that arrive in parts, in the memory of m columns.

    Each column is scaled to unit length, and the dimension is decided as in :func:`span`.

    Examples
    --------
    >>> import numpy as np
    >>> found = GrowingSpan()
    >>> for column in ([1.0, 0.0, 1.0], [2.0, 0.0, 2.0], [1e-9, 0.0, 0.0]):
    ...     found.add(np.asarray(column)[:, None])
    >>> found.rank, found.basis().shape
    (2, (3, 2))
    """

    def __init__(self) -> None:
        self._kept: Array = None
        self.rank = 0

    def add(self, columns: Array) -> None:
        """Take more columns."""
        xp = api.array_namespace(columns)
        if self._kept is not None and self.rank == self._kept.shape[0]:
            return
        both = transpose(unit(transpose(columns)))
        if self._kept is not None:
            both = xp.concat([self._kept, both], axis=1)
        if both.shape[1] > both.shape[0]:
            both = transpose(xp.linalg.qr(transpose(both))[1])
        self._kept = both
        self.rank = _dimension(xp.linalg.svdvals(both), None)

    def basis(self) -> Array:
        """Return orthonormal columns (m, rank)."""
        xp = api.array_namespace(self._kept)
        return xp.linalg.svd(self._kept, full_matrices=False)[0][:, : self.rank]


def _dimension(singular: Array, tol: float | None) -> int:
    """Return how many singular values of columns of unit length are not due to rounding."""
    values = to_numpy(singular)
    threshold = DROPPED * epsilon(singular) * values.max(initial=0.0) if tol is None else tol
    return int((values > threshold).sum())


def span(columns: Array, *, tol: float | None = None, full: bool = False) -> tuple[Array, int]:
    """Return orthonormal columns that begin with a basis of the span of others, and its dimension.

    Each column (..., m, n) is scaled to unit length, so that units do not matter: a column loses at
    most a share `tol` of its length, by default 16 ε times the largest singular value of the scaled
    columns. An extra direction does no harm, so little is dropped. For a batch no rank is decided:
    it is min(m, n). With `full`, the basis is completed to one of the whole space, (..., m, m).

    Examples
    --------
    >>> import numpy as np
    >>> basis, rank = span(np.asarray([[1.0, 2.0, 1.0], [0.0, 0.0, 1e-12], [0.0, 0.0, 0.0]]))
    >>> basis.shape, rank
    ((3, 3), 2)
    """
    xp = api.array_namespace(columns)
    if columns.ndim > 2:
        basis, _ = xp.linalg.qr(columns, mode="complete" if full else "reduced")
        return basis, min(columns.shape[-2:])
    if not full and (found := _span_of_tall(columns)) is not None:
        return found[0], _dimension(found[1], tol)
    # The triangular factor has columns of the same lengths, and is small if there are few.
    basis, triangle = xp.linalg.qr(columns)
    scaled = transpose(unit(transpose(triangle)))
    left, singular, _ = xp.linalg.svd(scaled, full_matrices=False)
    basis = xp.matmul(basis, left)
    missing = int(columns.shape[0]) - int(basis.shape[1])
    if full and missing:
        eye = identity(missing, columns)
        basis = xp.concat([basis, Complement(basis)(eye)], axis=-1)
    return basis, _dimension(singular, tol)


def _span_of_tall(columns: Array) -> tuple[Array, Array] | None:
    """Return left singular vectors and singular values of columns (m, n) at unit length.

    Both come from the Gram matrix, several times as fast as by reflectors; the Gram matrix of the
    result makes the basis orthonormal to rounding. None unless there are many more rows than
    columns, so far from dependent that nothing is lost: 64 κ² m n ε ≤ 1 for the condition number κ
    at unit length (CholeskyQR2; Yamamoto, Nakatsukasa, Yanagisawa & Fukaya 2015).
    """
    xp, (m, n) = api.array_namespace(columns), columns.shape
    if m < TALL * n:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        gram = xp.matmul(transpose(columns), columns)
    squares = to_numpy(xp.linalg.diagonal(gram))
    kind = np.finfo(squares.dtype)
    # What underflows or overflows in squares is left to reflectors.
    if not (kind.tiny / kind.eps**2 < squares.min() and squares.max() < np.inf):
        return None
    lengths = xp.sqrt(xp.linalg.diagonal(gram))
    values, vectors = xp.linalg.eigh(gram / lengths[:, None] / lengths)
    if not 64 * m * n * kind.eps * float(values[-1]) <= float(values[0]):
        return None
    values, vectors = xp.flip(values, axis=-1), xp.flip(vectors, axis=-1)
    singular = xp.sqrt(values)
    basis = xp.matmul(columns, vectors / lengths[:, None] / singular)
    nearly, turn = xp.linalg.eigh(xp.matmul(transpose(basis), basis))
    return xp.matmul(basis, xp.matmul(turn / xp.sqrt(nearly), transpose(turn))), singular
