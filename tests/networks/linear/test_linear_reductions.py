"""Wide and deep networks: the twin, the range, and the top where neither is small."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from hessence.networks.linear.range_reduction import range_of, range_size
from tests.networks.linear.cases import DIMS, operator, random_case


def test_flat_directions_inside_the_twin_are_counted_exactly():
    case = random_case((6, 4, 1), seed=6, samples=9)
    spectrum = hs.TwoLayerLinear(*case.weights).hessian(case.x, case.y).spectrum()
    nonzero = np.abs(np.linalg.eigvalsh(case.hessian)) > 1e-12 * case.norm
    assert sum(s.multiplicity for s in spectrum["flat"]) == int((~nonzero).sum())
    assert sum(s.multiplicity for s in spectrum["twin"]) == 2 * 4 + 6 - 1


def test_width_costs_nothing():
    rng = np.random.default_rng(7)
    narrow = rng.normal(size=(5, 3)), rng.normal(size=(2, 5))
    wide = np.zeros((20_000, 3)), np.zeros((2, 20_000))
    wide[0][:5], wide[1][:, :5] = narrow
    x, y = rng.normal(size=(9, 3)), rng.normal(size=(9, 2))
    small = hs.TwoLayerLinear(*narrow).hessian(x, y).spectrum()
    H = hs.TwoLayerLinear(*wide).hessian(x, y)
    large = H.spectrum()
    gradient = (narrow[1] @ narrow[0] @ x.T - y.T) @ x / 9
    sigma = np.linalg.svd(gradient, compute_uv=False)
    expected = np.concatenate([small.eigenvalues, np.repeat([*sigma, *-sigma], 19_995)])
    flat = len(large) - len(expected)
    expected = np.sort(np.concatenate([expected, np.zeros(flat)]))[::-1]
    np.testing.assert_allclose(large.eigenvalues, expected, atol=1e-12)
    assert large.verify(H, samples=2).worst < 1e-12


@pytest.mark.parametrize(
    ("dims", "size"), [((1, 100, 100, 1), 100 + 199 + 100), ((2, 40, 40, 40, 1), 80 + 2 * 118 + 40)]
)
def test_range_reduction_beats_the_parameter_count(dims, size):
    case = random_case(dims, seed=11, scale=0.2)
    spectrum = operator(case).spectrum()
    assert spectrum.method == "range reduction"
    assert sum(s.multiplicity for s in spectrum["range"]) == size
    H = operator(case)
    assert spectrum.verify(H, samples=2).worst < 1e-12


@given(DIMS, st.integers(0, 99), st.none() | st.integers(0, 4))
def test_size_of_the_range_is_known_without_its_bases(dims, seed, zero):
    H = operator(random_case(dims, seed, zero=zero))
    around = H.chain.before, H.chain.after
    assert range_size(*around) == range_of(H.chain, *around).size


def test_closed_forms_have_no_size_limit():
    net = hs.DeepLinear.balanced((90, 100, 80), np.linspace(0.5, 1.5, 80), rng=0)
    x = hs.whiten(np.random.default_rng(36).normal(size=(100, 90)))
    spectrum = net.hessian(x, net(x)).ggn.spectrum()
    assert spectrum.method.startswith("closed form")
    assert spectrum.rank() == 90 * 80
    deep = hs.init.standard((90, 100, 100, 80), rng=0)
    with pytest.raises(ValueError, match=r"H\.ggn\.top\(k\)"):
        deep.hessian(x, deep(x)).ggn.spectrum()


def test_no_exact_route_is_said_with_what_to_call():
    rng = np.random.default_rng(10)
    net = hs.init.standard((30, 60, 60, 30), rng=0)
    x, y = rng.normal(size=(50, 30)), rng.normal(size=(50, 30))
    with pytest.raises(ValueError, match=r"H\.top\(k\)"):
        net.hessian(x, y).spectrum()


def test_top_finds_the_ends_of_what_spectrum_finds():
    case = random_case((4, 8, 8, 3), seed=9)
    H = operator(case)
    values = np.linalg.eigvalsh(case.hessian)
    found = H.top(3, tol=1e-10)
    np.testing.assert_allclose(found.eigenvalues, values[::-1][:3], atol=1e-8 * case.norm)
    low = H.top(2, which="SA", tol=1e-10)
    np.testing.assert_allclose(np.sort(low.eigenvalues), values[:2], atol=1e-8 * case.norm)


@pytest.mark.parametrize("which", ["LA", "SA", "LM", "BE"])
@pytest.mark.parametrize("residual", [0.0, 0.3, 5.0])
def test_the_top_of_wide_networks_through_their_twin(which, residual):
    rng = np.random.default_rng(25)
    W1, W2 = rng.normal(size=(40, 3)) / 6, rng.normal(size=(2, 40)) / 6
    x = rng.normal(size=(30, 3))
    y = x @ (W2 @ W1).T + residual * rng.normal(size=(30, 2))
    H = hs.TwoLayerLinear(W1, W2).hessian(x, y)
    values = np.linalg.eigvalsh(H.dense())[::-1]
    order = {"LA": -values, "SA": values, "LM": -np.abs(values)}
    if which == "BE":
        expected = np.concatenate([values[:2], values[-2:]])
    else:
        expected = np.sort(values[np.argsort(order[which], stable=True)[:4]])[::-1]
    found = H.top(4, which, tol=1e-10)
    norm = np.abs(values).max()
    np.testing.assert_allclose(np.abs(found.eigenvalues), np.abs(expected), atol=1e-8 * norm)
    defect = H @ found.eigenvectors - found.eigenvalues * found.eigenvectors
    assert np.linalg.norm(defect, axis=0).max() < 1e-8 * norm
    started = H.top(4, which, tol=1e-10, v0=found.eigenvectors[:, 0])
    np.testing.assert_allclose(np.abs(started.eigenvalues), np.abs(expected), atol=1e-8 * norm)
