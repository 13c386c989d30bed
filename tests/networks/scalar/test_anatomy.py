"""What sharpness is made of, and the phases of learning."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from tests.oracle import Case
from tests.strategies import cases, typical


def papers_terms(w, v, x, y, n=None):
    """Return the papers' four terms of λ₁ = T/2 + R/2 in 60 digits."""
    n = len(x) if n is None else n

    def dot(a, b):
        return mpmath.fsum(mpmath.mpf(s) * mpmath.mpf(t) for s, t in zip(a, b, strict=True))

    variance, covariance = dot(x, x) / n, dot(y, x) / n
    g, ww, vv = dot(w, v), dot(w, w), dot(v, v)
    squares = [
        (variance * ww - variance * vv) ** 2,
        4 * variance**2 * (ww * vv - g**2),
        4 * (2 * g * variance - covariance) ** 2,
    ]
    radius = mpmath.sqrt(mpmath.fsum(squares))
    return [variance * (ww + vv) / 2, *(square / (2 * (radius or 1)) for square in squares)]


def assert_anatomy(anatomy, terms):
    size = float(sum(terms))
    assert list(anatomy.terms()) == [
        "trace",
        "norm_imbalance",
        "non_collinearity",
        "distance_from_target",
    ]
    for mine, papers in zip(anatomy.terms().values(), terms, strict=True):
        assert mine >= 0
        assert abs(mine - float(papers)) <= 1e-14 * size
    assert sum(anatomy.terms().values()) == pytest.approx(size, rel=1e-14)
    assert anatomy.sharpness == pytest.approx(size, rel=1e-14)


@given(cases("ScalarLinear", exponents=st.integers(-3, 3)))
def test_four_terms_as_the_papers_have_them(case):
    anatomy = case.net.anatomy(case.x, case.y)
    assert_anatomy(anatomy, papers_terms(case.weights["w"], case.weights["v"], case.x, case.y))
    np.testing.assert_allclose(
        anatomy.sharpness, np.linalg.eigvalsh(case.hessian)[-1], rtol=0, atol=case.tolerance
    )
    assert anatomy.sharpness == case.hessian_operator.spectrum().sharpness


@pytest.mark.parametrize(("a", "b"), [(0, 0), (498, -498), (-498, 498), (240, 240), (-240, -240)])
def test_anatomy_at_any_scale(a, b):
    case = typical("ScalarLinear")
    w, v = (np.ldexp(case.weights[name], a) for name in "wv")
    x, y = np.ldexp(case.x, b), np.ldexp(case.y, 2 * a + b)
    assert_anatomy(hs.ScalarLinear(w, v).anatomy(x, y), papers_terms(w, v, x, y))


@pytest.mark.parametrize("angle", [1e-4, 1e-8, 1e-12])
def test_a_small_angle_keeps_its_digits(angle):
    w, v = np.asarray([1.0, 0.0]), np.asarray([1.0, angle])
    x, y = np.asarray([1.0]), np.asarray([0.5])
    term = hs.ScalarLinear(w, v).anatomy(x, y).non_collinearity
    assert term == pytest.approx(float(papers_terms(w, v, x, y)[2]), rel=1e-13)


@pytest.mark.filterwarnings("ignore::hessence.KinkWarning")
@given(cases("ScalarReLU", exponents=st.integers(-2, 2)))
def test_cells_and_the_one_that_dictates(case):
    anatomy = case.net.anatomy(case.x, case.y)
    w, v, n = case.weights["w"], case.weights["v"], len(case.x)
    for sign, units, data in [("+", v > 0, case.x > 0), ("-", v < 0, case.x <= 0)]:
        terms = papers_terms(w[units], v[units], case.x[data], case.y[data], n)
        assert_anatomy(anatomy.cells[sign], terms if units.any() else [0] * 4)
    largest = max(cell.sharpness for cell in anatomy.cells.values())
    assert anatomy.sharpness == largest == anatomy.cells[anatomy.dictating].sharpness
    np.testing.assert_allclose(
        anatomy.sharpness, np.linalg.eigvalsh(case.hessian)[-1], rtol=0, atol=case.tolerance
    )


def test_a_cell_without_units_dictates_nothing():
    net = hs.ScalarReLU([0.1, 0.1], [0.1, 0.1])
    x, y = np.asarray([0.1, -100.0]), np.asarray([0.1, 100.0])
    assert net.anatomy(x, y).dictating == "+"
    assert net.anatomy(x, y).sharpness == net.hessian(x, y).spectrum().sharpness
    assert net.phase(x, y, cell="-") is None


# Phases.


def least_squares(x, y):
    return np.linalg.lstsq(x[:, None], y, rcond=None)[0][0]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("progress", np.linspace(-1, 2, 31) + 0.013)
def test_phases_and_the_signs_that_go_with_them(progress, sign):
    """λ₂ ≤ 0 and λ₁ ≥ T just outside the late phase, which dense algebra can tell."""
    x, y = np.asarray([1.0, -2.0, 0.5]), sign * np.asarray([1.0, -1.5, 2.0])
    target = least_squares(x, y)
    w = np.asarray([1.0, 0.5, -1.0])
    v = progress * target * w / (w @ w) + np.asarray([0.5, 0.0, 0.5])  # the second term is ⟂ w
    phase = hs.ScalarLinear(w, v).phase(x, y)
    assert phase == ("early" if progress < 1 / 3 else "late" if progress < 1 else "divergent")
    dense = Case("ScalarLinear", {"w": w, "v": v}, x, y).hessian
    assert (phase == "late") == (np.linalg.eigvalsh(dense)[-1] < np.trace(dense))


def test_at_the_solution_and_without_one():
    x = np.asarray([1.0, -2.0, 0.3])
    w, v = np.asarray([0.3, 0.7]), np.asarray([1.1, 0.9])
    net = hs.ScalarLinear(w, v)
    assert net.phase(x, net(x)) == "late"
    assert net.phase(x, 0 * x) is None
    assert net.phase(0 * x, x) is None
    assert hs.ScalarLinear(w, 0 * v).phase(x, x) == "early"


def test_phases_of_a_batch():
    x = np.asarray([1.0, -1.0])
    v = np.asarray([[0.1], [0.5], [2.0]])
    net = hs.ScalarLinear(np.ones((3, 1)), v)
    assert list(net.phase(x, x)) == ["early", "late", "divergent"]
    relu = hs.ScalarReLU(np.ones((3, 1)), v)
    assert list(relu.phase(x, x)) == ["early", "late", "divergent"]
    assert list(relu.anatomy(x, x).dictating) == ["+", "+", "+"]


def test_phase_of_a_relu_network_is_that_of_the_cell_that_dictates():
    w, v = np.asarray([1.0, 1.0]), np.asarray([0.1, -3.0])
    net, x, y = hs.ScalarReLU(w, v), np.asarray([1.0, -1.0]), np.asarray([1.0, 1.0])
    assert net.phase(x, y, cell="+") == "early"
    assert net.phase(x, y, cell="-") == "divergent"
    assert net.anatomy(x, y).dictating == "-"
    assert net.phase(x, y) == "divergent"
