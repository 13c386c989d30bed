"""How much memory there is, and how many vectors fit into a part of it."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import array_api_compat as api
import numpy as np

from hessence.arrays import Array

UNKNOWN = 2**32
"""What is taken to be available where the machine does not tell."""


def vectors_within(memory: Any, size: int, reference: Array) -> int:
    """Return how many vectors of the reference's type fit into `memory` bytes.

    By default that is half of what the device has available.
    """
    if memory is None:
        memory = available(reference) / 2
    elif isinstance(memory, bool) or not isinstance(memory, (int, float, np.number)):
        raise TypeError(f"memory must be a number of bytes, got {memory!r}.")
    elif not memory > 0:
        raise ValueError(f"memory must be a positive number of bytes, got {memory!r}.")
    bits = api.array_namespace(reference).finfo(reference.dtype).bits
    return int(min(memory // (size * bits // 8), 2**62)) if math.isfinite(memory) else 2**62


def available(reference: Array) -> int:
    """Return the bytes that are free on the device of an array."""
    if api.is_torch_array(reference) and reference.device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(reference.device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return int(kilobytes) * 1024
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return UNKNOWN
