"""How much memory there is on a device, and how much a graph holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from hessence.memory import available, require_bytes


def budget(memory: float | None, device: torch.device) -> float:
    """Return the number of bytes asked for, by default half of what is free on the device."""
    if memory is not None:
        return require_bytes(memory)
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0]) / 2
    return available() / 2


def graph_bytes(build: Callable[[], Any], beside: Iterable[Tensor] = ()) -> list[int]:
    """Return the size of each tensor that a graph keeps alive; it is built once and thrown away.

    Tensors that are there beside the graph, such as the data, do not count.
    """
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        saved.append(tensor)
        return len(saved) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, saved.__getitem__):
        build()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    for tensor in beside:
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    # A node whose own output is in the list would otherwise keep itself alive.
    saved.clear()
    return list(storages.values())
