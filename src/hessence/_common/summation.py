"""Sums and products that keep their digits when large terms cancel."""

from __future__ import annotations

import math

import array_api_compat as api

from hessence._common.arrays import Array, epsilon


def compensated_sum(terms: Array) -> Array:
    """Sum along the last axis as if in twice the working precision.

    A pairwise tree in which every addition also yields its own rounding error (Knuth's two-sum);
    the errors are summed beside and added at the end. Works on any array library, and PyTorch's
    gradient of it is the gradient of the plain sum.

    Examples
    --------
    >>> import numpy as np
    >>> compensated_sum(np.asarray([1e16, 1.0, -1e16]))
    np.float64(1.0)
    """
    xp = api.array_namespace(terms)
    errors = xp.zeros_like(terms)
    while terms.shape[-1] > 1:
        half = int(terms.shape[-1]) // 2
        odd = terms[..., 2 * half :], errors[..., 2 * half :]
        a, b = terms[..., :half], terms[..., half : 2 * half]
        total, lost = exact_sum(a, b)
        errors = errors[..., :half] + errors[..., half : 2 * half] + lost
        terms = xp.concat([total, odd[0]], axis=-1)
        errors = xp.concat([errors, odd[1]], axis=-1)
    return terms[..., 0] + errors[..., 0]


def exact_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum of a and b, and what the rounding has lost (Knuth)."""
    total = a + b
    shared = total - a
    return total, (a - (total - shared)) + (b - shared)


def exact_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded product of a and b, and what the rounding has lost.

    Dekker's product, without a fused multiply-add. PyTorch's gradient of what is lost is 0.

    Examples
    --------
    >>> import numpy as np
    >>> product, lost = exact_product(np.asarray(1 + 2.0**-30), np.asarray(1 + 2.0**-30))
    >>> float(lost) == 2.0**-60
    True
    """
    xp = api.array_namespace(a, b)
    product = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    lost = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, xp.where(xp.isfinite(lost), lost, xp.zeros_like(lost))


def _split(a: Array) -> tuple[Array, Array]:
    """Return two parts of half the digits each, which add up to a (Veltkamp)."""
    xp = api.array_namespace(a)
    half = 2.0 ** math.ceil((1 - math.log2(epsilon(a))) / 2)
    # Shrunk by a power of two where multiplying by the splitter could overflow.
    one = xp.ones_like(a)
    shrink = xp.where(xp.abs(a) > float(xp.finfo(a.dtype).max) / (4 * half), one / (4 * half), one)
    small = shrink * a
    shifted = (half + 1) * small
    high = shifted - (shifted - small)
    return high / shrink, (small - high) / shrink
