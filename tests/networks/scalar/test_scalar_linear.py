"""The scalar linear network: its corners, and its vectors there."""

import numpy as np
import pytest

import hessence as hs
from tests.oracle import Case, assert_spectrum
from tests.strategies import typical

W = np.asarray([1.0, -2.0, 0.5])
X, Y = np.asarray([1.0, -1.0, 2.0]), np.asarray([0.5, 1.0, -1.0])
CORNERS = {
    "w = v": (W, W, Y),
    "w = −v": (W, -W, Y),
    "w = 0": (0 * W, W, Y),
    "v = 0": (W, 0 * W, Y),
    "no weights": (0 * W, 0 * W, Y),
    "no weights, no covariance": (0 * W, 0 * W, 0 * Y),
    "solution": (W, W, W @ W * X),
    "solution at w = −v": (W, -W, -W @ W * X),
    "a third of the solution": (W, W, 3 * W @ W * X),
    "orthogonal": (np.asarray([1.0, 0.0, 0.0]), np.asarray([0.0, 1.0, 0.0]), Y),
    "one axis": (np.asarray([-2.0, 0.0, 0.0]), np.asarray([1.0, 0.0, 0.0]), Y),
    "one unit": (W[:1], 3 * W[:1], Y),
    "one unit, w = −v": (W[:1], -W[:1], Y),
    "one dead unit": (0 * W[:1], 0 * W[:1], Y),
    "nearly w = v": (W, W * (1 + 1e-12), Y),
    "far apart": (1e-6 * W, 1e6 * W[::-1], Y),
}


@pytest.mark.parametrize("name", CORNERS)
@pytest.mark.parametrize("loss", ["mse", "own"])
def test_corners(name, loss):
    w, v, y = CORNERS[name]
    case = Case("ScalarLinear", {"w": w, "v": v}, X, y, loss)
    assert_spectrum(case.hessian_operator.spectrum(), case.hessian, case.tolerance)
    assert_spectrum(case.hessian_operator.ggn.spectrum(), case.ggn, case.tolerance)


def test_rank_one_at_the_solution():
    s = hs.ScalarLinear(W, W).hessian(X, W @ W * X).spectrum()
    assert s.rank() == 1
    assert s.sharpness == s.trace


@pytest.mark.parametrize("m", [1, 2, 3, 7])
def test_groups_of_any_width(m):
    s = typical("ScalarLinear", m=m).hessian_operator.spectrum()
    groups = sorted((space.label, space.multiplicity) for space in s.spaces)
    bulk = [("bulk", m - 1)] * 2 if m > 1 else []
    assert groups == sorted([*bulk, ("outlier", 1), ("outlier", 1)])
    assert (s.method, s.exact, len(s)) == ("closed form", True, 2 * m)


def test_smallest_eigenvalue_is_bounded_by_the_loss():
    """λ_min = −|δ| ≥ −σ √(2ℓ) for m ≥ 2, a bound that needs no formula of the spectrum."""
    for seed in range(20):
        case = typical("ScalarLinear", seed=seed)
        bound = np.sqrt(np.mean(case.x**2) * 2 * case.value)
        assert -bound <= case.hessian_operator.spectrum().eigenvalues[-1] < 0


def test_predictions_need_one_axis():
    net = hs.ScalarLinear(W, W)
    np.testing.assert_allclose(net(X), W @ W * X, rtol=1e-15)
    assert repr(net) == "ScalarLinear(m=3)"
    with pytest.raises(IndexError, match="single network"):
        net[0]
