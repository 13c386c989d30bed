"""Decoupled networks: direct sums, and what correlated inputs couple."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from tests.oracle import Case, assert_spectrum
from tests.strategies import typical

ORTHOGONAL = np.kron(np.eye(3), [[1.0], [-2.0]])
DATA = {
    "orthogonal": ORTHOGONAL,
    "orthogonal in sum only": np.asarray([[1.0, 1, 1], [1, -1, 1], [-1, 1, 1], [-1, -1, 1]])
    * [1, 2, 0],
    "one input never seen": ORTHOGONAL * [1, 0, 1],
    "all inputs equal": np.outer([1.0, 2.0, -1.0], [1.0, 1.0, 1.0]),
    "two inputs equal": np.asarray([[1.0, 1, 2], [3, 3, -1], [0, 0, 1]]),
    "one sample": np.asarray([[1.0, 2.0, 3.0]]),
    "nothing": np.zeros((2, 3)),
    "barely correlated": ORTHOGONAL + 1e-13 * np.roll(ORTHOGONAL, 1, axis=1),
    "correlated by less than rounding": ORTHOGONAL + 1e-17 * np.roll(ORTHOGONAL, 1, axis=1),
    "of very different size": ORTHOGONAL * [1e-6, 1, 1e6],
}

COUPLED = {"all inputs equal", "two inputs equal", "one sample", "barely correlated"}


@pytest.mark.parametrize("m", [1, 2, 4])
@pytest.mark.parametrize("name", DATA)
def test_inputs_with_any_correlation(name, m):
    case = typical("DecoupledInputs", m=m, d=3, x=DATA[name])
    H = case.hessian_operator
    assert_spectrum(H.spectrum(), case.hessian, case.tolerance)
    assert_spectrum(H.ggn.spectrum(), case.ggn, case.tolerance)
    assert H.spectrum().method == ("coupled block" if name in COUPLED else "closed form")


@pytest.mark.parametrize("kind", ["DecoupledInputs", "DecoupledOutputs"])
def test_a_direct_sum_of_scalar_networks(kind):
    """Each row with its own data is a ScalarLinear network, labelled by its index."""
    case = typical(kind, m=3, d=3, x=ORTHOGONAL if kind == "DecoupledInputs" else None)
    s = case.hessian_operator.spectrum()
    letter = {"DecoupledInputs": "x", "DecoupledOutputs": "y"}[kind]
    for d in range(3):
        x, y = (case.x[:, d], case.y) if letter == "x" else (case.x, case.y[:, d])
        one = hs.ScalarLinear(case.weights["W"][d], case.weights["V"][d]).hessian(x, y).spectrum()
        own = [p for p in s.spaces if p.label.endswith(f"/{letter}{d}")]
        values = np.concatenate([np.full(p.multiplicity, p.value) for p in own])
        np.testing.assert_allclose(np.sort(values)[::-1], one.eigenvalues, rtol=1e-13)


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_correlation_leaves_the_bulk_alone(seed, d):
    case = typical("DecoupledInputs", seed=seed, m=4, d=d)
    bulk = case.hessian_operator.spectrum()["bulk"]
    residual = case.predictions[:, 0] - case.y
    slopes = residual @ case.x / len(case.x)
    values = np.sort([p.value for p in bulk])
    np.testing.assert_allclose(values, np.sort([*slopes, *-slopes]), rtol=1e-12, atol=1e-14)
    assert {p.multiplicity for p in bulk} == {3}


@pytest.mark.parametrize("corner", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("m", [1, 3])
def test_rows_with_w_equal_to_plus_or_minus_v_or_zero(corner, m):
    plain = typical("DecoupledInputs", m=m, d=3)
    W = plain.weights["V"].copy()
    W[1] *= corner
    case = Case("DecoupledInputs", {"V": plain.weights["V"], "W": W}, plain.x, plain.y)
    assert_spectrum(case.hessian_operator.spectrum(), case.hessian, case.tolerance)


def test_diagonal_linear_networks():
    s = typical("DecoupledInputs", m=1, d=3).hessian_operator.spectrum()
    assert len(s) == 6
    assert s["bulk"] == ()


def test_shapes_of_data_for_outputs():
    case = typical("DecoupledOutputs", d=1)
    flat = case.net.hessian(case.x, case.y[:, 0]).dense()
    for x, y in [(case.x, case.y), (case.x[:, None], case.y)]:
        np.testing.assert_array_equal(case.net.hessian(x, y).dense(), flat)
    assert case.net(case.x).shape == case.net(case.x[:, None]).shape == (5, 1)


def test_the_loss_of_uncorrelated_inputs_from_moments_alone():
    """The least loss counts once, and not for each input."""
    case = typical("DecoupledInputs", m=3, d=3, x=ORTHOGONAL)
    moments = hs.Moments.from_batches([(case.x, case.y)])
    expected = np.mean((case.predictions[:, 0] - case.y) ** 2) / 2
    assert float(case.net.loss(moments)) == pytest.approx(expected, rel=1e-13)


def test_errors_of_many_uncorrelated_inputs_are_like_those_of_a_dense_block():
    rng = np.random.default_rng(0)
    net = hs.DecoupledInputs(*rng.normal(size=(2, 60, 3)))
    x, y = 13 * np.linalg.qr(rng.normal(size=(180, 60)))[0], rng.normal(size=180)
    block = net.hessian(x + 1e-6 * rng.normal(size=x.shape), y).spectrum()
    spectrum = net.hessian(x, y).spectrum()
    assert (spectrum.method, block.method) == ("closed form", "coupled block")
    assert spectrum.errors.max() < 2 * block.errors.max()
