"""What random estimators share: their vectors, products in a unit of their own, a quantile.

Random directions have one seed each: the same vectors however they are grouped.
"""

from __future__ import annotations

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, largest, like
from hessence.krylov._operand import Operand, unit

LEVEL = 0.975
"""Of a band on either side: 95 % in all."""


class Probes:
    """Independent vectors (size,), uniform on the unit sphere, of the reference's kind.

    Uniform on the sphere, and not random signs: what a quadratic form of such a vector varies by
    depends on the spectrum alone, and not on the basis (see ``smoothing``).
    """

    def __init__(self, rng: np.random.Generator, count: int, size: int, reference: Array) -> None:
        self._seeds = rng.integers(0, 2**63, size=(count, 2))
        self._size, self._reference = size, reference

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._seeds)

    def draw(self, i: int) -> Array:
        """Return vector i, (n,)."""
        rng = np.random.default_rng([int(word) for word in self._seeds[i]])
        vector = rng.standard_normal(self._size)
        vector /= np.linalg.norm(vector)
        return like(vector, self._reference)

    def columns(self, start: int, stop: int) -> Array:
        """Return vectors start, …, stop − 1 as columns (n, stop − start)."""
        xp = api.array_namespace(self._reference)
        return xp.matrix_transpose(xp.stack([self.draw(i) for i in range(start, stop)]))


class ScaledProduct:
    """Multiplies by H / scale and counts the products.

    The scale is the unit of the first image that is not zero, a power of two, and 1 until then.
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


def student(freedom: int) -> float:
    """Return the quantile of Student's distribution that a band of 95 % takes."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, LEVEL))
