"""What is in a batch: an input and a target, or anything else with tensors in it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
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


def rebuilt(change: Callable[..., Any], part: Any, *others: Any) -> Any:
    """Return a batch, or several alike put together, with all that is in its containers changed.

    Containers are dictionaries, lists and tuples, dataclasses and other objects whose attributes
    are tensors; they stay of their kind. A list of texts counts as one thing.

    Examples
    --------
    >>> rebuilt(lambda a, b: a + b, {"x": 1, "y": (2, 3)}, {"x": 10, "y": (20, 30)})
    {'x': 11, 'y': (22, 33)}
    """
    inner = _contents(part)
    if inner is None:
        return change(part, *others)
    more = [_contents(other) or {} for other in others]
    if any(other.keys() != inner.keys() for other in more):
        raise ValueError("the batches do not hold the same.")
    return _refilled(
        part, {key: rebuilt(change, inner[key], *(other[key] for other in more)) for key in inner}
    )


def leaves_in(batch: Any) -> list[Any]:
    """Return all that is in nested containers, see ``rebuilt``."""
    inner = _contents(batch)
    if inner is None:
        return [batch]
    return [leaf for part in inner.values() for leaf in leaves_in(part)]


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
    """Return some of the samples: of tensors, and of texts if there is one for each."""
    return rebuilt(lambda leaf: leaf[rows] if isinstance(leaf, (Tensor, list)) else leaf, batch)


def joined(first: Any, second: Any) -> Any:
    """Return the samples of two batches; what is the same for all samples is that of the first."""

    def join(a: Any, b: Any) -> Any:
        if isinstance(a, Tensor):
            return torch.cat([a, b])
        return a + b if isinstance(a, list) else a

    return rebuilt(join, first, second)


def _contents(part: Any) -> dict[Any, Any] | None:
    """Return what is in a container, by key, place or name; None for anything else."""
    if isinstance(part, Tensor):
        return None
    if isinstance(part, Mapping):
        return dict(part.items())
    if isinstance(part, (list, tuple)):
        texts = isinstance(part, list) and all(isinstance(text, str) for text in part)
        return None if texts and part else dict(enumerate(part))
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    attributes = getattr(part, "__dict__", {})
    if not callable(part) and any(isinstance(value, Tensor) for value in attributes.values()):
        return dict(attributes)
    return None


def _refilled(part: Any, contents: dict[Any, Any]) -> Any:
    """Return a container of the same kind, if such can be made, with other contents."""
    values = list(contents.values())
    if type(part) in (dict, list, tuple):
        return contents if isinstance(part, dict) else type(part)(values)
    try:
        if isinstance(part, tuple):
            return type(part)(*values) if hasattr(part, "_fields") else type(part)(values)
        fresh = copy.copy(part)
        if isinstance(part, Mapping):
            for key, value in contents.items():
                fresh[key] = value
        elif isinstance(part, list):
            fresh[:] = values
        else:
            for name, value in contents.items():
                object.__setattr__(fresh, name, value)  # also of a frozen one
        return fresh
    except Exception:  # of a kind that is made, or filled, in another way
        if isinstance(part, Mapping):
            return contents
        return values if isinstance(part, list) else tuple(values)
