"""``hs.density``: where the eigenvalues of anything with ``@`` lie, by random vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from hessence._common.arguments import Seed, as_positive, generator, require_int
from hessence._common.arrays import Numbers, epsilon, floating, to_double
from hessence._common.device import full_precision, vectors_within
from hessence.krylov._operand import Operand, Probes, ScaledProduct, operand
from hessence.krylov._quadrature import WORKSPACE, Chain, anti_gauss, gauss, grow_chains
from hessence.krylov._smoothing import Rules
from hessence.krylov.density_result import FINEST, Density, default_grid
from hessence.krylov.request import ROUNDING, Outcome

COARSEST = 16
"""The default width is the spectrum's extent divided by a power of two from FINEST to this."""

RIPPLE = 0.02
"""How much of the whole may be misplaced by the quadrature, at the default width."""

FLAT = 1000
"""A spectrum narrower than this many ε · ‖H‖ counts as one point."""

NOISE = 1e-3
"""An asymmetry above this share of ‖H‖ is reported."""


def density(
    H: Any,
    probes: int = 16,
    steps: int = 64,
    rng: Seed = 0,
    *,
    width: float | None = None,
    grid: Any = None,
    memory: float | None = None,
) -> Density:
    r"""Estimate the density of a symmetric operator's eigenvalues, with an error band.

    Stochastic Lanczos quadrature with full reorthogonalisation, in the array library, type and
    device of the operator: for random unit vectors v, the mean of
    :math:`v^\top g_\sigma(x - H) v \approx \sum_j \omega_j g_\sigma(x - \theta_j)` estimates

    .. math:: \frac1n \sum_k g_\sigma(x - \lambda_k),

    with :math:`g_\sigma` the normal density of standard deviation σ, and nodes θ and weights ω
    from Lanczos' recurrence started at v. All probes go in lock-step, one product ``H @ V`` for
    all of them; the ends of the spectrum come from the same run.

    Parameters
    ----------
    H : operator or array
        Symmetric; anything with ``.shape`` and ``@``, as in the Notes of ``hs.eigenpairs``.
    probes : int
        How many random vectors; the statistical part of the error goes as 1/√probes.
    steps : int
        How many products for each of them, n at most; details finer than some 1/steps of the
        spectrum's extent take more. An operator of rank r takes r + 1.
    rng : int or numpy.random.Generator
        The source of random vectors. The same seed gives the same result.
    width : float, optional
        The standard deviation σ. By default the smallest of extent / 256, / 128, … / 16 at which
        the quadrature misplaces no more than 2 % of all eigenvalues.
    grid : array (points,), optional
        Where to give the density. By default evenly spaced points that cover the spectrum and 5
        widths beyond, at four points a width.
    memory : float, optional
        How many bytes the vectors may take: as many probes go in lock-step as fit, one at least,
        the others after them. By default half of what the device has available. The result does
        not depend on it, but for rounding.

    Returns
    -------
    Density
        With ``grid``, ``values``, ``band``, ``nodes``, ``weights``, ``ends`` and a ``plot``.

    Notes
    -----
    The ``band`` is pointwise, for 95 %, and has three parts. The first is statistical:
    Student's quantile times the standard error of a mean of N probes, the larger of two estimates.
    One is what the spread of random vectors must be, given the density itself (see ``smoothing``),
    with N degrees of freedom; so a single probe has a band too, a wide one. The other, from four
    probes on, is the spread of the probes, with N − 1 degrees of freedom; alone it would be too
    small, as 86 to 93 % of our tests' points were within. The second part is how far the quadrature
    may be off, as told by an anti-Gaussian rule from the same coefficients; this is an estimate,
    not a bound. The third allows for rounding.

    An eigenvalue that stands alone has weight 1/n. It shows where it lies, with a relative error
    of its height of some √(2/probes).

    References
    ----------
    L. Lin, Y. Saad, C. Yang, Approximating spectral densities of large matrices, SIAM Review 58
    (2016). S. Ubaru, J. Chen, Y. Saad, Fast estimation of tr(f(A)) via stochastic Lanczos
    quadrature, SIAM J. Matrix Anal. Appl. 38 (2017). B. Ghorbani, S. Krishnan, Y. Xiao, An
    investigation into neural net optimization via Hessian eigenvalue density, ICML 2019.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> H = np.diag(np.concatenate([[5.0, 4.0], np.linspace(-1.0, 1.0, 498)]))
    >>> density = hs.density(H)
    >>> density
    density of 500 eigenvalues: 16 probes of up to 64 steps, 1024 products
      lowest   -1 ± ...
      highest  5 ± ...
      mean     0.01... ± ...
      width    0.0234
    >>> bool(abs(np.trapezoid(density.values, density.grid) - 1) < 1e-5)
    True
    >>> truth = np.exp(-0.5 * (density.grid[:, None] - np.diag(H)) ** 2 / density.width**2)
    >>> truth = truth.mean(axis=1) / density.width / np.sqrt(2 * np.pi)
    >>> bool(np.mean(np.abs(density.values - truth) <= density.band) > 0.9)
    True
    """
    subject = operand(H)
    if subject.batch:
        raise ValueError(f"H must be one matrix, of shape (n, n), got {tuple(H.shape)}.")
    require_int("probes", probes, 1, None)
    require_int("steps", steps, 1, None)
    sigma = None if width is None else as_positive("width", width)
    places = _checked_grid(grid)
    source = generator(rng)
    steps = min(int(steps), subject.size)
    room = vectors_within(memory, subject.size, subject.reference)
    product = ScaledProduct(subject)
    drawn = Probes(source, int(probes), subject.size, subject.reference)
    chains: list[Chain] = []
    held = max(1, room // (steps + WORKSPACE))
    with full_precision():
        for first in range(0, len(drawn), held):
            members = range(first, min(first + held, len(drawn)))
            chains += grow_chains(product, drawn, members, steps)
    rules, ends, ends_errors = _evaluate(chains, steps, subject, product.scale)
    norm = max(abs(end) for end in ends)
    if sigma is None:
        sigma = _default_width(rules, ends, norm, epsilon(subject.reference))
    if places is None:
        places = default_grid(ends, sigma)
    values, band = rules.density(places, sigma)
    outcome, noise = _outcome(chains, rules, sigma)
    return Density(
        grid=places,
        values=values,
        band=band,
        products=product.products,
        ends=ends,
        ends_errors=ends_errors,
        width=sigma,
        outcome=outcome,
        message=outcome.say(noise=noise),
        size=subject.size,
        _rules=rules,
    )


def _evaluate(
    chains: list[Chain], steps: int, subject: Operand, scale: float
) -> tuple[Rules, tuple[float, float], tuple[float, float]]:
    """Turn coefficients into rules, and the ends of the spectrum with their errors."""
    reference = subject.reference
    places, weights, bounds = zip(*(gauss(chain, reference) for chain in chains), strict=True)
    others, shares = zip(*(anti_gauss(chain, reference) for chain in chains), strict=True)
    nodes = _padded(places, steps, "edge") * scale
    rounding = ROUNDING * epsilon(reference) * float(np.abs(nodes).max())
    lowest, highest = int(nodes[:, 0].argmin()), int(nodes[:, -1].argmax())
    combined = Rules(
        nodes=nodes,
        weights=_padded(weights, steps),
        companion_nodes=_padded(others, steps + 1, "edge") * scale,
        companion_weights=_padded(shares, steps + 1),
        size=subject.size,
        rounding=rounding,
        residuals=_padded(bounds, steps) * scale,
    )
    ends = float(nodes[lowest, 0]), float(nodes[highest, -1])
    low_error, high_error = float(bounds[lowest][0]), float(bounds[highest][-1])
    return combined, ends, (low_error * scale + rounding, high_error * scale + rounding)


def _padded(
    rows: Sequence[Numbers], length: int, mode: Literal["constant", "edge"] = "constant"
) -> Numbers:
    """Stack arrays of different lengths, filled up with zeros or with their last entry."""
    return np.stack([np.pad(row, (0, length - len(row)), mode=mode) for row in rows])


def _default_width(rules: Rules, ends: tuple[float, float], norm: float, spacing: float) -> float:
    extent = ends[1] - ends[0]
    if extent <= FLAT * spacing * norm:
        return (norm or 1.0) / FINEST
    divisor = FINEST
    while divisor > COARSEST and misplaced(rules, extent / divisor) > RIPPLE:
        divisor //= 2
    return extent / divisor


def misplaced(rules: Rules, sigma: float) -> float:
    """Return the share of all eigenvalues on which the two quadrature rules disagree."""
    places, signed = rules.ripple(sigma)
    return float(np.abs(signed).sum() * (places[1] - places[0]) / sigma / 2)


def _checked_grid(grid: Any) -> Numbers | None:
    if grid is None:
        return None
    _, points = floating(grid=grid)
    if points.ndim != 1:
        raise ValueError(f"grid must have one dimension, got shape {tuple(points.shape)}.")
    return np.sort(to_double(points))


def _outcome(chains: list[Chain], rules: Rules, sigma: float) -> tuple[Outcome, float]:
    """Return how it went, and by how much the products are not symmetric, relative to ‖H‖."""
    norm = max(chain.norm for chain in chains) or 1.0
    noise = max(chain.defect for chain in chains) / norm
    if noise > NOISE:
        return Outcome.NOT_SYMMETRIC, noise
    return (Outcome.TOO_FINE if misplaced(rules, sigma) > RIPPLE else Outcome.RESOLVED), noise
