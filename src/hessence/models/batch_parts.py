"""What is in a batch: an input and a target, or anything else with tensors in it."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

SEVERAL = (Tensor, list, tuple)
"""What may hold something for each sample."""

_HOLDERS = (*SEVERAL, Mapping)


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


def rebuilt(change: Callable[..., Any], part: Any, *others: Any) -> Any:
    """Return a batch, or several alike put together, with all that is in its containers changed.

    Containers are dictionaries, lists and tuples with tensors in them, and objects, such as
    dataclasses, that have tensors for attributes. A list of texts or numbers counts as one thing.

    Examples
    --------
    >>> rebuilt(lambda a, b: a + b, {"x": 1, "y": {"z": 3}}, {"x": 10, "y": {"z": 30}})
    {'x': 11, 'y': {'z': 33}}
    """
    inner = _contents(part)
    if inner is None:
        return change(part, *others)
    more = [_contents(other) or {} for other in others]
    if any(other.keys() != inner.keys() for other in more):
        raise ValueError("the batches do not hold the same.")
    new = {
        key: rebuilt(change, value, *(other[key] for other in more)) for key, value in inner.items()
    }
    return _refilled(part, new)


def leaves_in(batch: Any) -> list[Any]:
    """Return all that is in nested containers, see ``rebuilt``."""
    inner = _contents(batch)
    if inner is None:
        return [batch]
    return [leaf for value in inner.values() for leaf in leaves_in(value)]


def tensors_in(batch: Any) -> list[Tensor]:
    """Return all tensors in nested containers."""
    return [leaf for leaf in leaves_in(batch) if isinstance(leaf, Tensor)]


def byte_count(batch: Any) -> int:
    """Return how many bytes all tensors take, as if they were dense."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(batch))


def copied(batch: Any) -> Any:
    """Return a batch with copies of its tensors."""
    return rebuilt(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, batch)


def some_rows(batch: Any, rows: slice) -> Any:
    """Return some of the samples: of tensors, and of lists with something for each."""
    return rebuilt(lambda leaf: leaf[rows] if isinstance(leaf, SEVERAL) else leaf, batch)


def joined(first: Any, second: Any) -> Any:
    """Return the samples of two batches; what is the same for all samples is that of the first."""

    def join(a: Any, b: Any) -> Any:
        if isinstance(a, Tensor):
            return torch.cat([a, b])
        return a + b if isinstance(a, SEVERAL) else a

    return rebuilt(join, first, second)


def can_join(batch: Any) -> bool:
    """Whether a batch is of tensors and lists with as many samples each, beside texts and None."""
    leaves = leaves_in(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if not all(isinstance(leaf, (*SEVERAL, str, type(None))) for leaf in leaves) or not tensors:
        return False
    if any(tensor.ndim == 0 or tensor.layout != torch.strided for tensor in tensors):
        return False
    return len({len(leaf) for leaf in leaves if isinstance(leaf, SEVERAL)}) == 1


def _contents(part: Any) -> dict[Any, Any] | None:
    """Return what is in a container, by key, place or name; None for anything else."""
    if isinstance(part, Tensor):
        return None
    if isinstance(part, Mapping):
        return dict(part.items())
    if isinstance(part, (list, tuple)):
        return dict(enumerate(part)) if any(map(_holds_tensors, part)) else None
    attributes = {} if callable(part) else getattr(part, "__dict__", {})
    if any(isinstance(value, Tensor) for value in attributes.values()):
        return {name: value for name, value in attributes.items() if isinstance(value, _HOLDERS)}
    return None


def _holds_tensors(part: Any) -> bool:
    """Whether there may be tensors in a part: in anything but numbers, texts and lists of them."""
    if part is None or isinstance(part, (bool, int, float, str)):
        return False
    return any(map(_holds_tensors, part)) if isinstance(part, (list, tuple)) else True


def _refilled(part: Any, contents: dict[Any, Any]) -> Any:
    """Return a container of the same kind with other contents; of mappings, a plain dictionary.

    A dictionary of a kind of its own is copied and filled, as tokenizers' batches can be.
    """
    values = list(contents.values())
    if isinstance(part, tuple):
        return type(part)(*values) if hasattr(part, "_fields") else tuple(values)
    if isinstance(part, list):
        return values
    if type(part) is dict or (isinstance(part, Mapping) and not isinstance(part, (dict, UserDict))):
        return contents
    fresh: Any = copy.copy(part)
    (fresh if isinstance(part, Mapping) else vars(fresh)).update(contents)
    return fresh
