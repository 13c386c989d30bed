r"""Inner products of sums of outer products: rows of the Jacobian in the weight of a layer.

The row of an output in a weight is :math:`\sum_s \delta_s h_s^\top` over the positions s, with h
what the layer takes and δ the gradient of the output at what it makes. There are three ways to all
inner products of such rows, and counting their operations tells which is best:

- with one position, :math:`\langle \delta, \delta' \rangle \langle h, h' \rangle`;
- with few, :math:`\sum_t \langle \sum_s \langle h_s, h'_t \rangle \delta_s, \delta'_t \rangle`,
  where the inner sum serves all outputs of the other sample;
- with many, the rows are written out, some of their columns at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hessence.models._layer_factors import Use

PANEL = 512
"""How many rows are multiplied by all that follow at once: half of a symmetric matrix is enough."""

ENTRYWISE = 32
"""What it costs to go through a matrix in memory, in multiplications of a product of matrices."""

THIN = 4
"""How much longer a product takes that has few rows and columns."""


@dataclass(frozen=True)
class Extent:
    """The numbers that decide how rows in a weight are best multiplied.

    Attributes
    ----------
    samples, rows : int
        How many there are in all.
    positions : int
        How many terms a row has.
    groups, made, taken : int
        The numbers of blocks that a row consists of, and of rows and columns of each.
    """

    samples: int
    rows: int
    positions: int
    groups: int
    made: int
    taken: int

    @property
    def factored(self) -> float:
        """The cost of all inner products by factors, in multiplications, for each group."""
        n, N, S = self.samples, self.rows, self.positions
        meet = (n * S) ** 2 * self.taken
        if S == 1:
            return float(meet + N**2 * (self.made + ENTRYWISE))
        return float(meet + n * N * S**2 * self.made + N**2 * S * self.made * THIN)

    @property
    def written(self) -> float:
        """The cost with rows written out."""
        return float(self.rows * (self.rows + 2 * self.positions) * self.made * self.taken)


@dataclass(frozen=True, eq=False)
class Outer:
    """Rows of the Jacobian in one weight, K for each of n samples.

    Attributes
    ----------
    uses : list of Use
        What layers took, S positions altogether.
    deltas : Tensor (g, n, K, S, out)
        Gradients of the outputs at what the layers made.
    """

    uses: Sequence[Use]
    deltas: Tensor

    @property
    def indexed(self) -> bool:
        """Whether the inputs are unit vectors, by index."""
        return self.uses[0].kind == "embedding"

    def inputs(self) -> Tensor:
        """Return what the layers took (g, n, S, in), or indices (n, S)."""
        found = [use.positions() for use in self.uses]
        return found[0] if len(found) == 1 else torch.cat(found, 1 if self.indexed else 2)

    def pieces(self, rows: int) -> Iterator[tuple[slice, Outer]]:
        """Cut into pieces of some rows each: samples, or outputs of one sample."""
        _, n, K, *_ = self.deltas.shape
        step, width = (max(1, rows // K), K) if rows >= K else (1, max(1, rows))
        for i in range(0, n, step):
            uses = [replace(use, taken=use.taken[i : i + step]) for use in self.uses]
            count = len(uses[0].taken)
            for k in range(0, K, width):
                deltas = self.deltas[:, i : i + step, k : k + width]
                start = i * K + k
                yield slice(start, start + count * deltas.shape[2]), Outer(uses, deltas)


Placed = Sequence[tuple[int, Outer]]
"""Rows of one weight, and where the first of them is."""


def add_factored(total: Tensor, placed: Placed, room: float) -> None:
    """Add all inner products to the upper triangle of a total (N, N), by factors.

    Parameters
    ----------
    total : Tensor
        What is added to.
    placed : sequence of int, Outer
        The rows.
    room : float
        How many bytes may be taken meanwhile, about.
    """
    pieces = [
        (slice(start + rows.start, start + rows.stop), piece)
        for start, outer in placed
        for rows, piece in outer.pieces(_piece_rows(outer, room))
    ]
    for i, (rows, mine) in enumerate(pieces):
        inputs = mine.inputs()
        for columns, other in pieces[i:]:
            theirs = inputs if other is mine else other.inputs()
            found = _inner_products(inputs, mine.deltas, theirs, other.deltas)
            total[rows, columns] += found.reshape(rows.stop - rows.start, -1)


def _piece_rows(outer: Outer, room: float) -> int:
    """Return how many rows a piece has, so that two of them meet in so much memory."""
    groups, _, K, S, out = outer.deltas.shape
    numbers = room / outer.deltas.itemsize / groups
    if S == 1:
        return int((numbers / 2) ** 0.5)
    # For r rows there are r · r/K matrices of how positions meet, and as many of what is carried.
    return int((numbers / (S * S + S * out) * K) ** 0.5)


def _inner_products(h: Tensor, deltas: Tensor, h_: Tensor, deltas_: Tensor) -> Tensor:
    """Return all inner products of two sets of rows, (n, K, n′, K′)."""
    (g, n, K, S, _), (_, m, L, T, _) = deltas.shape, deltas_.shape
    if h.ndim == 2:
        mine, theirs = h.reshape(-1, 1), h_.reshape(1, -1)
        meet = ((mine == theirs) & (mine >= 0)).to(deltas)[None]
    else:
        meet = h.flatten(1, 2) @ h_.flatten(1, 2).mT
    if S == T == 1:
        both = deltas.flatten(1, 3) @ deltas_.flatten(1, 3).mT
        both.view(g, n, K, m, L).mul_(meet.view(g, n, 1, m, 1))
        return both.sum(0).view(n, K, m, L) if g > 1 else both.view(n, K, m, L)
    # What each δ of one side gives at all positions of the other.
    carried = meet.view(g, n, 1, S, m * T).mT @ deltas
    left = carried.view(g, n * K, m, -1).transpose(1, 2)
    found = left @ deltas_.flatten(3).mT
    return found.sum(0).permute(1, 0, 2).reshape(n, K, m, L)


def add_written(total: Tensor, placed: Placed, room: float) -> None:
    """Add all inner products to the upper triangle of a total (N, N), with rows written out.

    Parameters
    ----------
    total, placed, room
        See ``add_factored``.
    """
    first = placed[0][1]
    groups, made = first.deltas.shape[0], first.deltas.shape[-1]
    if first.indexed:
        # Words that do not occur are left out.
        words = torch.cat([outer.inputs().reshape(-1) for _, outer in placed]).unique()
        words = words[words >= 0]
        placed = [(start, _renumbered(outer, words)) for start, outer in placed]
        # A row of the weight is made, not taken.
        length, across = len(words), made
    else:
        length, across = made, first.uses[0].width
    numbers = max(1, int(room / 2 / (len(total) * total.itemsize * groups)))
    width = min(across, numbers) if not first.indexed else across
    step = max(1, numbers // width)
    for low in range(0, length, step):
        for left in range(0, across, width):
            window = (low, min(low + step, length), left, min(left + width, across))
            add_symmetric(total, _written(total, placed, window, room / 4))


def _written(
    total: Tensor, placed: Placed, window: tuple[int, int, int, int], room: float
) -> Tensor:
    """Return the columns of all rows in a part of the weight."""
    low, high, left, right = window
    groups = placed[0][1].deltas.shape[0]
    numbers = groups * (high - low) * (right - left)
    found = total.new_zeros(len(total), numbers)
    for start, outer in placed:
        K, S = outer.deltas.shape[2:4]
        # What a sample takes: patches, gradients, and rows, of which there are copies.
        each = groups * S * (outer.uses[0].width + K * (high - low)) + 2 * K * numbers
        samples = max(1, int(room / (each * total.itemsize)))
        for rows, piece in outer.pieces(samples * K):
            some = slice(start + rows.start, start + rows.stop)
            found[some] = written(piece.inputs(), piece.deltas, *window)
    return found


def written(
    h: Tensor, deltas: Tensor, low: int, high: int, left: int = 0, right: int | None = None
) -> Tensor:
    """Return rows in a part of the weight, all groups', (n · K, q).

    Parameters
    ----------
    h : Tensor (g, n, S, in) or (n, S)
        What the layer took, or indices.
    deltas : Tensor (g, n, K, S, out)
        Gradients at what it made.
    low, high : int
        Which rows of the weight: numbers that are made, or words.
    left, right : int
        Which of its columns.
    """
    if h.ndim > 2:
        some = deltas[..., low:high].mT
        # (g, n, K · out, S) times (g, n, S, in), for all outputs at once.
        found = (some.flatten(2, 3) @ h[..., left:right]).unflatten(2, some.shape[2:4])
        return found.permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1)
    _, n, K, _, width = deltas.shape
    inside = (h >= low) & (h < high)
    place = torch.where(inside, h - low, high - low)
    words = deltas.new_zeros(n, K, high - low + 1, width)
    index = place[:, None, :, None].expand(n, K, -1, width)
    words.scatter_add_(2, index, deltas[0])
    return words[:, :, :-1, left:right].flatten(2).flatten(0, 1)


def _renumbered(outer: Outer, words: Tensor) -> Outer:
    """Return the same rows with the places of words in a sorted list for the words."""
    uses = [
        replace(use, taken=torch.where(use.taken >= 0, torch.searchsorted(words, use.taken), -1))
        for use in outer.uses
    ]
    return Outer(uses, outer.deltas)


def add_symmetric(total: Tensor, rows: Tensor) -> None:
    """Add the inner products of rows (N, q) to the upper triangle of a total (N, N)."""
    for low in range(0, len(rows), PANEL):
        total[low : low + PANEL, low:].addmm_(rows[low : low + PANEL], rows[low:].mT)


def mirror(total: Tensor) -> None:
    """Make a matrix symmetric by its upper triangle."""
    for low in range(0, len(total), PANEL):
        high = low + PANEL
        own = total[low:high, low:high]
        own.copy_(own.triu() + own.triu(1).mT)
        total[high:, low:high] = total[low:high, high:].mT
