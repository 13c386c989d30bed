"""Claims of paper 001: the first account of scalar networks."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np

from hessence.claims import paper_000
from hessence.claims.checking import (
    Scalar,
    characteristic,
    gradient,
    multiplied,
    orthogonal_draw,
    relu_draws,
    scalar_draws,
    vector_gap,
)
from hessence.claims.protocol import Claim, Verdict, judge


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


def _vectors_from_gradient() -> Verdict:
    nets = list(scalar_draws(42))
    nets += [replace(net, v=sign * net.w) for net in nets[:2] for sign in (1, -1)]
    gaps, inside = [], []
    for net in nets:
        hessian, slope = net.hessian(), gradient(net.loss, net.point)
        vectors = [
            value / net.residual * slope + net.residual * net.point for value in net.outliers()
        ]
        worst = max(
            vector_gap(value, vector, hessian)
            for value, vector in zip(net.outliers(), vectors, strict=True)
        )
        if np.isfinite(worst):
            one, two = (vector / np.linalg.norm(vector) for vector in vectors)
            worst = max(worst, abs(float(one @ two)))
        gaps.append(worst)
        inside.append(not np.allclose(np.abs(net.w), np.abs(net.v)))
    return judge(
        gaps,
        "residuals ‖Hz − λz‖ with the gradient by complex steps, and ⟨z1, z2⟩",
        "w ≠ ±v",
        inside,
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


def _trend() -> Verdict:
    rng = np.random.default_rng(44)
    gaps: list[float] = []
    inside: list[bool] = []
    for inputs in (1, 2, 3, 4, 3, 4):
        net = orthogonal_draw(rng, inputs + 1, inputs)
        is_orthogonal = len(gaps) < 4
        if not is_orthogonal:
            net = type(net)(net.w, rng.normal(size=net.V.shape), net.x, net.y)
        values = np.linalg.eigvalsh(net.hessian())
        trace = float(values.sum())
        nearest = min(abs(a + b - trace / inputs) for a, b in combinations(values, 2))
        gaps.append(float(nearest / trace))
        inside.append(is_orthogonal)
    return judge(
        gaps,
        "a pair of dense eigenvalues that sums up to tr/D, D = 1 to 4, white data, E[yx] = 0",
        "V has orthogonal columns of one length",
        inside,
        tolerance=1e-12,
    )


def _triple_bounds() -> Verdict:
    rng = np.random.default_rng(45)
    gaps = []
    for width in (2, 3, 4, 5) * 3:
        net = orthogonal_draw(rng, width, 2, bias=True)
        total = float(net.V[:, 0] @ net.V[:, 0] + net.w @ net.w)
        residuals = net.w @ net.V @ net.x - net.y
        s = float(np.sum(np.mean(residuals * net.x, axis=1) ** 2))
        values = list(np.linalg.eigvalsh(net.hessian()))
        for root in (1, -1):
            pair = (total + root * np.sqrt(total**2 + 12 * s)) / 2
            values.remove(min(values, key=lambda value: abs(value - pair)))
        away = float(np.max(np.abs(np.array(values) - total / 3)))
        gaps.append(away / (2 / 3 * np.sqrt(total**2 + 3 * s)) - 1)
    return judge(gaps, f"largest |λ − tr/6| / t' over dense eigenvalues {1 + max(gaps):.3f}")


CLAIMS = (
    Claim(
        "001-T1", "001 Theorem 1",
        "det(λ − H) is (λ² − δx²)^(m−1) times the outliers' quadratic",
        _polynomial,
    ),
    Claim(
        "001-sharpness", "001, after Theorem 1",
        "the outliers' root is a sum of squares of imbalance, non-collinearity and distance",
        paper_000.sum_of_squares,
    ),
    Claim(
        "001-phases", "001, after Theorem 1",
        "λ2 is negative early, positive late and negative in the divergent phase",
        paper_000.phases,
    ),
    Claim(
        "001-T2", "001 Theorem 2",
        "the outliers' eigenvectors are orthogonal, and combine the gradient and the parameters",
        _vectors_from_gradient,
    ),
    Claim(
        "001-T3", "001 Theorem 3",
        "bulk eigenvectors are (z, sgn(λ) z) with z orthogonal to w + sgn(λ) v",
        paper_000.bulk_vectors,
    ),
    Claim(
        "001-T4", "001 Theorem 4",
        "the Hessian of a ReLU network is the direct sum of its cells' Hessians, scaled",
        _cells,
    ),
    Claim(
        "001-C5", "001 Corollary 5",
        "a ReLU network has each cell's bulk and outliers, scaled by its share of the samples",
        paper_000.relu_eigenvalues,
    ),
    Claim(
        "001-R2", "001 Remark 2",
        "the outliers' eigenvectors carry over to the cells of a ReLU network",
        paper_000.relu_vectors,
    ),
    Claim(
        "001-T6", "001 Theorem 6",
        "with a bias, and under its assumptions, there are a pair, a triple, a bulk and zeros",
        paper_000.bias_theorem,
    ),
    Claim(
        "001-triple", "001, after Theorem 6",
        "the triple is within t' of a sixth of the trace",
        _triple_bounds,
    ),
    Claim(
        "001-trend", "001 §3, conjecture",
        "for D inputs there is a pair of eigenvalues that sums up to 1/D of the trace",
        _trend,
    ),
)  # fmt: skip
