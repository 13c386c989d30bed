"""How much memory the graph of a batch holds, and how many samples make a good graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hessence.models.batch_parts import byte_count, tensors_in

CHUNK_BYTES = 2.0**28
"""No graph of merged batches holds more than this."""

LEAST_CHUNK_BYTES = 2.0**24
"""However little memory there is, batches are not cut into smaller pieces than this."""

PROBES = (2, 4)
"""How many samples are measured. Some models treat a single one in another way."""


def chunk_size(
    size: Callable[[Any], float], batch: tuple[Tensor, Tensor], memory: float
) -> tuple[int, float]:
    """Return how many samples to put into a graph, and how many bytes each takes there.

    Parameters
    ----------
    size : callable
        Tells how many bytes the graph of a batch holds.
    batch : tuple of Tensor
        Some of the data.
    memory : float
        How many bytes there are for all graphs.
    """
    few, more = PROBES
    if len(batch[0]) < more:
        each = size(batch) / len(batch[0])
    else:
        small, large = (size(tuple(part[:n] for part in batch)) for n in PROBES)
        each = (large - small) / (more - few)
    each = max(each, 1.0)
    room = max(min(CHUNK_BYTES, memory / 4), LEAST_CHUNK_BYTES)
    return max(1, int(room / each)), each


def graph_bytes(build: Callable[[Any], Any], batch: Any) -> float:
    """Return how many bytes the graph of a batch keeps alive, its data included.

    The graph is built once and thrown away.
    """
    data = tensors_in(batch)
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        saved.append(tensor)
        return len(saved) - 1

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, saved.__getitem__):
            build(batch)
    except RuntimeError:
        # The transformations of torch.func allow no hooks, so all that is made counts. Any other
        # error comes again.
        made = _Made()
        with made:
            build(batch)
        return float(made.bytes + byte_count(data))
    storages = dict(map(_storage, saved))
    for tensor in data:
        # If the data are views of a larger tensor, only they count.
        storages.pop(_storage(tensor)[0], None)
    # A node whose own output is in the list would otherwise keep itself alive.
    saved.clear()
    return float(sum(storages.values()) + byte_count(data))


def _storage(tensor: Tensor) -> tuple[int, int]:
    """Return where the numbers of a tensor are and how many bytes they take."""
    try:
        return tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
    except RuntimeError:
        # Sparse tensors, and those inside a transformation of torch.func, have no storage.
        return id(tensor), byte_count(tensor)


class _Made(TorchDispatchMode):  # type: ignore[misc]
    """Adds up the bytes of all tensors that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        self.bytes += byte_count([made])
        return made
