"""Products in units of a power of two, so that no square of a coefficient over- or underflows."""

from __future__ import annotations

import array_api_compat as api
import numpy as np

from hessence.arrays import Array, largest
from hessence.krylov.operands import Operand


class ScaledProduct:
    """Multiplies by H / scale and counts the products.

    Attributes
    ----------
    scale : float
        A power of two near the largest entry of the first image that is not zero; 1 until then.
        Dividing by it is exact.
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
                self.scale = float(np.ldexp(1.0, int(np.frexp(peak)[1]) - 1))
                self._known = True
        return images / self.scale
