"""Eigenspaces: a value, a multiplicity, a label, and vectors on demand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arguments import generator
from hessence._common.arrays import Array, like
from hessence.spectra.subspaces import Subspaces


@dataclass(frozen=True)
class Eigenspace:
    """All eigenvectors of one eigenvalue that share a label.

    Attributes
    ----------
    value : array
        The eigenvalue; shaped like the batch if the network is one.
    multiplicity : int, or array of int over a batch
        The dimension of the space.
    label : str
        What the eigenvalue is: ``"outlier"``, ``"bulk"``, ``"flat"``, with a tail such as
        ``"outlier/+cell"`` where there is more to say.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> H = hs.ScalarLinear([1.0, 0.5, 0.0], [0.5, 1.0, 1.0]).hessian([1.0, -1.0], [2.0, -2.0])
    >>> space = H.spectrum()["bulk"][0]
    >>> float(space.value), space.multiplicity
    (1.0, 2)
    >>> z = space.vectors()
    >>> bool(np.allclose(H @ z, space.value * z)), bool(np.allclose(z.T @ z, np.eye(2)))
    (True, True)
    """

    value: Array
    multiplicity: Any
    label: str
    _family: Subspaces | None = field(default=None, repr=False, compare=False)
    _member: int = field(default=0, repr=False, compare=False)
    _index: int = field(default=0, repr=False, compare=False)

    def vectors(self, k: int | None = None) -> Array:
        """Return the first k orthonormal eigenvectors of the space as columns, (p, k).

        The default is all of them. Each costs O(p) time and memory.
        """
        dimension = self._dimension()
        k = dimension if k is None else _require_count(k, dimension)
        xp = api.array_namespace(self.value)
        return self._embed(
            xp.eye(dimension, k, dtype=self.value.dtype, device=api.device(self.value))
        )

    def sample(self, k: int = 1, *, rng: Any = None) -> Array:
        """Return k random orthonormal eigenvectors of the space as columns, (p, k)."""
        dimension = self._dimension()
        normal = generator(rng).normal(size=(dimension, _require_count(k, dimension)))
        return self._embed(like(np.linalg.qr(normal)[0], self.value))

    def _embed(self, copies: Array) -> Array:
        if self._family is None:
            raise ValueError(
                "these eigenvectors are gone: a spectrum read from a file keeps values, "
                "multiplicities and labels only; compute it again to get vectors."
            )
        coordinates = self._family.eigenvector(self._member, self._index)
        return self._family.isometry(self._member)(coordinates, copies)

    def _dimension(self) -> int:
        if isinstance(self.multiplicity, int):
            return self.multiplicity
        raise ValueError(
            "the multiplicity of this space differs over the batch; "
            "pick one network first, as in net[0].hessian(x, y)."
        )


def _require_count(k: Any, most: int) -> int:
    if not isinstance(k, (int, np.integer)):
        raise TypeError(f"k must be an integer, got {type(k).__name__}.")
    if not 0 <= k <= most:
        raise ValueError(f"k must lie between 0 and the multiplicity {most}, got {k}.")
    return int(k)
