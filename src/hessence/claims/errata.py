"""What the papers print and is not so, each with a counterexample and the right statement's gap."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np

from hessence.claims.checking import (
    Scalar,
    attention_draws,
    dense_hessian,
    eigenvalue_gap,
    relu_draws,
    scalar_draws,
    vector_gap,
)
from hessence.claims.linear_networks import (
    Linear,
    balanced_weights,
    nonzero,
    padded_gap,
    random_weights,
    white,
)
from hessence.claims.protocol import Claim, Verdict, judge

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
            if len(cell.w) == 0:
                continue
            neurons = np.isin(net.v, cell.v)
            for value in cell.outliers():
                for found, used in ((printed, share * value), (right, value)):
                    vector = np.zeros((2, len(net.v)))
                    vector[0, neurons] = used * cell.w + cell.residual * cell.v
                    vector[1, neurons] = used * cell.v + cell.residual * cell.w
                    found.append(vector_gap(share * value, vector.ravel(), hessian))
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


def _off_diagonal() -> Verdict:
    net, m = SMALL, 2
    truth = net.hessian()[:m, m:]
    printed, right = (
        net.variance * np.outer(left, net.v) + net.residual * np.eye(m) for left in (net.v, net.w)
    )
    return judge(
        [float(np.max(np.abs(printed - truth)))],
        f"{NAMED}: ∂²ℓ/∂v∂w is {truth.tolist()}, printed {printed.tolist()}, "
        f"with σ²wvᵀ {right.tolist()}",
    )


def _counts() -> Verdict:
    rng = np.random.default_rng(14)
    X = white(rng, 6, 20)
    shallow = Linear(random_weights(rng, (6, 2, 4)), X, X).solved()
    deep = Linear(balanced_weights(rng, (4, 2, 2, 3), (1.0, 1.5)), white(rng, 4, 9), X).solved()
    found = [len(nonzero(net.hessian())) for net in (shallow, deep)]
    return judge(
        [float(max(0, count - 4)) for count in found],
        f"6-2-4 has {found[0]} non-zero eigenvalues, a balanced 4-2-2-3 has {found[1]}; printed at "
        "most 4 each, with the mixed pairs r² + r(d0 + dL − 2r) = 16 and 10",
    )


def _pairs() -> Verdict:
    rng = np.random.default_rng(15)
    X = white(rng, 4, 12)
    printed: list[float] = []
    right: list[float] = []
    for sizes in ((4, 2, 3), (4, 3, 2), (4, 5, 3)):
        net = Linear(random_weights(rng, sizes), X, X).solved()
        low, high = (np.linalg.svd(weight, compute_uv=False) ** 2 for weight in net.weights)
        hessian = net.hessian()
        printed.append(padded_gap([i + j for i in low for j in high], hessian))
        low = np.concatenate([low, np.zeros(sizes[0] - len(low))])
        high = np.concatenate([high, np.zeros(sizes[2] - len(high))])
        right.append(padded_gap([i + j for i in low for j in high], hessian))
    return judge(
        printed,
        f"4-2-3, 4-3-2 and 4-5-3: off by up to {max(printed):.2f} of λ_max, {max(right):.0e} over "
        "all i ≤ d0, j ≤ dL with zeros filled in",
    )


def _larger_norm() -> Verdict:
    rng = np.random.default_rng(16)
    X = white(rng, 3, 10)
    net = Linear(random_weights(rng, (3, 4, 2)), X, X).solved()
    norms = [float(np.linalg.norm(weight, 2)) ** 2 for weight in net.weights]
    top = float(np.linalg.eigvalsh(net.hessian())[-1])
    return judge(
        [abs(max(norms) - top) / top],
        f"a random 3-4-2 at zero loss, white data: λ_max = {top:.4f}, printed {max(norms):.4f}, "
        f"the sum {sum(norms):.4f}",
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
        "the target enters the outliers as 4(2⟨w, v⟩ − yx)²",
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
        _off_diagonal,
    ),
    Claim(
        "E-002-counts", "002 §3 and App B",
        "at most min(d0, …, dL)² eigenvalues are not zero",
        _counts,
    ),
    Claim(
        "E-002-pairs", "002 eq 9b and 15",
        "the pairs of singular values with i, j ≤ min(...) are all eigenvalues that are not zero",
        _pairs,
    ),
    Claim(
        "E-000-larger-norm", "000 App D.3.3",
        "λ_max of a two-layer linear network at zero loss is max(‖W1‖², ‖W2‖²)",
        _larger_norm,
    ),
    Claim(
        "E-000-cubic-constant", "000 App B.5, constant of the depressed cubic",
        "9(α + ζN) multiplies only the first term of the cubic's linear coefficient",
        _cubic_constant,
    ),
)  # fmt: skip
