r"""Weyl's inequalities for a sum of two symmetric matrices, one of them of low rank.

For :math:`H = F + G`, all eigenvalues descending,

.. math:: \lambda_i(H) \le \min_r\,[\lambda_{i-r}(F) + \gamma_{r+1}], \qquad
    \lambda_i(H) \ge \max_s\,[\gamma_{i+s} + \lambda_{p-s}(F)].
"""

from __future__ import annotations

import numpy as np

from hessence._common.arrays import Numbers

CHUNK = 2**13
"""How many eigenvalues are bounded at a time: these stay in the processor's cache."""


def upper_bounds(functional: Numbers, gamma: Numbers) -> Numbers:
    """Return upper bounds of the eigenvalues of F + G from those of F (p,) and of G (r,).

    The eigenvalues of G beyond the first r are zero.

    Examples
    --------
    >>> upper_bounds(np.asarray([1.0, 0.0, -2.0]), np.asarray([5.0]))
    array([6., 1., 0.])
    """
    shifts = np.concatenate([gamma, [0.0]])[: len(functional)]
    # Of equal ones the first is best, as F's eigenvalues descend.
    shifts_of = [r for r in range(len(shifts)) if r == 0 or shifts[r] < shifts[r - 1]]
    found = functional + shifts[0]
    for start in range(0, len(functional), CHUNK):
        part = found[start : start + CHUNK]
        sums = np.empty_like(part)
        for r in shifts_of:
            skipped = max(r - start, 0)
            if skipped >= len(part):
                break
            from_f = functional[start + skipped - r : start + len(part) - r]
            np.add(from_f, shifts[r], out=sums[skipped:])
            np.minimum(part[skipped:], sums[skipped:], out=part[skipped:])
    return np.minimum.accumulate(_rounded(found, np.inf))


def lower_bounds(functional: Numbers, gamma: Numbers) -> Numbers:
    """Return lower bounds of the eigenvalues of F + G, as ``upper_bounds`` does upper ones.

    Examples
    --------
    >>> lower_bounds(np.asarray([1.0, 0.0, -2.0]), np.asarray([5.0]))
    array([ 3.,  0., -2.])
    """
    size, rank = len(functional), min(len(gamma), len(functional))
    smallest = gamma[size - 1] if rank == size else 0.0
    found = functional + smallest
    ascending = functional[::-1]
    for i in range(rank):
        # λ_{i+s}(G) is not zero for s < rank − i.
        best = np.max(gamma[i:rank] + ascending[: rank - i])
        found[i] = max(found[i], best)
    return np.maximum.accumulate(_rounded(found, -np.inf)[::-1])[::-1]


def _rounded(bounds: Numbers, outward: float) -> Numbers:
    """Round outward what a sum may have rounded inward; zeros are exact, and stay."""
    return np.where(bounds == 0, 0.0, np.nextafter(bounds, outward))
