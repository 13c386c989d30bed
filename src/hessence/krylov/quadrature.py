r"""Gauss' quadrature from Lanczos' coefficients, and its companion that tells the error.

A unit vector v and a symmetric H define the measure that puts weight :math:`(v^\top z_k)^2` on the
eigenvalue of each eigenvector :math:`z_k`. The eigenvalues θ of Lanczos' tridiagonal T are the
nodes, and the squared first entries of its eigenvectors the weights ω, of Gauss' rule for that
measure (Golub & Welsch, Math. Comp. 23, 1969):

.. math:: v^\top f(H) v \approx \sum_j \omega_j f(\theta_j),

without error for polynomials f of degree 2m − 1 or less. Laurie's anti-Gaussian rule (Math. Comp.
65, 1996) has m + 1 nodes, from T with one more row whose coupling is :math:`\sqrt2 \beta_m`; for
degrees up to 2m + 1 it errs as much as Gauss' rule, to the other side. So half of the difference
of the two tells the error, and where Gauss' nodes are too far apart it shows the gaps.

How this differs from Laurie: the last diagonal entry of the longer T would take another product,
and is taken to be the one before. That moves the outer nodes a little, and is good enough for an
error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hessence._common.arrays import Array, Numbers
from hessence.krylov.chains import Chain
from hessence.krylov.projected import eigensystem


@dataclass(frozen=True)
class Rule:
    """Nodes (m,), ascending; weights (m,), of sum 1; the last entries (m,) of the eigenvectors."""

    nodes: Numbers
    weights: Numbers
    last: Numbers


def gauss(chain: Chain, reference: Array) -> Rule:
    """Return Gauss' rule."""
    return _rule(chain.diagonal, chain.couplings[:-1], reference)


def anti_gauss(chain: Chain, reference: Array) -> Rule:
    """Return the anti-Gaussian rule; Gauss' own if the recurrence ended, as that is exact."""
    out = chain.couplings[-1]
    if out == 0:
        return gauss(chain, reference)
    diagonal = np.append(chain.diagonal, chain.diagonal[-1])
    couplings = np.append(chain.couplings[:-1], np.sqrt(2) * out)
    return _rule(diagonal, couplings, reference)


def residuals(chain: Chain, rule: Rule) -> Numbers:
    """Bound ‖Hz − θz‖ for the Ritz vector z of each node: an eigenvalue is no further away."""
    return np.asarray(chain.couplings[-1] * np.abs(rule.last) + chain.defect)


def padded(rules: list[Rule], length: int) -> tuple[Numbers, Numbers]:
    """Stack nodes and weights as (rules, length); repeated nodes without weight fill the rows."""
    nodes = np.stack([np.pad(r.nodes, (0, length - len(r.nodes)), mode="edge") for r in rules])
    weights = np.stack([np.pad(r.weights, (0, length - len(r.nodes))) for r in rules])
    return nodes, weights


def _rule(diagonal: Numbers, couplings: Numbers, reference: Array) -> Rule:
    matrix = np.diag(diagonal) + np.diag(couplings, 1) + np.diag(couplings, -1)
    nodes, vectors = eigensystem(matrix, reference)
    weights = vectors[0] ** 2
    return Rule(nodes, weights / weights.sum(), vectors[-1])
