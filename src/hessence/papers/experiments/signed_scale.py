"""A scale for eigenvalues of both signs and many sizes."""

from __future__ import annotations

import math
from typing import Any


def signed_scale(ax: Any, linear_width: float) -> None:
    """Make the vertical axis linear up to about `linear_width` and logarithmic beyond, smoothly.

    Ticks are zero and powers of ten that have room beside it. Call it after drawing.
    """
    ax.set_yscale("asinh", linear_width=linear_width)
    low, high = ax.get_ylim()
    largest = max(abs(low), abs(high), 10 * linear_width)
    first, last = math.ceil(math.log10(linear_width)), math.floor(math.log10(largest))
    sizes = [10.0**power for power in range(first, last + 1)]
    ax.set_yticks([*(-size for size in reversed(sizes)), 0, *sizes],
                  [*(f"$-10^{{{p}}}$" for p in range(last, first - 1, -1)), "0",
                   *(f"$10^{{{p}}}$" for p in range(first, last + 1))])  # fmt: skip
    ax.set_yticks([], minor=True)
    ax.set_ylim(low, high)
