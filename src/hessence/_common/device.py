"""How much memory a device has free, and in which precision PyTorch computes on it."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import array_api_compat as api

from hessence._common.arguments import as_number
from hessence._common.arrays import Array

FALLBACK = 2.0**31
"""How many bytes count as free where this cannot be found out."""

DEVICES = ("cpu", "cuda")
"""The kinds of devices that PyTorch may compute on in half precision."""


def available(reference: Array) -> float:
    """Return how many bytes are free on the device of an array, within a container's limits."""
    if api.is_torch_array(reference) and reference.device.type == "cuda":
        import torch

        return float(torch.cuda.mem_get_info(reference.device)[0])
    found = [_free_memory(), _container_memory()]
    return min((number for number in found if number is not None), default=FALLBACK)


def budget(memory: Any, reference: Array) -> float:
    """Return the number of bytes asked for, by default half of what is free on a device."""
    if memory is None:
        return available(reference) / 2
    wanted = "a number of bytes that is not negative"
    return as_number("memory", memory, wanted, lambda number: number >= 0)


def vectors_within(memory: Any, size: int, reference: Array) -> int:
    """Return how many vectors of the reference's type fit into the ``budget``."""
    room = budget(memory, reference)
    bits = api.array_namespace(reference).finfo(reference.dtype).bits
    return int(min(room // (size * bits // 8), 2**62)) if math.isfinite(room) else 2**62


def return_freed_memory() -> None:
    """Return freed memory to the system, before much is allocated again.

    The C library of Linux keeps up to 64 MB of it, and whatever is between blocks in use.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)


def reduced() -> list[str]:
    """Return the kinds of devices on which PyTorch, if loaded, computes in half precision."""
    torch = sys.modules.get("torch")
    return [] if torch is None else [d for d in DEVICES if torch.is_autocast_enabled(d)]


@contextmanager
def full_precision() -> Iterator[None]:
    """Disable autocast, which a training loop may have turned on."""
    with ExitStack() as stack:
        for device in reduced():
            stack.enter_context(sys.modules["torch"].autocast(device, enabled=False))
        yield


def _free_memory() -> float | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * 1024
    return None


def _container_memory() -> float | None:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = (folder / "memory.current").read_text(encoding="ascii").strip()
        parts = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    # Files that were read and may be dropped again count as used.
    spare = next((line.split()[1] for line in parts if line.startswith("inactive_file ")), 0)
    return None if limit == "max" else max(0.0, float(limit) - float(used) + float(spare))
