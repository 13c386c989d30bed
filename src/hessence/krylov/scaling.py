"""Products in units of a power of two, so that no square of a coefficient over- or underflows."""

from __future__ import annotations

from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, largest
from hessence.krylov.operands import Operand

ORDINARY = (2.0**-32, 2.0**16)
"""Entries of images between these have squares, and sums of them, in single precision too."""


def unit(peak: Any) -> Numbers:
    """Return a power of two near the largest entry of an image, 1 if that is of ordinary size."""
    low, high = ORDINARY
    power = np.ldexp(1.0, np.frexp(peak)[1] - 1)
    return np.where((low <= peak) & (peak <= high), 1.0, power)


class ScaledProduct:
    """Multiplies by H / scale and counts the products.

    Attributes
    ----------
    scale : float
        The unit of the first image that is not zero; 1 until then. Dividing by it is exact.
    products : int
        How many vectors were multiplied so far.
    """

    def __init__(self, subject: Operand) -> None:
        self._subject = subject
        self._known = False
        self.scale = 1.0
        self.products = 0

    def __call__(self, columns: Array) -> Array:
        """Multiply columns (n, b)."""
        images = self._subject(columns)
        self.products += int(columns.shape[-1])
        if not self._known:
            xp = api.array_namespace(images)
            peak = largest(xp.max(xp.abs(images)))
            if peak > 0:
                self.scale, self._known = float(unit(peak)), True
        return images if self.scale == 1 else images / self.scale
