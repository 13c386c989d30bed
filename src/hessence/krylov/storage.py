"""How many vectors fit into a part of the memory."""

from __future__ import annotations

import math
from typing import Any

import array_api_compat as api

from hessence._common.arrays import Array
from hessence._common.memory import budget


def vectors_within(memory: Any, size: int, reference: Array) -> int:
    """Return how many vectors of the reference's type fit into `memory` bytes.

    By default that is half of what the device has available.
    """
    room = budget(memory, reference)
    bits = api.array_namespace(reference).finfo(reference.dtype).bits
    return int(min(room // (size * bits // 8), 2**62)) if math.isfinite(room) else 2**62
