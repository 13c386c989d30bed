r"""Brackets of all eigenvalues of a two-layer network's Hessian, by Weyl's inequalities.

For :math:`H = F + G`, all eigenvalues descending,

.. math:: \lambda_i(H) \le \min_r\,[\lambda_{i-r}(F) + \gamma_{r+1}], \qquad
    \lambda_i(H) \ge \max_s\,[\gamma_{i+s} + \lambda_{p-s}(F)].
"""

from __future__ import annotations

import numpy as np

from hessence._common.arrays import Numbers
from hessence.networks.two_layer.functional import Functional, functional
from hessence.networks.two_layer.gauss_newton import GaussNewton, gauss_newton
from hessence.networks.two_layer.problem import TwoLayer, stable_norm
from hessence.networks.two_layer.slicing import Slicer
from hessence.spectra.brackets import Brackets

REASON = "Weyl's inequalities: a block for each hidden unit, and a Gauss–Newton part of low rank."

CHUNK = 2**13
"""How many eigenvalues are bounded at a time: these stay in the processor's cache."""


def two_layer_brackets(problem: TwoLayer) -> Brackets:
    """Bracket all eigenvalues of H = F + G by those of F and of G."""
    part = gauss_newton(problem)
    of_units = functional(problem, part)
    gamma = part.eigenvalues[: part.rank]
    lower = lower_bounds(of_units.lower, np.maximum(gamma - part.error, 0.0))
    upper = upper_bounds(of_units.upper, gamma + part.error)
    zeros = max(int(((lower == 0) & (upper == 0)).sum()), _exact_zeros(problem, part, of_units))
    found = Brackets(
        lower=lower, upper=upper, zeros=zeros, level=1.0, method="two layers", reason=REASON
    )
    return found.counting_with(Slicer(problem, part, of_units))


def _exact_zeros(problem: TwoLayer, part: GaussNewton, of_units: Functional) -> int:
    r"""Return how many eigenvalues are exactly zero, by the structure alone.

    On the kernel N of F, H is G, and has at most the rank of TN. For a piecewise-linear activation
    without intercepts and without c, the gradient :math:`J^\top s` vanishes on N (there
    :math:`B_j^\top dv = 0` and :math:`B_j\,dw = 0`, and the gradient is
    :math:`(B_j w_j, B_j^\top v_j)`), so that JN has one rank less if s is not zero.
    """
    rank = part.rank
    fixed = bool(problem.b.any()) and not problem.moves_b
    if problem.activation.homogeneous and not problem.moves_c and not fixed:
        gradients = stable_norm(part.at.gradient, 1)
        every = part.rank == part.root.shape[0] * part.root.shape[1]
        if every and bool((gradients > part.gradient_error).any()):
            rank -= 1
    return max(of_units.zeros - rank, problem.unseen)


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
