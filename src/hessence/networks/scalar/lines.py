r"""The lines along which gradient descent moves an inner product.

The gradient of a loss of :math:`g = \langle w, v \rangle` is :math:`\ell'(g)` times (w, v)
swapped. So w + v is multiplied by :math:`1 - \eta\ell'(g)` and w − v by :math:`1 + \eta\ell'(g)`.
Momentum from rest, weight decay, mini-batches and sharpness-aware minimisation keep to the same
two lines, since they only add multiples of such steps. With P and M the lengths of w + v and
w − v, negative where they have turned around,

.. math:: g = \tfrac14(P - M)(P + M), \quad \|w\|^2 + \|v\|^2 = \tfrac12(P^2 + M^2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hessence._common.arrays import Numbers, nonzero
from hessence.networks.scalar.gram import Gram, gram

OPPOSITE = np.asarray([1.0, -1.0])
"""A step subtracts a multiple of w + v and adds the same multiple of w − v."""


def gram_of(lengths: Numbers) -> Gram:
    """Return the Gram numbers where w ± v have the lengths (..., 2)."""
    plus, minus = lengths[..., 0], lengths[..., 1]
    inner = (plus - minus) * (plus + minus) / 4
    return Gram(inner, (plus * plus + minus * minus) / 2, plus * plus, minus * minus)


def squared_length(change: Numbers) -> Numbers:
    """Return the square of how far (w, v) moves for a change (..., 2) of the lengths."""
    return np.asarray(np.sum(change * change, axis=-1) / 2)


@dataclass(frozen=True, eq=False)
class Lines:
    """The lines through weights w, v (..., m), for C products of some of the units each.

    Attributes
    ----------
    masks : array (C, m)
        1 where a unit belongs to a product, else 0; every unit belongs to one.
    """

    w: Numbers
    v: Numbers
    masks: Numbers

    @cached_property
    def lengths(self) -> Numbers:
        """The lengths of w ± v in each product, (..., C, 2)."""
        w, v = (self.masks * a[..., None, :] for a in (self.w, self.v))
        # At size 1, where no square underflows; a power of two leaves all digits as they are.
        largest = np.maximum(np.abs(w), np.abs(v)).max(axis=-1, keepdims=True)
        size = np.ldexp(1.0, np.frexp(largest)[1])
        g = gram(w / size, v / size)
        return np.asarray(size * np.sqrt(np.stack([g.plus, g.minus], axis=-1)))

    def multiples(self, lengths: Numbers) -> Numbers:
        """Return by what w ± v have been multiplied, (..., C, 2); 1 on a line of length zero."""
        still = self.lengths == 0
        return np.where(still, 1.0, lengths / nonzero(self.lengths))

    def spread(self, lengths: Numbers) -> tuple[Numbers, Numbers]:
        """Return the w and the v where w ± v have the given lengths."""
        alpha, beta = np.moveaxis(self.multiples(lengths), -1, 0)
        total, difference = self.w + self.v, self.w - self.v
        # The multiple of the shorter of w ± v may be large, so that only itself may be added.
        opposed = self.lengths[..., 0] < self.lengths[..., 1]
        own, half = np.where(opposed, beta, alpha) @ self.masks, ((alpha - beta) / 2) @ self.masks
        turned = (opposed * 1.0) @ self.masks > 0
        w = own * self.w + half * np.where(turned, total, -difference)
        return w, own * self.v + half * np.where(turned, total, difference)
