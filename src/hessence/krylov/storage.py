"""How many vectors fit into a part of the memory."""

from __future__ import annotations

import math
from typing import Any

import array_api_compat as api

from hessence import memory as machine
from hessence.arrays import Array


def vectors_within(memory: Any, size: int, reference: Array) -> int:
    """Return how many vectors of the reference's type fit into `memory` bytes.

    By default that is half of what the device has available.
    """
    room = available(reference) / 2 if memory is None else machine.require_bytes(memory)
    bits = api.array_namespace(reference).finfo(reference.dtype).bits
    return int(min(room // (size * bits // 8), 2**62)) if math.isfinite(room) else 2**62


def available(reference: Array) -> float:
    """Return the bytes that are free on the device of an array."""
    if api.is_torch_array(reference) and reference.device.type == "cuda":
        import torch

        return float(torch.cuda.mem_get_info(reference.device)[0])
    return machine.available()
