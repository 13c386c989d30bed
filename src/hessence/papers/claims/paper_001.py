"""Claims of paper 001: the first account of scalar networks."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from hessence.papers.claims import (
    paper_000_bias,
    paper_000_linear,
    paper_000_pairs,
    paper_000_relu,
    paper_000_vectors,
)
from hessence.papers.claims.dense_hessians import characteristic, multiplied, without
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.scalar_networks import Scalar, orthogonal_draw, relu_draws, scalar_draws


def _polynomial() -> Verdict:
    rng = np.random.default_rng(41)
    gaps = []
    for width in (1, 2, 3, 4, 5):
        w, v = rng.integers(-3, 4, size=(2, width)).astype(np.float64)
        x, y = rng.integers(-3, 4, size=(2, 4)).astype(np.float64)
        net = Scalar(w, v, x, y)
        var, delta = Fraction(net.variance), Fraction(net.residual)
        product = Fraction(net.product)
        trace = var * Fraction(float(w @ w + v @ v))
        pair = [Fraction(1), -trace, -(delta**2) - 2 * var * delta * product]
        bulk = [Fraction(1), Fraction(0), -(delta**2)]
        expected = multiplied(pair, *[bulk] * (width - 1))
        truth = characteristic(net.hessian())
        gaps.append(float(max(abs(a - b) for a, b in zip(expected, truth, strict=True))))
    return judge(
        gaps, "characteristic polynomials of integer networks in exact arithmetic, widths 1 to 5"
    )


def _cells() -> Verdict:
    gaps = []
    for net in relu_draws(43):
        hessian, m = net.hessian(), len(net.v)
        expected = np.zeros((2 * m, 2 * m))
        for share, cell in net.cells():
            if len(cell.w) == 0:
                continue
            own = np.flatnonzero(np.isin(net.v, cell.v))
            own = np.concatenate([own, own + m])
            expected[np.ix_(own, own)] = share * cell.hessian()
        gaps.append(float(np.max(np.abs(hessian - expected))))
    return judge(gaps, "entries of the dense Hessian against those of each cell's linear network")


def _triple_bounds() -> Verdict:
    rng = np.random.default_rng(45)
    gaps = []
    for width in (2, 3, 4, 5) * 3:
        net = orthogonal_draw(rng, width, 2, bias=True)
        total = float(net.V[:, 0] @ net.V[:, 0] + net.w @ net.w)
        residuals = net.w @ net.V @ net.x - net.y
        s = float(np.sum(np.mean(residuals * net.x, axis=1) ** 2))
        root = np.sqrt(total**2 + 12 * s)
        pair = [(total + root) / 2, (total - root) / 2]
        away = np.abs(without(np.linalg.eigvalsh(net.hessian()), pair) - total / 3).max()
        gaps.append(float(away) / (2 / 3 * np.sqrt(total**2 + 3 * s)) - 1)
    return judge(gaps, f"largest |λ − tr/6| / t' over dense eigenvalues {1 + max(gaps):.3f}")


def _normalised() -> Verdict:
    gaps, inside = [], []
    for i, net in enumerate(scalar_draws(46, 16)):
        scale = (3.0 if i % 2 else 0.3) / np.sqrt(net.variance)
        nets = (replace(net, x=factor * net.x, y=factor * net.y)
                for factor in (scale, 1 / np.sqrt(net.variance)))  # fmt: skip
        wide, narrow = (float(np.ptp(np.linalg.eigvalsh(each.hessian()))) for each in nets)
        gaps.append(narrow / wide - 1)
        inside.append(bool(i % 2))
    return judge(
        gaps, "range of dense spectra for inputs of variance one over that before, less 1",
        "σ > 1", inside,
    )  # fmt: skip


CLAIMS = (
    Claim(
        "001-T1", "001 Theorem 1",
        "det(λ − H) is (λ² − δx²)^(m−1) times the outliers' quadratic",
        _polynomial,
    ),
    Claim(
        "001-scaling", "001 §1",
        "eigenvalues scale in proportion to the inputs' variance",
        paper_000_linear.scaling,
    ),
    Claim(
        "001-normalised", "001 §1, Fig 1",
        "normalising the data narrows the spectrum",
        _normalised,
    ),
    Claim(
        "001-eq2", "001 eq 2",
        "the outliers' sum is the trace, their product −(⟨w, v⟩σ² − yx)(3⟨w, v⟩σ² − yx)",
        paper_000_linear.trace_form,
    ),
    Claim(
        "001-sharpness", "001, after Theorem 1",
        "the outliers' root is a sum of squares of imbalance, non-collinearity and distance",
        paper_000_linear.sum_of_squares,
    ),
    Claim(
        "001-phases", "001, after Theorem 1",
        "λ2 is negative early, positive late and negative in the divergent phase",
        paper_000_linear.phases,
    ),
    Claim(
        "001-solution", "001 §1",
        "at the solution the Hessian has rank one, and λ1 is the trace",
        paper_000_linear.solution,
    ),
    Claim(
        "001-T2", "001 Theorem 2",
        "the outliers' eigenvectors are orthogonal, and combine the gradient and the parameters",
        paper_000_vectors.vectors_from_gradient,
    ),
    Claim(
        "001-R1", "001 Remark 1 and eq 3",
        "the outliers' eigenvectors are λ(w, v) + δx(v, w)",
        paper_000_vectors.outlier_vectors,
    ),
    Claim(
        "001-basis", "001 §1, after Theorem 2",
        "the outliers' eigenvectors are an orthogonal basis of the plane of (v, w) and (w, v)",
        paper_000_vectors.basis,
    ),
    Claim(
        "001-basis-length", "001 §1, after Theorem 2",
        "as printed, the outliers' eigenvectors have length one",
        paper_000_vectors.basis_length,
    ),
    Claim(
        "001-T3", "001 Theorem 3",
        "bulk eigenvectors are (z, sgn(λ) z) with z orthogonal to w + sgn(λ) v",
        paper_000_vectors.bulk_vectors,
    ),
    Claim(
        "001-smooth", "001 §1, after Theorem 3",
        "eigenvectors change smoothly in training: a smaller step turns them less, in proportion",
        paper_000_vectors.smoothness,
    ),
    Claim(
        "001-T4", "001 Theorem 4",
        "the Hessian of a ReLU network is the direct sum of its cells' Hessians, scaled",
        _cells,
    ),
    Claim(
        "001-C5", "001 Corollary 5",
        "a ReLU network has each cell's bulk and outliers, scaled by its share of the samples",
        paper_000_relu.relu_eigenvalues,
    ),
    Claim(
        "001-density", "001 §2",
        "a cell's eigenvalues are proportional to its share of the samples",
        paper_000_relu.density,
    ),
    Claim(
        "001-R2", "001 Remark 2",
        "the outliers' eigenvectors carry over to the cells of a ReLU network",
        paper_000_relu.relu_vectors,
    ),
    Claim(
        "001-relu-bulk", "001 App C.2",
        "the bulk's eigenvectors carry over to the cells of a ReLU network",
        paper_000_relu.relu_bulk_vectors,
    ),
    Claim(
        "001-T6", "001 Theorem 6",
        "with a bias, and under its assumptions, there are a pair, a triple, a bulk and zeros",
        paper_000_bias.bias_theorem,
    ),
    Claim(
        "001-eq6", "001 eq 6",
        "without a bias the pair has 12 δx² in its root, for σ² = 1",
        paper_000_bias.without_bias,
    ),
    Claim(
        "001-centres", "001 §3",
        "under those assumptions the pair is centred at tr/4 and the triple at tr/6",
        paper_000_bias.centres,
    ),
    Claim(
        "001-triple", "001, after Theorem 6",
        "the triple is within t' of a sixth of the trace",
        _triple_bounds,
    ),
    Claim(
        "001-trend", "001 §3, conjecture",
        "for D inputs there is a pair of eigenvalues that sums up to 1/D of the trace",
        paper_000_pairs.hypothesis,
    ),
    Claim(
        "001-eq79", "001 eq 74 to 79",
        "with a bias the Hessian has the blocks σ²vvᵀ + bbᵀ, δx I + σ²vwᵀ, δ I + bwᵀ, σ²wwᵀ, wwᵀ "
        "and zero",
        paper_000_bias.bias_hessian,
    ),
    Claim(
        "001-gradients", "001 eq 7 and 8",
        "the gradient is δx(w, v)",
        paper_000_linear.gradients,
    ),
    Claim(
        "001-blocks", "001 eq 9 to 11 and 45",
        "the blocks of the Hessian are σ²vvᵀ, σ²wwᵀ and δx I + σ²vwᵀ",
        paper_000_linear.hessian_blocks,
    ),
    Claim(
        "001-least", "001 App A",
        "no eigenvalue is below −σ√(2ℓ)",
        paper_000_linear.least_bound,
    ),
)  # fmt: skip
