"""How many samples make a good graph: small enough for memory and cache, and no smaller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 2.0**28
"""No graph of merged batches holds more than this."""

LEAST_CHUNK_BYTES = 2.0**24
"""However little memory there is, batches are not cut into smaller pieces than this."""

CACHED_BYTES = 2.0**20
"""On a CPU no tensor of a plain stack should take more than this for each thread: its products are
faster if what they pass on stays in the cache. Larger graphs only got slower."""

WEIGHTS = 4
"""But a graph should hold this many times the bytes of the weights, which are read, and their image
written, once for every graph."""

PROBES = (2, 4)
"""How many samples are measured. Some models treat a single one in another way."""


def chunk_size(
    sizes: Callable[[Any], list[int]],
    batch: tuple[Tensor, Tensor],
    memory: float,
    *,
    cached: bool,
) -> tuple[int, float]:
    """Return how many samples to put into a graph, and how many bytes each takes there.

    Parameters
    ----------
    sizes : callable
        Tells how many bytes each tensor takes that the graph of a batch holds.
    batch : tuple of Tensor
        Some of the data.
    memory : float
        How many bytes there are for all graphs.
    cached : bool
        Whether tensors should fit into the cache.
    """
    room = max(min(CHUNK_BYTES, memory / 4), LEAST_CHUNK_BYTES)
    few, more = PROBES
    if len(batch[0]) < more:
        each = max(sum(sizes(batch)) / len(batch[0]), 1.0)
        return max(1, int(room / each)), each
    small, large = (sizes(tuple(part[:n] for part in batch)) for n in PROBES)
    each = max((sum(large) - sum(small)) / (more - few), 1.0)
    if cached and batch[0].device.type == "cpu" and len(small) == len(large):
        growth = max((b - a for a, b in zip(small, large, strict=True)), default=0)
        fitting = CACHED_BYTES * torch.get_num_threads() * (more - few) / max(growth, 1)
        weights = sum(small) - few * each
        room = min(room, max(fitting * each, WEIGHTS * weights))
    return max(1, int(room / each)), each
