"""What is in a batch: an input and a target, or anything else with tensors in it."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_pair(batch: Any) -> bool:
    """Whether a batch can be an input and a target."""
    return isinstance(batch, (tuple, list)) and len(batch) == 2


def first_length(batch: Any) -> int:
    """Return the number of samples: the length of the first tensor in the batch."""
    for tensor in tensors_in(batch):
        if tensor.ndim:
            return int(tensor.shape[0])
    raise ValueError(
        "data must have batches with at least one tensor whose first dimension counts samples."
    )


def tensors_in(batch: Any) -> list[Tensor]:
    """Return all tensors of nested tuples, lists and dictionaries."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (tuple, list)):
        return [tensor for part in batch for tensor in tensors_in(part)]
    return []
