"""How much memory a graph holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hessence.models.batch_parts import byte_count, tensors_in


def graph_bytes(build: Callable[[Any], Any], batch: Any) -> list[int]:
    """Return the size of each tensor that the graph of a batch keeps alive, and of its data.

    The graph is built once and thrown away. Inside the transformations of ``torch.func`` there is
    no telling what is kept, and all that is made counts.
    """
    data = tensors_in(batch)
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        saved.append(tensor)
        return len(saved) - 1

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, saved.__getitem__):
            build(batch)
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
        made = _Made()
        with made:
            build(batch)
        return [*made.sizes, *map(byte_count, data)]
    storages = dict(map(_storage, saved))
    for tensor in data:
        # Of what they are views of, only they count.
        storages.pop(_storage(tensor)[0], None)
    # A node whose own output is in the list would otherwise keep itself alive.
    saved.clear()
    return [*storages.values(), *map(byte_count, data)]


def _storage(tensor: Tensor) -> tuple[int, int]:
    """Return where the numbers of a tensor are and how many bytes they take."""
    try:
        return tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
    except RuntimeError:  # a sparse tensor, or one inside a transformation of ``torch.func``
        return id(tensor), byte_count(tensor)


class _Made(TorchDispatchMode):  # type: ignore[misc]
    """Notes the sizes of all tensors that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        self.sizes.append(byte_count([made]))
        return made
