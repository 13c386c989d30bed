"""Random directions, one seed each: the same vectors however they are grouped."""

from __future__ import annotations

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, like


class Probes:
    """Independent vectors, uniform on the unit sphere.

    Uniform on the sphere, and not random signs: what a quadratic form of such a vector varies by
    depends on the spectrum alone, and not on the basis (see ``smoothing``).

    Parameters
    ----------
    rng : numpy.random.Generator
        Where the seeds come from; it is used here and not again.
    count, size : int
        How many vectors, of how many entries.
    reference : array
        Some array of the kind, type and device that they shall have.
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
