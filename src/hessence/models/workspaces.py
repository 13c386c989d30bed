"""Memory that products write to again and again."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor


class Workspace:
    """Room for what a product passes on from layer to layer, lent to one product at a time.

    Fresh memory is mapped page by page when it is first written to. For tensors of a megabyte that
    took longer than the multiplications that fill them.
    """

    def __init__(self) -> None:
        self._idle: list[list[Tensor]] = []

    @contextmanager
    def lend(self, rows: int, widths: Sequence[int], kind: Tensor) -> Iterator[list[Tensor]]:
        """Lend a tensor (rows, width) of some kind for each width; what it holds is of no use."""
        try:
            room = self._idle.pop()
        except IndexError:  # at first, and where another thread has it
            room = []
        if not _fits(room, rows, widths):
            room = [kind.new_empty(rows, width) for width in widths]
        try:
            yield room if len(room[0]) == rows else [tensor[:rows] for tensor in room]
        finally:
            self._idle[:] = [room]


class CommonWorkspace:
    """One workspace for all who hold it; it goes when nobody does."""

    def __init__(self) -> None:
        self._held: weakref.ref[Workspace] | None = None

    def get(self) -> Workspace:
        """Return the workspace that others hold, or a new one."""
        workspace = None if self._held is None else self._held()
        if workspace is None:
            workspace = Workspace()
            self._held = weakref.ref(workspace)
        return workspace


def _fits(room: Sequence[Tensor], rows: int, widths: Sequence[int]) -> bool:
    return [tensor.shape[1] for tensor in room] == list(widths) and len(room[0]) >= rows
