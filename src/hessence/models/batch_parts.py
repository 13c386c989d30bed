"""What is in a batch: an input and a target, or anything else with tensors in it.

And how much memory its graph holds, and how many samples make a good graph.
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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
    """Return a batch in which a function has changed all contents; several batches go together.

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


def on_tensors(change: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Return a batch in which a function has changed all tensors."""
    return rebuilt(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, batch)


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
    return on_tensors(Tensor.clone, batch)


def widened(batch: Any) -> Any:
    """Return a batch in double precision."""
    return on_tensors(lambda t: t.double() if t.is_floating_point() else t, batch)


def some_rows(batch: Any, rows: slice) -> Any:
    """Return some of the samples: rows of tensors, and of lists with an entry for each."""
    return rebuilt(lambda leaf: leaf[rows] if isinstance(leaf, SEVERAL) else leaf, batch)


def joined(first: Any, second: Any) -> Any:
    """Return the samples of two batches; what all samples share is taken from the first."""

    def join(a: Any, b: Any) -> Any:
        if isinstance(a, Tensor):
            return torch.cat([a, b])
        return a + b if isinstance(a, SEVERAL) else a

    return rebuilt(join, first, second)


def can_join(batch: Any) -> bool:
    """Whether a batch is made of tensors and lists of one length, besides texts and None."""
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


CHUNK_BYTES = 2.0**28
"""No graph of merged batches holds more than this."""

LEAST_CHUNK_BYTES = 2.0**24
"""However little memory there is, batches are not cut into smaller pieces than this."""

PROBES = (2, 4)
"""How many samples are measured. Some models treat a single one in another way."""


def chunk_size(
    size: Callable[[Any], float], batch: tuple[Tensor, Tensor], memory: float, best: float
) -> tuple[int, float]:
    """Return how many samples to put into a graph, and how many bytes each takes there.

    `size` returns how many bytes the graph of a batch holds; two small parts of `batch` are
    measured. There are `memory` bytes for all graphs, and one should hold at most `best` of them.
    """
    few, more = PROBES[0], min(PROBES[1], len(batch[0]))
    if more <= few:
        each = size(batch) / len(batch[0])
    else:
        small, large = (size(tuple(part[:n] for part in batch)) for n in (few, more))
        each = (large - small) / (more - few)
    each = max(each, 1.0)
    room = min(best, max(memory / 4, LEAST_CHUNK_BYTES))
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
