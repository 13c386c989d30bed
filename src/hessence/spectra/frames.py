"""Orthogonal bases adapted to a few vectors, applied in O(m) without an m × m matrix."""

from __future__ import annotations

import array_api_compat as api

from hessence._common.arrays import Array, stack_rows, unit, zero_rows


class Frame:
    r"""An orthogonal Q whose first r columns span given vectors, held as r Householder reflectors.

    For :math:`A \in \mathbb{R}^{m \times r}` this is the Q of :math:`A = QR` with a non-negative
    diagonal in R, so for a single vector the first column is that vector, normalised. Columns
    r + 1 … m span the orthogonal complement. A vector that vanishes, or depends on earlier ones,
    does no harm: its column is then some unit vector orthogonal to the others.

    Parameters
    ----------
    vectors : array (..., m, r)
        The vectors, as columns. If r > m, the m columns of Q all count as span.

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
        """Carry coordinates (..., r, n) along the span to vectors (..., m, n)."""
        coordinates = coordinates * self._signs
        return self._apply(stack_rows(coordinates, zero_rows(self.order - self.rank, coordinates)))

    def complement(self, coordinates: Array) -> Array:
        """Carry coordinates (..., m − r, n) in the complement to vectors (..., m, n)."""
        return self._apply(stack_rows(zero_rows(self.rank, coordinates), coordinates))

    def _apply(self, columns: Array) -> Array:
        for normal, weight in reversed(self._reflectors):
            columns = self._reflect(normal, weight, columns)
        return columns

    def _reflect(self, normal: Array, weight: Array, columns: Array) -> Array:
        overlap = self._xp.matmul(normal[..., None, :], columns)
        return columns - normal[..., :, None] * (weight[..., None, None] * overlap)
