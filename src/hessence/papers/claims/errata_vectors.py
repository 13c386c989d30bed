"""Misprints about vectors in the papers, with counterexamples and the right statements."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np

from hessence.papers.claims.attention_layers import attention_draws
from hessence.papers.claims.dense_hessians import dense_hessian, eigenvalue_gap, vector_gap
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.scalar_networks import Scalar, relu_draws, scalar_draws

SMALL = Scalar(np.array([1.0, 0.0]), np.array([1.0, 1.0]), np.array([2.0]), np.array([4.0]))
NAMED = "w = (1, 0), v = (1, 1), x = 2, y = 4"


def _missing_variance() -> Verdict:
    net = SMALL
    w, v, var = float(net.w @ net.w), float(net.v @ net.v), net.variance
    base = var**2 * ((w - v) ** 2 + 4 * (w * v - net.product**2))
    printed, right = (
        (var * (w + v) + np.sqrt(base + 4 * (2 * net.product * factor - net.target) ** 2)) / 2
        for factor in (1, var)
    )
    top = float(np.linalg.eigvalsh(net.hessian())[-1])
    return judge(
        [abs(printed - top) / top],
        f"{NAMED}: λ_max = {top:.4f}, printed {printed:.4f}, with 2⟨w, v⟩σ² {right:.4f}",
    )


def _bulk_sign() -> Verdict:
    printed: list[float] = []
    right: list[float] = []
    for net in [SMALL, *scalar_draws(11)]:
        if net.residual > 0:
            continue
        hessian, value = net.hessian(), net.residual
        for found, sign in ((printed, np.sign(value)), (right, np.sign(value * net.residual))):
            side = net.w + sign * net.v
            half = np.eye(len(side))[0] - side * side[0] / (side @ side)
            if np.linalg.norm(half) < 1e-6:
                half = np.eye(len(side))[1] - side * side[1] / (side @ side)
            found.append(vector_gap(value, np.concatenate([half, sign * half]), hessian))
    return judge(
        printed,
        f"{NAMED} and others with δx < 0: ‖Hz − λz‖ up to {max(printed):.2f}, "
        f"with sgn(λ δx) {max(right):.0e}",
    )


def _relu_vectors() -> Verdict:
    printed: list[float] = []
    right: list[float] = []
    for net in relu_draws(12):
        hessian = net.hessian()
        for share, cell in net.cells():
            for value in cell.outliers() if len(cell.w) else ():
                for found, used in ((printed, share * value), (right, value)):
                    vector = net.outlier_vector(cell, used)
                    found.append(vector_gap(share * value, vector, hessian))
    return judge(
        printed,
        f"random networks of width 5: ‖Hz − λz‖ up to {max(printed):.2f} with λ scaled by n_±/n, "
        f"{max(right):.0e} with the cell's own λ",
    )


def _radius() -> Verdict:
    printed: list[float] = []
    right: list[float] = []
    for net in attention_draws(13, 30):
        away = float(np.max(np.abs(net.outliers() - net.trace() / 3)))
        printed.append(1 - net.radius(squared=False) / away)
        right.append(1 - net.radius(squared=True) / away)
    return judge(
        printed,
        f"random layers: an outlier is farther than ξ from tr/3 in "
        f"{sum(gap > 1e-8 for gap in printed)} of 30, with squared norms in "
        f"{sum(gap > 1e-8 for gap in right)}",
        tolerance=1e-8,
    )


def _bias_norm() -> Verdict:
    # Two hidden units, so that the paper's polynomial of degree six is the characteristic one;
    # everything is an integer or a half.
    w, v, b = np.array([[1, 2], [2, 0], [0, 3]], dtype=np.float64)
    x, y = np.array([1.0, -1.0]), np.array([1.0, 2.0])
    hessian = dense_hessian(
        lambda p: np.mean(
            (np.sum(p[:, :2] * p[:, 2:4], 1)[:, None] * x + np.sum(p[:, :2] * p[:, 4:], 1)[:, None]
             - y) ** 2 / 2, axis=1),
        np.concatenate([w, v, b]),
    )  # fmt: skip
    exact = [[Fraction(round(2 * float(entry)), 2) for entry in row] for row in hessian]
    trace = sum((exact[i][i] for i in range(6)), Fraction(0))
    square = sum((exact[i][j] * exact[i][j] for i, j in product(range(6), repeat=2)), Fraction(0))
    truth = (trace**2 - square) / 2
    wv, wb = 2, 6
    dx, d = Fraction(wv) - Fraction(-1, 2), Fraction(wb) - Fraction(3, 2)
    rest = -2 * (dx**2 + d**2) - 2 * (dx * wv + d * wb)
    printed, right = rest + (4 + 5) * (3 + 5), rest + (4 + 5) * (9 + 5)
    return judge(
        [float(abs(printed - truth))],
        f"w = (1, 2), v = (2, 0), b = (0, 3), x = ±1, y = 1, 2: coefficient of λ⁴ is {truth}, "
        f"printed {printed}, with ‖b‖² {right}",
    )


def _smallest() -> Verdict:
    least = float(np.linalg.eigvalsh(SMALL.hessian())[0])
    return judge(
        [abs(least + SMALL.residual)],
        f"{NAMED}: λ_min = {least:.4f} = −|δx|, printed −δx = {-SMALL.residual:.4f}",
    )


def _upper_block(name: str) -> Verdict:
    net, m = SMALL, 2
    truth = net.hessian()[:m, m:]
    # The rows of the block are those of v, the columns those of w.
    factors = {"vvᵀ": (net.v, net.v), "vwᵀ": (net.v, net.w), "wvᵀ": (net.w, net.v)}
    printed, right = (
        net.variance * np.outer(*factors[which]) + net.residual * np.eye(m)
        for which in (name, "wvᵀ")
    )
    return judge(
        [float(np.max(np.abs(printed - truth)))],
        f"{NAMED}: ∂²ℓ/∂v∂w is {truth.tolist()}, printed {printed.tolist()}, "
        f"with σ²wvᵀ {right.tolist()}",
    )


def _upper_block_000() -> Verdict:
    return _upper_block("vvᵀ")


def _upper_block_001() -> Verdict:
    return _upper_block("vwᵀ")


def _step_for_relu() -> Verdict:
    printed: list[float] = []
    right: list[float] = []
    for net in relu_draws(18):
        x = np.linspace(-2, 2, 9)
        slopes = [float(net.w[side] @ net.v[side]) for side in (net.v > 0, net.v <= 0)]
        lines = np.where(x > 0, slopes[0] * x, slopes[1] * x)
        fires = np.outer(net.v, x) > 0
        printed.append(float(np.max(np.abs(net.w @ fires - lines))))
        right.append(float(np.max(np.abs(net.w @ (fires * np.outer(net.v, x)) - lines))))
    return judge(
        printed,
        f"random networks of width 5: outputs off the two lines of 000 eq 3 by up to "
        f"{max(printed):.2f}, {max(right):.0e} with a·1{{a > 0}}",
    )


def _cubic_constant() -> Verdict:
    printed: list[float] = []
    right: list[float] = []
    for net in attention_draws(17):
        alpha, beta, gamma, zeta = net.scalars()
        a, kappa, mixed = net.trace(), float(net.w_q @ net.w_k), beta**2 - alpha * zeta
        p = -(3 * gamma**2 + 6 * gamma * zeta * kappa + 3 * mixed * net.norms + a**2) / 3
        rest, last = 2 * gamma * zeta * kappa + gamma**2, net.cubic()[3]
        bulk = [gamma, -gamma] * (len(net.w_q) - 1)
        hessian = net.hessian()
        for found, middle in (
            (printed, 9 * a * mixed * net.norms + rest),
            (right, 9 * a * (mixed * net.norms + rest)),
        ):
            q = -(2 * a**3 + middle + 27 * last) / 27
            roots = np.roots([1, 0, p, q]).real + a / 3
            found.append(eigenvalue_gap([*bulk, *roots], hessian))
    return judge(
        printed,
        f"random layers: eigenvalues off by up to {max(printed):.2f} of λ_max, {max(right):.0e} "
        "with 9 tr times all of the linear coefficient",
        tolerance=1e-8,
    )


CLAIMS = (
    Claim(
        "E-003-outliers", "003, formula of the outliers",
        "the target enters the outliers as 4(2⟨w, v⟩ − yx)², whatever the inputs' variance",
        _missing_variance,
    ),
    Claim(
        "E-000-bulk-sign", "000 Theorem 3.3, 001 Theorem 3",
        "the sign in bulk eigenvectors is that of the eigenvalue, whatever the residual's",
        _bulk_sign,
    ),
    Claim(
        "E-000-relu-vectors", "000 eq 62–67, 001 eq 64–65",
        "a cell's outlier eigenvectors combine λ scaled by n_±/n with unscaled δx",
        _relu_vectors,
    ),
    Claim(
        "E-000-xi", "000 Theorem 3.5",
        "ξ has (ζ‖w_K‖ + ζ‖w_Q‖ + α)² for its last term, with the norms themselves",
        _radius,
    ),
    Claim(
        "E-000-bias-norm", "000 and 001, proof of the bias theorem",
        "the coefficient of λ⁴ contains (‖v‖² + ‖w‖²)(‖b‖ + ‖w‖²)",
        _bias_norm,
    ),
    Claim(
        "E-000-smallest", "000 App B.1, 001 proof of Theorem 1",
        "the smallest eigenvalue is −δx, whatever its sign",
        _smallest,
    ),
    Claim(
        "E-000-eq10", "000 eq 10",
        "the off-diagonal block of the Hessian is σ²vvᵀ + δx I",
        _upper_block_000,
    ),
    Claim(
        "E-001-eq12", "001 eq 12 and 13",
        "the off-diagonal block of the Hessian in v and w is σ²vwᵀ + δx I",
        _upper_block_001,
    ),
    Claim(
        "E-000-relu", "000 §3.2, 001 §2",
        "ReLU is (a)₊ = 1{a > 0}",
        _step_for_relu,
    ),
    Claim(
        "E-000-cubic-constant", "000 App B.5, constant of the depressed cubic",
        "9(α + ζN) multiplies only the first term of the cubic's linear coefficient",
        _cubic_constant,
    ),
)  # fmt: skip
