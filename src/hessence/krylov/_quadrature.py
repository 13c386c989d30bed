r"""Gauss' quadrature by Lanczos' recurrence from random vectors, and its companion for the error.

From a unit vector v the recurrence builds an orthonormal basis Q of the Krylov space and the
tridiagonal T with :math:`H Q = Q T + \beta_m q_{m+1} e_m^\top`. All vectors are multiplied in one
product, and each has a basis of its own. Unlike in ``basis`` there is no restart, and a recurrence
that has found an invariant space ends there: what would follow says nothing about v.

A unit vector v and a symmetric H define the measure that puts weight :math:`(v^\top z_k)^2` on the
eigenvalue of each eigenvector :math:`z_k`. The eigenvalues θ of Lanczos' tridiagonal T are the
nodes, and the squared first entries of its eigenvectors the weights ω, of Gauss' rule for that
measure (Golub & Welsch, Math. Comp. 23, 1969):

.. math:: v^\top f(H) v \approx \sum_j \omega_j f(\theta_j),

without error for polynomials f of degree 2m − 1 or less. Laurie's anti-Gaussian rule (Math. Comp.
65, 1996) has m + 1 nodes, from T with one more row whose coupling is :math:`\sqrt2 \beta_m`; for
degrees up to 2m + 1 its error is that of Gauss' rule with the opposite sign. So half of the
difference of the two estimates the error, and shows the gaps where Gauss' nodes are too far apart.
Laurie's last diagonal entry would take another product; here it is the entry before it, which moves
the outer nodes a little and is good enough for an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, epsilon, like
from hessence.krylov._linear_algebra import eigensystem, lengths, orthogonalise, with_rows
from hessence.krylov._operand import Probes, ScaledProduct

NEGLIGIBLE = 32
"""A remainder below this many ε · ‖H‖ is rounding: the recurrence has found all there is."""

WORKSPACE = 6
"""How many vectors a recurrence needs beside its basis, while it takes a step."""


@dataclass(frozen=True)
class Chain:
    """The coefficients of one recurrence of m steps, in units of the product's scale."""

    diagonal: Numbers
    couplings: Numbers  # the m − 1 of T, and that with the next vector: zero if there is none
    norm: float  # of the longest image of a basis vector
    defect: float  # ‖HQ − QT − βq eᵀ‖ (Frobenius): rounding, or H is not symmetric


def grow_chains(
    product: ScaledProduct, probes: Probes, members: Sequence[int], steps: int
) -> list[Chain]:
    """Run the recurrence from each of the members among the probes, `steps` steps at most.

    All go in lock-step. The vectors of one that has ended are zero from then on.
    """
    start = probes.draw(members[0])
    xp, count, size = api.array_namespace(start), len(members), int(start.shape[0])
    # Not zeros: memory is touched as the basis grows.
    vectors = xp.empty((count, steps, size), dtype=start.dtype, device=api.device(start))
    drawn = xp.stack([probes.draw(member) for member in members])
    vectors = with_rows(vectors, 0, drawn[:, None, :])
    negligible = NEGLIGIBLE * epsilon(start)
    ended, ends = np.zeros(count, dtype=bool), np.full(count, steps)
    diagonal, couplings = (np.zeros((count, steps)) for _ in range(2))
    norm, defect = (np.zeros(count) for _ in range(2))
    for j in range(steps):
        if ended.all():
            break
        # By symmetry the images meet the last two vectors only, up to rounding.
        first, images = max(j - 1, 0), _images(product, vectors[:, j, :], ended)
        coefficients, rest = orthogonalise(vectors[:, : j + 1, :], images, first)
        along, coupling = coefficients[..., 0], lengths(rest)[:, 0]
        norm = np.maximum(norm, np.hypot(np.linalg.norm(along, axis=1), coupling))
        if j:
            along[:, j - 1] -= couplings[:, j - 1]
        defect = np.hypot(defect, np.linalg.norm(along[:, :j], axis=1))
        now = (coupling <= negligible * norm) | (j + 1 == size)
        ends = np.where(now & ~ended, j + 1, ends)
        ended = ended | now
        diagonal[:, j], couplings[:, j] = along[:, j], np.where(ended, 0.0, coupling)
        if j + 1 < steps:
            divisor = np.where(ended, np.inf, coupling)[:, None]
            vectors = with_rows(vectors, j + 1, rest.mT / like(divisor[..., None], rest))
    return [
        Chain(diagonal[i, :m], couplings[i, :m], norm[i], defect[i]) for i, m in enumerate(ends)
    ]


def _images(product: ScaledProduct, newest: Array, ended: Numbers) -> Array:
    """Multiply the newest vectors, all at once, where recurrences go on: (probes, n, 1)."""
    if not ended.any():
        return product(newest.mT).mT[..., None]
    xp, alive = api.array_namespace(newest), np.flatnonzero(~ended).tolist()
    columns = product(xp.stack([newest[i, :] for i in alive]).mT)
    images = dict(zip(alive, range(len(alive)), strict=True))
    rows = [columns[:, images[i]] if i in images else newest[i, :] for i in range(len(ended))]
    return xp.stack(rows)[..., None]


def gauss(chain: Chain, reference: Array) -> tuple[Numbers, Numbers, Numbers]:
    """Return nodes and weights of Gauss' rule, and how far from each node its eigenvalue may be.

    That is a bound for ‖Hz − θz‖ of the Ritz vector z.
    """
    nodes, weights, last = _rule(chain.diagonal, chain.couplings[:-1], reference)
    return nodes, weights, chain.couplings[-1] * np.abs(last) + chain.defect


def anti_gauss(chain: Chain, reference: Array) -> tuple[Numbers, Numbers]:
    """Return the anti-Gaussian rule; Gauss' own if the recurrence ended, as that is exact."""
    out = chain.couplings[-1]
    if out == 0:
        return gauss(chain, reference)[:2]
    diagonal = np.append(chain.diagonal, chain.diagonal[-1])
    couplings = np.append(chain.couplings[:-1], np.sqrt(2) * out)
    return _rule(diagonal, couplings, reference)[:2]


def _rule(
    diagonal: Numbers, couplings: Numbers, reference: Array
) -> tuple[Numbers, Numbers, Numbers]:
    """Return ascending nodes, weights of sum 1, and the last entries of the eigenvectors."""
    matrix = np.diag(diagonal) + np.diag(couplings, 1) + np.diag(couplings, -1)
    nodes, vectors = eigensystem(matrix, reference)
    weights = vectors[0] ** 2
    return nodes, weights / weights.sum(), vectors[-1]
