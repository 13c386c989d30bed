"""Linear networks of any size, depth and data against autodiff."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from tests.linear_oracle import LinearCase, assert_same_spectrum
from tests.networks.linear.cases import DIMS, aligned_case, operator, random_case


@given(DIMS, st.integers(0, 10**6), st.sampled_from([None, 1, 2]), st.sampled_from([None, 0, 1]))
def test_every_network_against_autodiff(dims, seed, rank, zero):
    case = random_case(dims, seed, rank=rank, zero=zero)
    H = operator(case)
    np.testing.assert_allclose(H.dense(), case.hessian, rtol=0, atol=1e-12 * case.norm)
    np.testing.assert_allclose(H.ggn.dense(), case.ggn, rtol=0, atol=1e-12 * case.norm)
    assert_same_spectrum(H.spectrum(), case.hessian, case.norm)
    assert_same_spectrum(H.ggn.spectrum(), case.ggn, case.norm)
    assert_same_spectrum(H.functional.spectrum(), case.hessian - case.ggn, case.norm)


@pytest.mark.parametrize("loss", ["mse", "logistic", "cross-entropy"])
@pytest.mark.parametrize(("m", "D", "K"), [(1, 1, 2), (3, 2, 2), (4, 2, 2), (9, 3, 2), (6, 1, 4)])
def test_two_layers_with_any_loss(loss, m, D, K):
    case = random_case((D, m, K), seed=m, loss=loss)
    net = hs.TwoLayerLinear(*case.weights)
    H = net.hessian(case.x, case.y, loss)
    assert float(net.loss(case.x, case.y, loss)) == pytest.approx(case.value, rel=1e-12)
    gradient = net.gradient(case.x, case.y, loss)
    np.testing.assert_allclose(gradient, case.gradient, rtol=0, atol=1e-12 * case.norm)
    assert_same_spectrum(H.spectrum(), case.hessian, case.norm)
    assert_same_spectrum(H.ggn.spectrum(), case.ggn, case.norm)
    assert H.spectrum().verify(H).worst < 1e-12
    assert H.functional.spectrum().verify(H.functional).worst < 1e-12


@pytest.mark.parametrize("loss", ["logistic", "cross-entropy"])
def test_deep_networks_with_other_losses(loss):
    case = random_case((2, 3, 3, 2), seed=1, loss=loss)
    H = operator(case)
    assert_same_spectrum(H.spectrum(), case.hessian, case.norm)
    certificate = H.spectrum().verify(H)
    assert certificate.worst < 1e-12


def test_a_users_own_torch_loss():
    def quartic(prediction, target):
        return ((prediction - target) ** 4).mean() - (prediction**2).sum() / 50

    case = random_case((3, 6, 2), seed=3)
    own = LinearCase(case.weights, case.x, case.y, own=quartic)
    net = hs.TwoLayerLinear(*case.weights)
    assert float(net.loss(case.x, case.y, quartic)) == pytest.approx(own.value)
    H = net.hessian(case.x, case.y, quartic)
    assert_same_spectrum(H.spectrum(), own.hessian, own.norm)
    assert_same_spectrum(H.ggn.spectrum(), own.ggn, own.norm)


def test_torch_class_indices_reach_a_torch_loss_as_integers():
    case = random_case((3, 4, 3), seed=4, loss="cross-entropy")
    net = hs.TwoLayerLinear(*case.weights)
    named = net.hessian(case.x, case.y, "cross-entropy").spectrum()
    own = net.hessian(case.x, case.y, torch.nn.CrossEntropyLoss()).spectrum()
    np.testing.assert_allclose(own.eigenvalues, named.eigenvalues, atol=1e-13)


@pytest.mark.parametrize("kind", [hs.TwoLayerLinear, lambda *w, **k: hs.DeepLinear(w, **k)])
def test_multipliers_scale_the_function_not_the_weights(kind):
    case = random_case((3, 5, 2), seed=5)
    net = kind(*case.weights, multipliers=(0.5, 3.0))
    scaled = LinearCase(case.weights, case.x, case.y, scale=1.5)
    np.testing.assert_allclose(net(case.x), scaled.outputs(scaled.theta).numpy(), rtol=1e-12)
    assert float(net.loss(case.x, case.y)) == pytest.approx(scaled.value)
    np.testing.assert_allclose(net.gradient(case.x, case.y), scaled.gradient, atol=1e-12)
    assert_same_spectrum(net.hessian(case.x, case.y).spectrum(), scaled.hessian, scaled.norm)
    moments = hs.Moments.from_batches([(case.x[:4], case.y[:4]), (case.x[4:], case.y[4:])])
    np.testing.assert_allclose(
        net.hessian(moments).dense(), scaled.hessian, atol=1e-12 * scaled.norm
    )


@given(DIMS, st.integers(0, 10**6))
def test_invariants_come_from_the_entries(dims, seed):
    case = random_case(dims, seed)
    for part in (operator(case), operator(case).ggn, operator(case).functional):
        dense = part.dense()
        assert float(part.trace()) == pytest.approx(np.trace(dense), abs=1e-11 * case.norm)
        assert float(part.squared_norm()) == pytest.approx((dense**2).sum(), rel=1e-10, abs=1e-20)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hs.DeepLinear([]), "weights is empty"),
        (lambda: hs.DeepLinear([np.ones(3)]), r"weights\[0\] must have shape"),
        (
            lambda: hs.DeepLinear([np.ones((2, 3)), np.ones((2, 3))]),
            r"weights\[1\] must take the 2",
        ),
        (lambda: hs.TwoLayerLinear(np.ones((2, 3)), np.ones((2, 3))), "W2 must take the 2 outputs"),
        (lambda: hs.DeepLinear([np.ones((2, 3))], multipliers=(1, 2)), "multipliers must have 1"),
        (lambda: hs.DeepLinear([np.ones((2, 3))], multipliers=(0,)), "multipliers must be finite"),
        (lambda: hs.DeepLinear.balanced((3,), (1.0,)), "dims"),
        (lambda: hs.DeepLinear.balanced((3, 0, 2), (1.0,)), "dims"),
        (lambda: hs.DeepLinear.balanced((3, 2, 4), (1.0,) * 3), "singular_values"),
        (lambda: hs.DeepLinear.balanced((3, 2), (-1.0,)), "singular_values"),
        (lambda: hs.DeepLinear.balanced_from(np.eye(3), (3, 2, 3)), "dims must be at least 3"),
        (lambda: hs.DeepLinear.balanced_from(np.eye(3), (3, 4, 2)), "product must have shape"),
        (lambda: hs.narrow_twin(np.ones((3, 2)), np.ones((2, 2))), "W2"),
        (lambda: hs.narrow_twin(np.ones((3, 2)), np.ones((2, 3)), tol=-1), "tol"),
    ],
)
def test_bad_networks(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("x", "y", "loss", "words"),
    [
        (np.ones((4, 2)), np.ones((4, 2)), "mse", r"x must have shape \(n, 3\) and y \(n, 2\)"),
        (np.ones((4, 3)), np.ones((5, 2)), "mse", "y must have one row"),
        (np.ones((4, 3)), np.asarray([0, 1, 2, 0]), "cross-entropy", "class indices from 0 to 1"),
        (np.ones((4, 3)), np.asarray([0.5, 1, 1, 0]), "cross-entropy", "class indices"),
        (np.ones((4, 3)), np.ones((4, 2)), "none", "loss must be one of"),
        (np.ones((4, 3)), np.ones((4, 2)), lambda f, t: f - t, "single number"),
    ],
)
def test_bad_data(x, y, loss, words):
    net = hs.TwoLayerLinear(np.ones((4, 3)), np.ones((2, 4)))
    with pytest.raises(ValueError, match=words):
        net.hessian(x, y, loss)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        random_case((20, 60, 15), seed=20, scale=0.2, samples=30),
        random_case((12, 20, 30, 20, 6), seed=21, scale=0.25, samples=40),
        random_case((1, 40, 30, 1), seed=22, scale=0.3),
        aligned_case((25, 30, 28), np.linspace(0.2, 2.0, 25)[:, None] * [1.0, 1.1], seed=23),
        aligned_case((20, 22, 24, 18), np.linspace(0.2, 1.5, 18)[:, None] * [1.0, 0.9, 1.2], 24),
    ],
    ids=["two layers", "deep", "one in one out", "aligned two", "aligned three"],
)
def test_large_networks_against_dense_autodiff(case):
    H = operator(case)
    spectrum = H.spectrum()
    values = np.linalg.eigvalsh(case.hessian)[::-1]
    np.testing.assert_allclose(spectrum.eigenvalues, values, rtol=0, atol=1e-11 * case.norm)
    ggn = np.linalg.eigvalsh(case.ggn)[::-1]
    np.testing.assert_allclose(H.ggn.spectrum().eigenvalues, ggn, rtol=0, atol=1e-11 * case.norm)
    assert spectrum.verify(case.hessian).worst < 1e-11


@pytest.mark.parametrize(
    ("weight", "data"), [(1.0, 1e-90), (1e40, 1.0), (1e-30, 1e20), (1e25, 1e-60)]
)
def test_scales_far_from_one(weight, data):
    rng = np.random.default_rng(33)
    net = hs.DeepLinear([weight * rng.normal(size=(3, 3)) for _ in range(3)])
    x, y = data * rng.normal(size=(2, 5, 3))
    H = net.hessian(x, y)
    dense = H.dense()
    values = np.linalg.eigvalsh(dense)[::-1]
    np.testing.assert_allclose(H.spectrum().eigenvalues, values, atol=1e-12 * np.abs(values).max())


def test_one_layer_is_a_network_too():
    rng = np.random.default_rng(34)
    x, y = rng.normal(size=(9, 3)), rng.normal(size=(9, 2))
    H = hs.DeepLinear([rng.normal(size=(2, 3))]).hessian(x, y)
    top = np.linalg.eigvalsh(x.T @ x / 9)[-1]
    assert float(H.top(1).eigenvalues[0]) == pytest.approx(top)
    assert float(H.spectrum().sharpness) == pytest.approx(top)
