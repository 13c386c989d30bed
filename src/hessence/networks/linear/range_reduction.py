r"""The part of parameter space on which the Hessian of a product of matrices acts at all.

A change :math:`dW_\ell` enters the second variation only through :math:`dW_\ell P_\ell` or
:math:`S_\ell\, dW_\ell`. In bases of the hidden layers that begin with col(P_ℓ) and row(S_ℓ), of
dimensions a and b, everything but the first a columns and the first b rows is flat.

This is the range of any model of layers (:mod:`hessence.models._range`), with P and S known: what a
layer takes lies in col(P), and gradients at what it makes in row(S). Both change bases alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, constant, integers, transpose
from hessence.spectra.frames import TwoSided, span
from hessence.spectra.subspaces import Columns, Subspaces


class RangeReduction:
    """The range of the Hessian of one network, and what is flat.

    `layers` is a ``Chain``, or another object with its ``split`` and ``join``. `before` and `after`
    hold, for each layer, the products P of the layers before it and S of those after it.
    """

    def __init__(self, layers: Any, before: Sequence[Array], after: Sequence[Array]) -> None:
        self._xp = api.array_namespace(*before)
        self._layers = layers
        # The bases are constants: eigenvalues do not depend on them, and so gradients are right.
        self._turns = [
            TwoSided(_basis(transpose(s)), _basis(p)) for p, s in zip(before, after, strict=True)
        ]
        self._reference = before[0]
        self._active = np.concatenate([turn.seen.ravel() for turn in self._turns])

    @property
    def size(self) -> int:
        """The dimension of the eigenproblem that is left."""
        return int(self._active.sum())

    def families(self) -> list[Subspaces]:
        """Return the range, one dense block, and the flat rest."""
        reference = self._reference
        zero = self._xp.zeros((1,), dtype=reference.dtype, device=api.device(reference))
        seen = Columns(lambda columns: self._embed(columns, self._active), self._project)
        flat = Columns(lambda columns: self._embed(columns, ~self._active))
        count = int(self._active.size) - self.size
        return [
            Subspaces(("range",) * self.size, lambda _: seen),
            Subspaces(("flat",), lambda _: flat, count, values=zero),
        ]

    def _embed(self, coordinates: Array, own: Any) -> Array:
        """Embed coordinates (count, n) of the directions in a mask as vectors (p, n)."""
        xp = self._xp
        source = np.full(own.shape, int(own.sum()))
        source[own] = np.arange(int(own.sum()))
        zero = 0 * coordinates[:1, :]
        padded = xp.concat([coordinates, zero])
        return self._turn(xp.take(padded, integers(source, coordinates), axis=0))

    def _project(self, vectors: Array) -> Array:
        """Return the seen coordinates (count, n) of vectors (p, n)."""
        chosen = integers(np.flatnonzero(self._active), vectors)
        return self._xp.take(self._turn(vectors), chosen, axis=0)

    def _turn(self, vectors: Array) -> Array:
        pieces = zip(self._layers.split(vectors), self._turns, strict=True)
        return self._layers.join([turn(piece) for piece, turn in pieces])


def _basis(columns: Array) -> Array:
    basis, rank = span(constant(columns))
    return basis[:, :rank]


def range_size(before: Sequence[Array], after: Sequence[Array]) -> int:
    """Return the ``size`` of a reduction without its bases, which a wide layer makes large."""
    total = 0
    for p, s in zip(before, after, strict=True):
        a, b = (span(constant(m))[1] for m in (p, transpose(s)))
        total += s.shape[1] * a + b * p.shape[0] - a * b
    return total
