r"""The part of parameter space on which the Hessian of a product of matrices acts at all.

A change :math:`dW_\ell` enters the second variation only through :math:`dW_\ell P_\ell` or
:math:`S_\ell\, dW_\ell`. In bases of the hidden layers that begin with col(P_ℓ) and row(S_ℓ), of
dimensions a and b, everything but the first a columns and the first b rows is flat.

This is the range of any model of layers (:mod:`hessence.models._range`), with P and S known: what a
layer takes lies in col(P), and gradients at what it makes in row(S).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hessence._common.arrays import Array, constant, transpose
from hessence.spectra.frames import TwoSided, span
from hessence.spectra.subspaces import Range


def range_of(layers: Any, before: Sequence[Array], after: Sequence[Array]) -> Range:
    """Return the range of the Hessian of one network.

    `layers` is a ``Chain``, or another object with its ``split`` and ``join``. `before` and `after`
    hold, for each layer, the products P of the layers before it and S of those after it.
    """
    # The bases are constants: eigenvalues do not depend on them, and so gradients are right.
    turns = [TwoSided(_basis(transpose(s)), _basis(p)) for p, s in zip(before, after, strict=True)]

    def turn(vectors: Array) -> Array:
        pieces = zip(layers.split(vectors), turns, strict=True)
        return layers.join([turned(piece) for piece, turned in pieces])

    return Range(turn, np.concatenate([turned.seen.ravel() for turned in turns]), before[0])


def _basis(columns: Array) -> Array:
    basis, rank = span(constant(columns))
    return basis[:, :rank]


def range_size(before: Sequence[Array], after: Sequence[Array]) -> int:
    """Return the ``size`` of a range without its bases, which a wide layer makes large."""
    total = 0
    for p, s in zip(before, after, strict=True):
        a, b = (span(constant(m))[1] for m in (p, transpose(s)))
        total += s.shape[1] * a + b * p.shape[0] - a * b
    return total
