"""Sums over the ranks of a data-parallel run: each holds its share of the data."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def parallel() -> bool:
    """Whether this process is one of several that ``torch.distributed`` has joined."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def gather(thing: Any) -> list[Any]:
    """Return what every rank has, in the order of ranks; for small things, on the CPU."""
    things: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(things, thing)
    return things


def sum_tensor(tensor: Tensor) -> Tensor:
    """Add up a tensor over all ranks, in place; alone, leave it as it is."""
    if parallel():
        dist.all_reduce(tensor)
    return tensor


def sum_number(number: float, device: torch.device) -> float:
    """Add up a number over all ranks."""
    if not parallel():
        return number
    return float(sum_tensor(torch.tensor(number, dtype=torch.float64, device=device)))
