"""Misprints in how the papers describe their settings, and in a proof, with counterexamples."""

from __future__ import annotations

import numpy as np

from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.scalar_networks import scalar_draws


def _outlier_equation() -> Verdict:
    printed: list[float] = []
    right: list[float] = []
    for net in scalar_draws(311):
        w, v, var, delta = (float(net.w @ net.w), float(net.v @ net.v), net.variance, net.residual)
        values = np.linalg.eigvalsh(net.hessian())
        top = float(values[-1])
        shared = var * top**2 * w + var * delta**2 * v + 2 * var * delta * top * net.product
        shared -= top**3 + var * delta**2 * v
        for found, rest in (
            (printed, delta**2 * v + delta**2),
            (right, var * top**2 * v + delta**2 * top),
        ):
            found.append(abs(shared + rest) / top**3)
    return judge(
        printed,
        f"the equation at λ_max of dense Hessians, over λ_max³: up to {max(printed):.2f} as "
        f"printed, {max(right):.0e} with σ²‖v‖²λ² for δx²‖v‖² and δx²λ for δx²",
    )


def _subsampling() -> Verdict:
    gaps, told = [], []
    for share in (0.1, 0.3, 0.5, 0.9):
        samples = 5000
        each = int(np.floor((1 - share) * samples))
        gaps.append(float(9 * each > samples))
        told.append(f"{9 * each} ({share:g})")
    return judge(
        gaps,
        f"samples of nine classes out of n = 5000, by α_max: {', '.join(told)}; a ninth of "
        "⌊(1 − α_max)n⌋ for each class is meant",
    )


def _sizes(variances: tuple[float, float], factors: tuple[float, float], width: int) -> list[float]:
    """Return the sizes of hidden units and outputs of 10-m-10 networks on normal inputs."""
    rng = np.random.default_rng(312)
    x = rng.normal(size=(10, 200))
    hidden = factors[0] * np.sqrt(variances[0]) * rng.normal(size=(width, 10)) @ x
    outputs = factors[1] * np.sqrt(variances[1]) * rng.normal(size=(10, width)) @ hidden
    return [float(np.sqrt(np.mean(each**2))) for each in (hidden, outputs)]


def _maximal_update() -> Verdict:
    found = {
        "printed": [_sizes((m / 10, 10 / m), (1, 1), m) for m in (100, 1600)],
        "1/fan-in and 1/fan-in²": [_sizes((1 / 10, 1 / m**2), (1, 1), m) for m in (100, 1600)],
    }
    growth = {name: wide[0] / narrow[0] for name, (narrow, wide) in found.items()}
    return judge(
        [growth["printed"] - 1.5],
        "sizes of hidden units of 10-m-10 networks grow from m = 100 to 1600 by a factor of "
        + ", ".join(f"{value:.1f} ({name})" for name, value in growth.items()),
    )


def _neural_tangent() -> Verdict:
    printed, right = (
        [_sizes((1, 1), factors(m), m)[0] for m in (100, 1600)]
        for factors in (lambda m: (m**-0.5, 10**-0.5), lambda m: (10**-0.5, m**-0.5))
    )
    return judge(
        [abs(np.log(printed[1] / printed[0])) - 0.2],
        "sizes of hidden units of 10-m-10 networks change from m = 100 to 1600 by a factor of "
        f"{printed[1] / printed[0]:.2f} with 1/√n_ℓ, the layer's own width, and of "
        f"{right[1] / right[0]:.2f} with 1/√fan-in",
    )


CLAIMS = (
    Claim(
        "E-000-eq30", "000 and 001 eq 30",
        "the equation of the outliers has δx²‖v‖² + δx² beside its other terms",
        _outlier_equation,
    ),
    Claim(
        "E-002-subsampling", "002 App C",
        "⌊(1 − α_max)n⌋ samples of each of nine classes leave room for α_max n of the first",
        _subsampling,
    ),
    Claim(
        "E-000-mup", "000 App D.1.3",
        "with initial variances Θ(n_ℓ/n_{ℓ−1}), as is printed for maximal updates, the width does "
        "not change the size of hidden units",
        _maximal_update,
    ),
    Claim(
        "E-000-ntp", "000 App D.1.3",
        "with multipliers 1/√n_ℓ, as is printed for the neural tangent parametrisation, the width "
        "does not change the size of hidden units",
        _neural_tangent,
    ),
)  # fmt: skip
