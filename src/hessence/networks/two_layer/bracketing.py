"""Brackets of all eigenvalues of a two-layer network's Hessian."""

from __future__ import annotations

import numpy as np

from hessence.networks.two_layer.functional import Functional, functional
from hessence.networks.two_layer.gauss_newton import GaussNewton, gauss_newton
from hessence.networks.two_layer.problem import TwoLayer
from hessence.networks.two_layer.slicing import Slicer
from hessence.networks.two_layer.weyl import lower_bounds, upper_bounds
from hessence.spectra.brackets import Brackets

REASON = "Weyl's inequalities: a block for each hidden unit, and a Gauss–Newton part of low rank."


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
        gradients = np.linalg.norm(part.at.gradient, axis=1)
        every = part.rank == part.root.shape[0] * part.root.shape[1]
        if every and bool((gradients > part.gradient_error).any()):
            rank -= 1
    return max(of_units.zeros - rank, problem.unseen)
