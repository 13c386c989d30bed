"""What is in a batch: an input and a target, or anything else with tensors in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


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
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (tuple, list)):
        return [tensor for part in batch for tensor in tensors_in(part)]
    return []


def byte_count(batch: Any) -> int:
    """Return how many bytes all tensors take, as if they were dense."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(batch))


def copied(batch: Any) -> Any:
    """Return a batch with copies of its tensors."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, batch)


def some_rows(batch: Any, rows: slice) -> Any:
    """Return some of the samples: of tensors, and of texts if there is one for each."""

    def cut(leaf: Any) -> Any:
        return leaf[rows] if isinstance(leaf, (Tensor, list)) else leaf

    return tree_map(cut, batch, is_leaf=_is_texts)


def joined(first: Any, second: Any) -> Any:
    """Return the samples of two batches; what is the same for all samples is that of the first."""

    def join(a: Any, b: Any) -> Any:
        if isinstance(a, Tensor):
            return torch.cat([a, b])
        return a + b if isinstance(a, list) else a

    return tree_map(join, first, second, is_leaf=_is_texts)


def _is_texts(part: Any) -> bool:
    """Whether this is a text for each sample."""
    return isinstance(part, list) and all(isinstance(text, str) for text in part)
