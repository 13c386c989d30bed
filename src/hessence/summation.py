"""Sums that keep their digits when large terms cancel."""

from __future__ import annotations

import array_api_compat as api

from hessence.arrays import Array


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
        total = a + b
        shared = total - a
        lost = (a - (total - shared)) + (b - shared)
        errors = errors[..., :half] + errors[..., half : 2 * half] + lost
        terms = xp.concat([total, odd[0]], axis=-1)
        errors = xp.concat([errors, odd[1]], axis=-1)
    return terms[..., 0] + errors[..., 0]
