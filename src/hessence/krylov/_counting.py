r"""Proved bounds on the share of eigenvalues up to a number, from quadrature rules.

For a unit vector v, uniform on the sphere, :math:`\mu_v(x) = v^\top 1[H \le x]\, v` has as its mean
the share Φ(x) of eigenvalues up to x. Gauss' rule brackets it (Chebyshev, Markov & Stieltjes): for
:math:`\theta_j \le x < \theta_{j+1}`,

.. math:: \sum_{k < j} \omega_k \le \mu_v(x) \le \sum_{k \le j + 1} \omega_k,

and where the recurrence has ended, the rule is the measure itself. Over N vectors,

.. math:: P\Bigl(\sup_x |\overline{\mu_v}(x) - \Phi(x)| > t\Bigr) \le 2n\, e^{-N(n + 2) t^2}

(Chen, Trogdon & Ubaru, ICML 2021), for all x at once. With rounding, the recurrence is that of a
slightly different operator, whose eigenvalues are moved by as little (Weyl).
"""

from __future__ import annotations

import math

import numpy as np

from hessence._common.arrays import Numbers
from hessence.krylov._smoothing import Rules

ROUNDED = 4
"""By how much rounding may move an eigenvalue, in units of what it moves a node by."""


def share_bounds(rules: Rules, points: Numbers, level: float) -> tuple[Numbers, Numbers]:
    """Return lower and upper bounds of Φ at all points, which hold together at this level."""
    moved = ROUNDED * rules.rounding
    exact = _ended(rules)
    lower, upper = np.zeros(len(points)), np.zeros(len(points))
    for nodes, weights, ended in zip(rules.nodes, rules.weights, exact, strict=True):
        sums = np.concatenate([[0.0], np.cumsum(weights)])
        below = np.searchsorted(nodes, points - moved, side="right")
        above = np.searchsorted(nodes, points + moved, side="right")
        last = len(nodes)
        if ended:
            lower += sums[below]
            upper += sums[above]
        else:
            lower += sums[np.maximum(below - 1, 0)]
            upper += np.where(above == last, 1.0, sums[np.minimum(above + 1, last)])
    # And what rounding may do to sums of so many weights.
    terms = rules.nodes.shape[1] + rules.probes
    t = deviation(rules.size, rules.probes, level) + terms * np.finfo(np.float64).eps
    # Beyond everything nothing is left to estimate.
    lower = np.where(points == np.inf, 1.0, np.clip(lower / rules.probes - t, 0.0, 1.0))
    upper = np.where(points == -np.inf, 0.0, np.clip(upper / rules.probes + t, 0.0, 1.0))
    return lower, upper


def deviation(size: float, probes: int, level: float) -> float:
    """Return t, how far the mean of the measures may be from Φ; 0 for rules that are exact.

    Examples
    --------
    >>> round(deviation(10**6, 1, 0.95), 4)
    0.0042
    """
    if math.isinf(size):
        return 0.0
    return math.sqrt(math.log(2 * size / (1 - level)) / (probes * (size + 2)))


def _ended(rules: Rules) -> Numbers:
    """Tell which rules are exact: their companions are the same, apart from the padding."""
    steps = rules.nodes.shape[1]
    alike = rules.companion_nodes[:, :steps] == rules.nodes
    alike &= rules.companion_weights[:, :steps] == rules.weights
    return np.asarray(alike.all(axis=1))
