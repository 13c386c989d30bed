"""Memory that products write to again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor


class Workspaces:
    """Room for what a product passes on from layer to layer, lent to one product at a time.

    Fresh memory is mapped page by page when it is first written to. For tensors of a megabyte that
    took longer than the multiplications that fill them.
    """

    def __init__(self) -> None:
        self._idle: list[list[Tensor]] = []

    @contextmanager
    def lend(self, rows: int, widths: Sequence[int], kind: Tensor) -> Iterator[list[Tensor]]:
        """Lend a tensor (rows, width) of some kind for each width; what it holds is of no use."""
        room = self._take(rows, widths, kind)
        try:
            yield room if len(room[0]) == rows else [tensor[:rows] for tensor in room]
        finally:
            self._idle.append(room)

    def _take(self, rows: int, widths: Sequence[int], kind: Tensor) -> list[Tensor]:
        # Products on several threads find the room of the others gone, and get their own.
        try:
            room = self._idle.pop()
        except IndexError:
            room = []
        fits = [tensor.shape[1] for tensor in room] == list(widths) and len(room[0]) >= rows
        return room if fits else [kind.new_empty(rows, width) for width in widths]
