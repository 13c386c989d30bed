"""Memory that products write to again and again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor


class Workspaces:
    """Room for what a product passes on from layer to layer, lent to one product at a time.

    Fresh memory is mapped page by page when it is first written to. For tensors of a megabyte that
    took longer than the multiplications that fill them.
    """

    def __init__(self) -> None:
        self._idle: list[Tensor] = []

    @contextmanager
    def lend(self, shapes: Sequence[tuple[int, ...]], kind: Tensor) -> Iterator[list[Tensor]]:
        """Lend tensors of some shapes, of the type and device of another; they hold anything."""
        sizes = [math.prod(shape) for shape in shapes]
        room = self._take(kind, sum(sizes))
        try:
            pieces = room[: sum(sizes)].split(sizes)
            yield [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        finally:
            self._idle.append(room)

    def _take(self, kind: Tensor, size: int) -> Tensor:
        # Products on several threads find the room of the others gone, and get their own.
        try:
            room = self._idle.pop()
        except IndexError:
            return kind.new_empty(size)
        fits = room.numel() >= size and (room.dtype, room.device) == (kind.dtype, kind.device)
        return room if fits else kind.new_empty(size)
