r"""Brackets of any model's eigenvalues: the dual, and the ends of the functional part.

With :math:`H = G + M`, all eigenvalues :math:`\gamma_i` of the Gauss–Newton part G are those of the
dual, and Weyl's inequalities give
:math:`\gamma_i + \lambda_{\min}(M) \le \lambda_i(H) \le \gamma_i + \lambda_{\max}(M)`.

Lanczos never leaves the spectrum of M, so its Ritz values θ only prove that M reaches as far as
they do. A *ceiling* needs a random start: after k steps from a vector uniform on the sphere,

.. math:: P\big(\lambda_{\max} - \theta_{\max} > \epsilon(\lambda_{\max} - \lambda_{\min})\big)
    \le 1.648\sqrt p\, e^{-\sqrt\epsilon\,(2k-1)}

(Kuczyński and Woźniakowski, SIAM J. Matrix Anal. Appl. 13, 1992, Theorem 4.2; M may be shifted, so
that it need not be definite). The same holds for the other end.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hessence._common.arguments import Seed, as_level, require_int
from hessence._common.arrays import to_numpy
from hessence.krylov.density import density
from hessence.models._dual import NoDual, dual_spectrum
from hessence.spectra.brackets import Brackets

ROUNDING = 1e-12
"""What products and Lanczos may round off, in ‖M‖."""


def dual_brackets(H: Any, level: float, steps: int, rng: Seed, reason: str) -> Brackets:
    """Bracket all eigenvalues of a model's Hessian at a level of confidence."""
    epsilon = ceiling_share(H.shape[0], steps, level)
    try:
        ggn = dual_spectrum(H.ggn)
    except NoDual as refusal:
        raise ValueError(f"model has no brackets here: {reason}, and {refusal}") from refusal
    lowest, highest = density(H.functional, probes=1, steps=steps, rng=rng).ends
    extent = (highest - lowest) / (1 - 2 * epsilon)
    slack = epsilon * extent + ROUNDING * max(abs(lowest), abs(highest), extent)
    gamma, errors = to_numpy(ggn.eigenvalues), to_numpy(ggn.errors)
    lower, upper = gamma - errors + (lowest - slack), gamma + errors + (highest + slack)
    return Brackets(
        lower=np.maximum.accumulate(np.nextafter(lower, -np.inf)[::-1])[::-1],
        upper=np.minimum.accumulate(np.nextafter(upper, np.inf)),
        zeros=0,
        level=level,
        method="dual",
        reason=f"the Gauss–Newton part by the dual, and the ends of the rest; {reason}.",
    )


def ceiling_share(size: int, steps: int, level: float) -> float:
    """Return ε, such that both ends hold with the probability `level` after so many steps.

    Examples
    --------
    >>> round(ceiling_share(1_000_000, 64, 0.99), 4)
    0.01
    """
    require_int("steps", steps, 1)
    level = as_level(level)
    epsilon = (math.log(1.648 * math.sqrt(size) / ((1 - level) / 2)) / (2 * steps - 1)) ** 2
    if epsilon >= 0.25:
        raise ValueError(
            f"steps must be more for a model of {size} parameters at the level {level:g}, got "
            f"{steps}."
        )
    return epsilon
