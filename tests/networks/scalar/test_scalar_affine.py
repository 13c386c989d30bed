"""The network with biases: the papers' closed form, the narrow twin, and that they agree."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from hessence.networks.scalar import _orthonormal
from tests.oracle import LOSSES, Case, all_vectors, assert_spectrum, exact_eigenvalues
from tests.strategies import theorem_cases, typical

X = np.asarray([1.0, -1.0, 1.0, -1.0])
MASK = np.asarray([1.0, 1.0, -1.0, -1.0])  # orthogonal to 1 and to X
E = np.eye(4)


def case_of(w, v, b, x=X, y=0 * X, loss="mse"):
    weights = {"w": np.asarray(w, float), "v": np.asarray(v, float), "b": np.asarray(b, float)}
    return Case("ScalarAffine", weights, np.asarray(x, float), np.asarray(y, float), loss)


THEOREM = {
    "plain": case_of([1, 2, 3, 4], E[0], E[1]),
    "two units": case_of([1, 2], [3, 4], [-4, 3]),
    "no outer weights": case_of(0 * E[0], E[0], E[1]),
    "w orthogonal to both": case_of(E[2], E[0], E[1]),
    "w along v": case_of(2 * E[0], E[0], E[1]),
    "w along b": case_of(2 * E[1], E[0], E[1]),
    "w = v + b": case_of(E[0] + E[1], E[0], E[1]),
    "targets beside the model": case_of([1, 2, 3, 4], E[0], E[1], y=MASK),
    "targets along the model": case_of([1, 2, 3, 4], E[0], E[1], y=5 * (X + 2)),
    "large weights": case_of([1, 2, 3, 4], 1e3 * E[0], 1e3 * E[1]),
}
GENERAL = {
    "one unit": case_of([2], [1], [-1], y=[1.1, 2.2, 3.3, 5.5]),
    "one unit, no bias": case_of([2], [1], [0], y=[1.1, 2.2, 3.3, 5.5]),
    "two units": case_of([1, 2], [3, 4], [1, 1], y=[1.1, 2.2, 3.3, 5.5]),
    "no bias": case_of([1, 2, 3, 4], [2, 1, 0, 1], 0 * E[0], y=[1.1, 2.2, 3.3, 5.5]),
    "no inner weights": case_of([1, 2, 3, 4], 0 * E[0], [2, 1, 0, 1], y=[1.1, 2.2, 3.3, 5.5]),
    "no outer weights": case_of(0 * E[0], [1, 2, 3, 4], [2, 1, 0, 1], y=[1.1, 2.2, 3.3, 5.5]),
    "no weights": case_of(0 * E[0], 0 * E[0], 0 * E[0], y=[1.1, 2.2, 3.3, 5.5]),
    "v = b": case_of([1, 2, 3, 4], [2, 1, 0, 1], [2, 1, 0, 1], y=[1.1, 2.2, 3.3, 5.5]),
    "all parallel": case_of([1, 2, 3, 4], [2, 4, 6, 8], [-1, -2, -3, -4], y=[1.1, 2.2, 3.3, 5.5]),
    "constant data": case_of([1, 2, 3, 4], [2, 1, 0, 1], [0, 1, 1, 0], x=[2, 2], y=[1, 3]),
    "x = 0": case_of([1, 2, 3, 4], [2, 1, 0, 1], [0, 1, 1, 0], x=[0, 0], y=[1, 3]),
    "one sample": case_of([1, 2, 3, 4], [2, 1, 0, 1], [0, 1, 1, 0], x=[3], y=[1]),
    "zero residual": case_of([1, 2, 3, 4], [2, 1, 0, 1], [0, 1, 1, 0], y=8 * X + 5),
    "zero residual, else the theorem": case_of([1, 2, 3, 4], E[0], E[1], y=X + 2),
}


@pytest.mark.parametrize("name", THEOREM)
def test_where_the_theorem_holds(name):
    case = THEOREM[name]
    s = case.hessian_operator.spectrum()
    assert s.method == "closed form"
    assert_spectrum(s, case.hessian, case.tolerance)
    m = len(case.weights["w"])
    counted = {
        label: sum(p.multiplicity for p in s[label]) for label in ("outlier/pair", "outlier/triple")
    }
    assert counted == {"outlier/pair": 2, "outlier/triple": 3}
    assert [sum(p.multiplicity for p in s[label]) for label in ("bulk", "flat")] == [
        2 * (m - 2),
        m - 1,
    ]


@pytest.mark.parametrize("name", THEOREM)
def test_pair_and_triple_share_the_trace(name):
    case = THEOREM[name]
    s, half = case.hessian_operator.spectrum(), np.trace(case.hessian) / 2
    for label in ("outlier/pair", "outlier/triple"):
        assert sum(p.value for p in s[label]) == pytest.approx(half, rel=1e-14)


@pytest.mark.parametrize("name", GENERAL)
@pytest.mark.parametrize("loss", LOSSES)
def test_where_it_does_not(name, loss):
    plain = GENERAL[name]
    y = np.sign(plain.y) if loss == "logistic" else plain.y
    case = Case("ScalarAffine", plain.weights, plain.x, y, loss)
    for part, dense in [
        (case.hessian_operator, case.hessian),
        (case.hessian_operator.ggn, case.ggn),
        (case.hessian_operator.functional, case.hessian - case.ggn),
    ]:
        assert_spectrum(part.spectrum(), dense, case.tolerance)
    assert case.hessian_operator.spectrum().method == "narrow twin"


def both_routes(case, monkeypatch):
    closed = case.hessian_operator.spectrum()
    monkeypatch.setattr(_orthonormal.Orthonormal, "applies", lambda _: False)
    return closed, case.hessian_operator.spectrum()


@pytest.mark.parametrize("name", THEOREM)
def test_the_two_routes_agree(name, monkeypatch):
    case = THEOREM[name]
    closed, twin = both_routes(case, monkeypatch)
    assert (closed.method, twin.method) == ("closed form", "narrow twin")
    np.testing.assert_allclose(closed.eigenvalues, twin.eigenvalues, rtol=0, atol=1e-14 * case.norm)
    assert_spectrum(twin, case.hessian, case.tolerance)


@given(theorem_cases(), st.integers(-52, -4))
def test_on_either_side_of_the_assumptions(case, exponent):
    """A bias off by an ulp or by more than the theorem bears: the answer is right all the same."""
    bias = case.weights["b"] * (1 + 2.0**exponent)
    moved = Case(case.kind, {**case.weights, "b": bias}, case.x, case.y)
    assert_spectrum(moved.hessian_operator.spectrum(), moved.hessian, moved.tolerance)


@pytest.mark.parametrize(
    "change",
    [
        {"b": E[1] + 1e-6 * E[0]},
        {"b": (1 + 1e-6) * E[1]},
        {"x": X + 1e-6},
        {"x": X * (1 + 1e-6)},
        {"y": X + 1e-6},
    ],
)
def test_each_assumption_counts(change):
    plain = {"w": np.asarray([1.0, 2.0, 3.0, 4.0]), "v": E[0], "b": E[1], "x": X, "y": 0 * X}
    case = case_of(**(plain | change))
    assert case.hessian_operator.spectrum().method == "narrow twin"
    assert_spectrum(case.hessian_operator.spectrum(), case.hessian, case.tolerance)


def test_curvature_of_either_sign():
    """The own loss bends downwards far from the target: pair and triple with s < 0."""
    case = case_of([1, 2, 3, 4], E[0], E[1], y=7 * MASK, loss="own")
    H = case.hessian_operator
    assert np.trace(case.ggn) < 0
    assert_spectrum(H.spectrum(), case.hessian, case.tolerance)


def test_without_bias_and_mean_it_is_the_linear_network():
    case = typical("ScalarLinear", m=4)
    x, y = np.concatenate([case.x, -case.x]), np.concatenate([case.y, -case.y])
    weights = case.weights
    affine = hs.ScalarAffine(weights["w"], weights["v"], 0 * weights["w"]).hessian(x, y)
    linear = hs.ScalarLinear(weights["w"], weights["v"]).hessian(x, y).dense()
    v_and_w = np.r_[0:4, 8:12]
    np.testing.assert_allclose(affine.dense()[np.ix_(v_and_w, v_and_w)], linear, rtol=0, atol=1e-13)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 9])
def test_the_twin_has_at_most_seven_dimensions(m):
    s = typical("ScalarAffine", m=m).hessian_operator.spectrum()
    vectors, _ = all_vectors(s)
    assert len(s["outlier"]) == 2 * min(m, 3) + 1
    assert vectors.shape == (3 * m, 3 * m)


@pytest.mark.parametrize("units", [1e-9, 1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("power", [0.0, -0.5, -1.0])
@pytest.mark.parametrize("m", [2, 5])
def test_inputs_in_any_units_beside_the_constant(units, power, m):
    """Against 60 digits: v may be as large as x is small, with b and the constant 1 beside."""
    rng = np.random.default_rng(m)
    w, v, b = rng.normal(size=(3, m))
    x, y = rng.normal(size=(2, 6))
    case = case_of(w, units**power * v, b, units * x, y)
    exact = np.asarray(exact_eigenvalues(case.exact_hessian), dtype=float)
    spectrum = case.hessian_operator.spectrum()
    assert spectrum.method == "narrow twin"
    tolerance = 1e-13 * np.abs(exact).max()
    np.testing.assert_allclose(spectrum.eigenvalues, exact, rtol=0, atol=tolerance)
    with mpmath.workdps(60):
        rows = [
            [*(w * mpmath.mpf(t)), *(w * mpmath.mpf(1)), *(units**power * v * mpmath.mpf(t) + b)]
            for t in units * x
        ]
        jacobian = mpmath.matrix(rows)
        ggn = jacobian.T * jacobian / len(x)
        parts = [(case.hessian_operator.ggn, ggn)]
        parts += [(case.hessian_operator.functional, case.exact_hessian - ggn)]
        for operator, matrix in parts:
            exact = np.asarray(exact_eigenvalues(matrix), dtype=float)
            values = operator.spectrum().eigenvalues
            np.testing.assert_allclose(values, exact, rtol=0, atol=1e-13 * np.abs(exact).max())
