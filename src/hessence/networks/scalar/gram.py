r"""The few numbers about (w, v) that the spectrum of a loss of ⟨w, v⟩ depends on.

They are kept to full relative accuracy, and so are the outliers that follow from them.
"""

from __future__ import annotations

from typing import NamedTuple

import array_api_compat as api

from hessence._common.arrays import Array, nonzero

CACHE = 2**15
"""How many entries of w ± v are formed and summed at once."""


class Gram(NamedTuple):
    """The numbers about (w, v) that a spectrum depends on, each of the batch's shape.

    Attributes
    ----------
    inner : array
        ⟨w, v⟩.
    norm : array
        ‖w‖² + ‖v‖².
    plus, minus : array
        ‖w + v‖² and ‖w − v‖².
    """

    inner: Array
    norm: Array
    plus: Array
    minus: Array

    def at(self, index: int | slice | None) -> Gram:
        """Index the products; None adds an axis for a single one."""
        return Gram(*(number[..., index] for number in self))


def gram(w: Array, v: Array) -> Gram:
    """Return the Gram numbers of vectors along the last axis, each to full relative accuracy."""
    xp = api.array_namespace(w, v)
    inner = xp.vecdot(w, v)
    norm = xp.vecdot(w, w) + xp.vecdot(v, v)
    plus, minus = norm + 2 * inner, norm - 2 * inner
    # Three dot products give all four numbers unless w is close to ±v; only then are the sum or the
    # difference formed, whose norm the subtraction above would have lost.
    if bool(xp.any(16 * plus < norm)):
        plus = _squared_sum(w, v, 1)
    if bool(xp.any(16 * minus < norm)):
        minus = _squared_sum(w, v, -1)
    return Gram(inner, norm, plus, minus)


def _squared_sum(w: Array, v: Array, sign: int) -> Array:
    """Return ‖w ± v‖², in pieces that fit in the cache."""
    xp = api.array_namespace(w, v)
    total = xp.zeros_like(xp.vecdot(w[..., :1], v[..., :1]))
    m = int(w.shape[-1])
    for start in range(0, m, CACHE):
        own = slice(start, min(start + CACHE, m))
        piece = w[..., own] + v[..., own] if sign > 0 else w[..., own] - v[..., own]
        total = total + xp.vecdot(piece, piece)
    return total


def outlier_pair(
    numbers: Gram, gradient: Array, loss_hessian: Array, far_gradient: Array | None = None
) -> tuple[Array, Array]:
    r"""Return the two eigenvalues of :math:`\delta K + s u u^\top` outside the bulk, larger first.

    With :math:`T = s(\|w\|^2+\|v\|^2)` and
    :math:`R^2 = 4(\delta + s g)^2 + s^2 \|w+v\|^2 \|w-v\|^2` they are :math:`(T \pm R)/2`. The one
    in which T and R cancel is taken from the product of the two, :math:`-\delta(\delta + 2 s g)`,
    instead; `far_gradient` is its second factor where the caller has it to more digits.
    """
    xp = api.array_namespace(numbers.inner)
    coupled = loss_hessian * numbers.inner
    trace = loss_hessian * numbers.norm
    centre = 2 * (gradient + coupled)
    scale = nonzero(xp.maximum(xp.abs(centre), xp.abs(trace)))
    spread = (loss_hessian * numbers.plus / scale) * (loss_hessian * numbers.minus / scale)
    radius = scale * root((centre / scale) ** 2 + spread)
    outer = xp.where(trace < 0, trace - radius, trace + radius) / 2
    # Both factors of the product are at most |outer|, so the quotient neither over- nor underflows.
    far = gradient + 2 * coupled if far_gradient is None else far_gradient
    inner = -gradient * (far / nonzero(outer))
    return xp.where(trace < 0, inner, outer), xp.where(trace < 0, outer, inner)


def root(squares: Array) -> Array:
    """Return square roots with derivative 0, not ∞, at 0: eigenvalues are even in these lengths."""
    xp = api.array_namespace(squares)
    return xp.where(squares == 0, squares, xp.sqrt(nonzero(squares)))
