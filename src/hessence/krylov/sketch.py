r"""The range of an operator as a few random vectors see it: the common part of trace estimators.

Images of random unit vectors, Y = HΩ, are orthonormalised as they come, :math:`Y = Q R`. Only Q is
kept. An image that depends on those before it, up to rounding, adds nothing to Q; after such an
image no more are taken, because a random vector has just failed to find anything outside of Q. So
an operator of low rank takes few products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, epsilon
from hessence.krylov.gram_schmidt import take_out
from hessence.krylov.inner import inner_products, lengths
from hessence.krylov.probes import Probes
from hessence.krylov.scaling import ScaledProduct

BLOCK = 16
"""How many vectors to multiply at once."""

NEGLIGIBLE = 8
"""What is left of an image below this many ε of its length is rounding."""


@dataclass(frozen=True)
class Sketch:
    r"""What is known after the products HΩ and HQ.

    Attributes
    ----------
    rows : array (r, n)
        The orthonormal vectors Q, as rows.
    overlaps : array (r, k)
        :math:`Q^\top \Omega`.
    images : array (r, k)
        :math:`R = Q^\top H \Omega`.
    inside : array (r, r)
        :math:`Q^\top H Q`, symmetrised.
    squared_norm : float
        An estimate of the sum of all squared entries of H: n times the mean of ‖Hω‖².
    """

    rows: Array
    overlaps: Numbers
    images: Numbers
    inside: Numbers
    squared_norm: float


def sketch(product: ScaledProduct, probes: Probes, count: int) -> Sketch:
    """Multiply `count` of the probes at most, and then the basis of what comes out."""
    start = probes.draw(0)
    xp, size = api.array_namespace(start), int(start.shape[0])
    rows = xp.empty((count, size), dtype=start.dtype, device=api.device(start))
    images, known, taken, squares = np.zeros((count, count)), 0, 0, 0.0
    while taken < count and known == taken:
        begin, taken = taken, min(taken + BLOCK, count)
        block = product(probes.columns(begin, taken))
        norms = lengths(block)
        squares += float((norms**2).sum())
        for j in range(begin, taken):
            along, rest, (length,) = take_out(rows[:known, :], block[:, j - begin : j - begin + 1])
            images[:known, j] = along[:, 0]
            if length > NEGLIGIBLE * epsilon(rest) * norms[j - begin]:
                images[known, j] = length
                rows[known, :] = rest[:, 0] / float(length)
                known += 1
    rows = rows[:known, :]
    overlaps, inside = np.zeros((known, taken)), np.zeros((known, known))
    for part in blocks(taken):
        columns = probes.columns(part.start, part.stop)
        overlaps[:, part] = inner_products(rows, columns)
    for part in blocks(known):
        image = product(xp.matrix_transpose(rows[part, :]))
        inside[:, part] = inner_products(rows, image)
    inside = (inside + inside.T) / 2
    return Sketch(rows, overlaps, images[:known, :taken], inside, size * squares / taken)


def blocks(count: int) -> Iterator[slice]:
    """Split range(count) into the blocks that are multiplied at once."""
    for begin in range(0, count, BLOCK):
        yield slice(begin, min(begin + BLOCK, count))
