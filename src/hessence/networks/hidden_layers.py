"""Hidden layers with fewer units, and parameter vectors as weights by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, integers, transpose

Weights = Mapping[str, Array]
"""Weights by name, or changes of them (n, …)."""


@dataclass(frozen=True, eq=False)
class HiddenLayer:
    """A hidden layer at fixed slopes, between two weights."""

    first: str  # the name of its incoming weight (m, D)
    bias: str | None  # that of its bias (m,)
    second: str  # that of its outgoing weight (K, m)
    name: str  # what its eigenvalues are called, after "bulk/"
    cells: Numbers  # (m,): the cell of each unit
    dead: Numbers | None = None  # which cells have slope 0 throughout; None without activation

    @property
    def names(self) -> set[str]:
        """The names of its weights."""
        return {self.first, self.second}

    def factors(self, weights: Weights) -> tuple[Array, Array]:
        """Return B, with a column for the bias, and A."""
        B, A = weights[self.first], weights[self.second]
        if self.bias is None:
            return B, A
        xp = api.array_namespace(B)
        return xp.concat([B, weights[self.bias][..., None]], axis=-1), A

    def weights(self, B: Array, A: Array) -> dict[str, Array]:
        """Return B and A as weights by name."""
        if self.bias is None:
            return {self.first: B, self.second: A}
        return {self.first: B[..., :-1], self.bias: B[..., -1], self.second: A}

    def together(self) -> list[Numbers]:
        """Return the units of each cell that has more than one."""
        order = np.argsort(self.cells, kind="stable")
        _, starts = np.unique(self.cells[order], return_index=True)
        return [units for units in np.split(order, starts[1:]) if len(units) > 1]

    def label(self, units: Numbers) -> str:
        """Return what is appended to the labels of a cell, given by some of its units."""
        own = "" if self.dead is None else f"/cell {self.cells[units[0]]}"
        return f"/{self.name}{own}"


def cells_of(patterns: Numbers) -> tuple[Numbers, Numbers]:
    """Return which cell each unit is in, and a unit of each cell; the largest cell comes first.

    Parameters
    ----------
    patterns : array (n, m)
        What each of m units has for a slope on each of n samples, as numbers that tell them apart.

    Examples
    --------
    >>> import numpy as np
    >>> cells, members = cells_of(np.asarray([[1, 0, 0, 1, 0], [1, 1, 1, 1, 0]]))
    >>> cells.tolist(), members.tolist()
    ([0, 1, 1, 0, 2], [0, 1, 4])
    """
    columns = np.ascontiguousarray(patterns.T)
    keys = columns.view(np.dtype((np.void, columns.dtype.itemsize * columns.shape[1]))).ravel()
    _, members, cells, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.lexsort((members, -counts))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[cells.ravel()], members[order]


@dataclass(frozen=True, eq=False)
class Step:
    """A hidden layer with fewer units: those that are kept, then those of each turned cell."""

    layer: HiddenLayer  # the layer before the step
    kept: Numbers  # the units that stay as they are
    turned: Sequence[tuple[Numbers, Array]] = ()  # the units of a cell, and its basis (m_c, r_c)

    @property
    def narrowed(self) -> HiddenLayer:
        """The layer as it becomes."""
        own = self.layer.cells
        cells = [np.repeat(own[units[:1]], basis.shape[1]) for units, basis in self.turned]
        return replace(self.layer, cells=np.concatenate([own[self.kept], *cells]))

    def narrow(self, weights: Weights) -> dict[str, Array]:
        """Return the weights of the narrow network."""
        return self._each(weights, self._narrow)

    def widen(self, changes: Weights) -> dict[str, Array]:
        """Return changes of the narrow network's weights as changes of the wide one's."""
        return self._each(changes, self._widen)

    def _each(self, weights: Weights, turn: Callable[[Array], Array]) -> dict[str, Array]:
        found, layer = dict(weights), self.layer
        if layer.first in found:
            found[layer.first] = transpose(turn(transpose(found[layer.first])))
        for name in (layer.bias, layer.second):
            if name in found:
                found[name] = turn(found[name])
        return found

    def _narrow(self, columns: Array) -> Array:
        """Turn the last axis, which is that of the units."""
        xp = api.array_namespace(columns)
        parts = [xp.matmul(take(columns, units), basis) for units, basis in self.turned]
        return xp.concat([take(columns, self.kept), *parts], axis=-1)

    def _widen(self, columns: Array) -> Array:
        xp = api.array_namespace(columns)
        kept, *parts = split(columns, [len(self.kept), *(b.shape[1] for _, b in self.turned)])
        turned = [xp.matmul(p, transpose(b)) for p, (_, b) in zip(parts, self.turned, strict=True)]
        units = np.concatenate([self.kept, *(units for units, _ in self.turned)])
        return scatter(xp.concat([kept, *turned], axis=-1), units, len(self.layer.cells))


class Layout:
    """Parameter vectors as columns (p, n), and as arrays (n, …) by name."""

    def __init__(self, weights: Weights) -> None:
        self._shapes = {name: tuple(w.shape) for name, w in weights.items()}
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]
        self.size = sum(self._sizes)

    def split(self, columns: Array) -> dict[str, Array]:
        """Cut columns into arrays."""
        xp, rows = api.array_namespace(columns), transpose(columns)
        pieces = split(rows, self._sizes)
        return {
            name: xp.reshape(piece, (int(rows.shape[0]), *shape))
            for piece, (name, shape) in zip(pieces, self._shapes.items(), strict=True)
        }

    def join(self, changes: Weights) -> Array:
        """Make columns of those of the arrays that count; one that is not given is zero."""
        first = next(iter(changes.values()))
        xp, n = api.array_namespace(first), int(first.shape[0])
        pieces = [
            xp.reshape(changes[name], (n, size))
            if name in changes
            else xp.zeros((n, size), dtype=first.dtype, device=api.device(first))
            for name, size in zip(self._shapes, self._sizes, strict=True)
        ]
        return transpose(xp.concat(pieces, axis=-1))


def take(columns: Array, units: Numbers) -> Array:
    """Pick along the last axis."""
    return api.array_namespace(columns).take(columns, integers(units, columns), axis=-1)


def take_rows(matrix: Array, units: Numbers) -> Array:
    """Pick along the last axis but one."""
    return api.array_namespace(matrix).take(matrix, integers(units, matrix), axis=-2)


def scatter(columns: Array, units: Numbers, width: int) -> Array:
    """Put entries along the last axis into places among `width`, and zeros into the others."""
    source = np.full(width, len(units))
    source[units] = np.arange(len(units))
    xp = api.array_namespace(columns)
    zero = xp.zeros((*columns.shape[:-1], 1), dtype=columns.dtype, device=api.device(columns))
    return take(xp.concat([columns, zero], axis=-1), source)


def split(columns: Array, sizes: Sequence[int]) -> list[Array]:
    """Cut the last axis into pieces of these sizes."""
    ends = np.cumsum(sizes).tolist()
    return [columns[..., end - size : end] for size, end in zip(sizes, ends, strict=True)]
