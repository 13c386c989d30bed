"""Closed forms to the last digits: against exact rational Hessians and 60-digit eigenvalues."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import KINDS, Case, exact_eigenvalues, worst_relative_error
from tests.strategies import dyadic_cases, theorem_cases

PAIRS = [kind for kind in KINDS if kind != "ScalarAffine"]
SCALES = [(0, 0), (498, -498), (-498, 498), (200, 200), (-200, -200), (400, 0), (0, -400)]


def relative_error(case):
    spectrum = case.hessian_operator.spectrum()
    assert spectrum.method == "closed form"
    return worst_relative_error(spectrum.eigenvalues, exact_eigenvalues(case.exact_hessian))


def rescaled(case, a, b):
    weights = {name: np.ldexp(weight, a) for name, weight in case.weights.items()}
    return Case(case.kind, weights, np.ldexp(case.x, b), np.ldexp(case.y, 2 * a + b))


@pytest.mark.parametrize("kind", PAIRS)
@given(data=st.data())
def test_pairs_and_bulk(kind, data):
    case = data.draw(dyadic_cases(kind))
    a, b = data.draw(st.sampled_from(SCALES))
    assert relative_error(rescaled(case, a, b)) < 1e-14


@pytest.mark.parametrize("bits", [20, 40, 50])
@pytest.mark.parametrize("multiple", [1.0, 3.0])
def test_the_small_outlier_beside_the_large_one(bits, multiple):
    """Near the solution, and near a third of it, λ₂ passes through zero."""
    w, v = np.asarray([1.0, 0.5]), np.asarray([1.0, -1.0])
    x = np.asarray([1.0, 1.0])
    y = multiple * 0.5 * x + np.asarray([2.0**-bits, 0.0])
    case = Case("ScalarLinear", {"w": w, "v": v}, x, y)
    upper, *_, lower = sorted(case.hessian_operator.spectrum()["outlier"], key=lambda s: -s.value)
    assert abs(lower.value / upper.value) < 2.0 ** (1 - bits)
    assert relative_error(case) < 1e-14


@given(theorem_cases(), st.sampled_from([0, 400, -400]))
def test_affine_pair_and_triple(case, a):
    assert relative_error(rescaled(case, a, 0)) < 1e-14


def test_affine_near_its_solution():
    for bits in range(0, 41, 4):
        weights = {"w": [1.0, 1.0, 1.0], "v": [1.0, 0.0, 0.0], "b": [0.0, 1.0, 0.0]}
        x = np.asarray([1.0, -1.0])
        case = Case(
            "ScalarAffine",
            {name: np.asarray(value) for name, value in weights.items()},
            x,
            (x + 1) * (1 + 2.0**-bits),
        )
        assert relative_error(case) < 1e-14


def test_moments_of_many_bits():
    g, y = 1 + 3 * 2.0**-52, 3 + 2.0**-49
    weights = {"w": np.asarray([g]), "v": np.asarray([1.0])}
    assert relative_error(Case("ScalarLinear", weights, np.asarray([3.0]), np.asarray([y]))) < 1e-14


def test_affine_triple_with_tiny_roots():
    weights = {"w": [2.0**-50, 2.0**-50, 1.0], "v": [1.0, 0.0, 0.0], "b": [0.0, 1.0, 0.0]}
    weights = {name: np.asarray(value) for name, value in weights.items()}
    case = Case("ScalarAffine", weights, np.asarray([1.0, -1.0]), np.zeros(2))
    assert relative_error(case) < 1e-14


def test_affine_gauss_newton_part():
    e = 2.0**-20
    weights = {
        "w": np.asarray([e, 0.0]),
        "v": np.asarray([1.0, 1.0]),
        "b": np.asarray([1.0, 1 + e]),
    }
    case = Case("ScalarAffine", weights, np.asarray([1.0, -1.0]), np.zeros(2))
    spectrum = case.hessian_operator.ggn.spectrum()
    jacobian = mpmath.matrix([[e, 0, 0, 0, 1, 1], [0, 0, e, 0, 1, 1 + mpmath.mpf(e)]])
    assert spectrum.method == "closed form"
    assert (
        worst_relative_error(spectrum.eigenvalues, exact_eigenvalues(jacobian.T * jacobian)) < 1e-14
    )


@pytest.mark.parametrize("near", [1, 3])
def test_many_bits_near_the_solution_and_near_a_third_of_it(near):
    rng = np.random.default_rng(near)
    for _ in range(20):
        g = 1 + int(rng.integers(1, 2**52)) * 2.0**-52
        aim = near * g * 3.0 * (1 + 2.0**-40 * int(rng.integers(1, 9)))
        y = np.ldexp(np.round(np.ldexp(aim, 45)), -45)
        weights = {"w": np.asarray([g]), "v": np.asarray([1.0])}
        for kind in ("ScalarLinear", "ScalarReLU"):
            case = Case(kind, weights, np.asarray([3.0]), np.asarray([y]))
            assert relative_error(case) < 1e-14
