"""Inputs and outputs in any units, against 50 digits: errors stay within 1e-13 ‖H‖."""

from itertools import pairwise, product

import mpmath
import numpy as np
import pytest

import hessence as hs

DIGITS = 50


def chain(matrices, size):
    """The product of matrices, first to act first; the identity if there are none."""
    total = mpmath.eye(size)
    for matrix in matrices:
        total = matrix * total
    return total


def exact_parts(weights, x, y, loss):
    """The Hessian and its Gauss–Newton part from their definition, entry by entry."""
    layers = [mpmath.matrix(w.tolist()) for w in weights]
    D, K, n = layers[0].cols, layers[-1].rows, len(x)
    M = chain(layers, D)
    G, S = mpmath.zeros(K, D), mpmath.zeros(K * D, K * D)
    for inputs, target in zip(x, y, strict=True):
        v = mpmath.matrix(inputs.tolist())
        f, t = M * v, mpmath.matrix(target.tolist())
        if loss == "mse":
            first, second = f - t, mpmath.eye(K)
        else:
            weights_ = [mpmath.exp(value) for value in f]
            p = mpmath.matrix([value / mpmath.fsum(weights_) for value in weights_])
            first, second = p - t, mpmath.diag(list(p)) - p * p.T
        G += first * v.T / n
        for a, d, b, e in product(range(K), range(D), range(K), range(D)):
            S[a * D + d, b * D + e] += second[a, b] * v[d] * v[e] / n
    places = [
        (ell, i, j) for ell, w in enumerate(layers) for i in range(w.rows) for j in range(w.cols)
    ]
    before = [chain(layers[:ell], D) for ell in range(len(layers))]
    after = [chain(layers[ell + 1 :], w.rows) for ell, w in enumerate(layers)]
    J = mpmath.matrix(K * D, len(places))
    for column, (ell, i, j) in enumerate(places):
        for a, d in product(range(K), range(D)):
            J[a * D + d, column] = after[ell][a, i] * before[ell][j, d]
    ggn = J.T * S * J
    hessian = ggn.copy()
    for (row, (high, i, j)), (column, (low, a, b)) in product(enumerate(places), repeat=2):
        if high > low:
            middle = chain(layers[low + 1 : high], layers[low].rows)
            # ⟨G, S e_i e_jᵀ middle e_a e_bᵀ P⟩, S after the higher layer, P before the lower.
            outer = sum(
                G[c, d] * after[high][c, i] * before[low][b, d]
                for c, d in product(range(K), range(D))
            )
            hessian[row, column] += outer * middle[j, a]
            hessian[column, row] += outer * middle[j, a]
    return hessian, ggn


def cases():
    rng = np.random.default_rng(0)
    for name, dims, features, outputs, loss in [
        ("features", (3, 5, 2), [1, 1e-4, 1e-9], [1, 1], "mse"),
        ("outputs", (2, 4, 3), [1, 1], [1, 1e-4, 1e-9], "mse"),
        ("both", (3, 6, 2), [1, 1e-5, 1e-9], [1, 1e-9], "mse"),
        ("both, other loss", (3, 5, 2), [1, 1e-5, 1e-9], [1, 1e-9], "cross-entropy"),
        ("one output", (4, 3, 1), [1, 1e-3, 1e-6, 1e-9], [1], "mse"),
        ("deep", (2, 3, 3, 2), [1, 1e-9], [1, 1e-9], "mse"),
        ("deep, other loss", (2, 2, 3, 2), [1, 1e-9], [1, 1], "cross-entropy"),
    ]:
        for compensated in (False, True):
            weights = [rng.normal(size=(b, a)) for a, b in pairwise(dims)]
            x = rng.normal(size=(6, dims[0])) * features
            y = rng.normal(size=(6, dims[-1])) * outputs
            if compensated:
                # Weights in the opposite units, so that every feature and output counts.
                weights[0] = weights[0] / features
                weights[-1] = weights[-1] * np.asarray(outputs)[:, None]
            if loss == "cross-entropy":
                y = np.eye(dims[-1])[rng.integers(dims[-1], size=6)]
            yield pytest.param(weights, x, y, loss, id=f"{name}, {compensated=}")
    # One output that is as good as decided beside ordinary ones.
    weights = [rng.normal(size=(4, 3)), rng.normal(size=(3, 4))]
    weights[1][0] += 40 * np.linalg.pinv(weights[0])[0]
    x = np.concatenate([np.ones((5, 1)), rng.normal(size=(5, 2))], axis=1)
    y = np.eye(3)[[0, 0, 0, 1, 2]]
    yield pytest.param(weights, x, y, "cross-entropy", id="saturated")


@pytest.mark.parametrize(("weights", "x", "y", "loss"), list(cases()))
def test_units_cost_no_digits(weights, x, y, loss):
    H = hs.DeepLinear(weights).hessian(x, y, loss)
    with mpmath.workdps(DIGITS):
        hessian, ggn = exact_parts(weights, x, y, loss)
        parts = {"hessian": (H, hessian), "ggn": (H.ggn, ggn)}
        parts["functional"] = (H.functional, hessian - ggn)
        for name, (operator, matrix) in parts.items():
            values = mpmath.eigsy(matrix, eigvals_only=True)
            exact = np.asarray([float(v) for v in values])[::-1]
            norm = np.abs(exact).max()
            found = operator.spectrum()
            error = np.abs(found.eigenvalues - exact).max() / norm
            assert error < 1e-13, (name, found.method, error)
            assert found.verify(operator).worst < 1e-12
