"""Claims of paper 003, a poster."""

from __future__ import annotations

import numpy as np

from hessence.papers.claims import paper_000_linear, paper_000_relu, paper_000_vectors
from hessence.papers.claims.dense_hessians import eigenvalue_gap
from hessence.papers.claims.protocol import DENSE, Claim, Verdict, judge
from hessence.papers.claims.scalar_networks import scalar_draws


def _outliers() -> Verdict:
    gaps, inside = [], []
    for i, net in enumerate(scalar_draws(61, 16)):
        if i % 2:
            net = type(net)(net.w, net.v, net.x / np.sqrt(net.variance), net.y)
        w, v, var = float(net.w @ net.w), float(net.v @ net.v), net.variance
        base = var**2 * ((w - v) ** 2 + 4 * (w * v - net.product**2))
        root = np.sqrt(base + 4 * (2 * net.product - net.target) ** 2)
        pair = [(var * (w + v) + root) / 2, (var * (w + v) - root) / 2]
        bulk = [net.residual, -net.residual] * (len(net.w) - 1)
        gaps.append(eigenvalue_gap([*bulk, *pair], net.hessian()))
        inside.append(bool(i % 2))
    return judge(gaps, f"all 2m eigenvalues {DENSE}", "σ² = 1", inside)


CLAIMS = (
    Claim(
        "003-outliers", "003, first key result",
        "the pair of outliers has 4(2⟨w, v⟩ − yx)² in its root",
        _outliers,
    ),
    Claim(
        "003-pair", "003, insights",
        "the outliers are a pair: they sum up to the trace",
        paper_000_linear.trace_form,
    ),
    Claim(
        "003-sharpness", "003, insights",
        "sharpness is imbalance, non-collinearity, distance from the target and overall norm",
        paper_000_linear.sum_of_squares,
    ),
    Claim(
        "003-vectors", "003, eigenvector structure",
        "the outliers' eigenvectors are λ(w, v) + δx(v, w)",
        paper_000_vectors.outlier_vectors,
    ),
    Claim(
        "003-gradient", "003, eigenvector structure",
        "the outliers' eigenvectors combine the gradient and the parameters",
        paper_000_vectors.vectors_from_gradient,
    ),
    Claim(
        "003-relu", "003, second key result",
        "a ReLU network has each cell's linear spectrum, scaled by its share of the samples",
        paper_000_relu.relu_eigenvalues,
    ),
    Claim(
        "003-convergence", "003, insights",
        "only one outlier is left at convergence",
        paper_000_linear.solution,
    ),
)  # fmt: skip
