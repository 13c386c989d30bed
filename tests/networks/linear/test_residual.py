"""Residual connections: layers I + W, and I + W2 W1, against autodiff."""

import numpy as np
import pytest
import torch

import hessence as hs
from tests.linear_oracle import assert_same_spectrum


def deep(weights, x):
    for w in weights:
        x = x + x @ w.T
    return x


def two_layers(weights, x):
    return x + x @ weights[0].T @ weights[1].T


def dense(forward, weights, x, y, scale=1.0):
    """The Hessian and the Gauss–Newton part of ½ E‖scale · f(x) − y‖², by autodiff."""
    shapes = [w.shape for w in weights]
    theta = torch.cat([torch.as_tensor(w).ravel() for w in weights])
    x, y = torch.as_tensor(x), torch.as_tensor(y)

    def outputs(theta):
        pieces = theta.split([int(np.prod(s)) for s in shapes])
        return scale * forward([p.reshape(s) for p, s in zip(pieces, shapes, strict=True)], x)

    def loss(theta):
        return ((outputs(theta) - y) ** 2).sum() / (2 * len(x))

    jacobian = torch.autograd.functional.jacobian(outputs, theta).flatten(0, 1)
    hessian = torch.autograd.functional.hessian(loss, theta).numpy()
    gradient = torch.autograd.functional.jacobian(loss, theta).numpy()
    return hessian, (jacobian.T @ jacobian / len(x)).numpy(), gradient, float(loss(theta))


def cases():
    rng = np.random.default_rng(0)
    for d, depth in [(1, 1), (3, 1), (2, 2), (3, 3), (2, 5)]:
        weights = [0.5 * rng.normal(size=(d, d)) for _ in range(depth)]
        yield f"deep {d} {depth}", hs.DeepLinear(weights, residual=True), deep, 1.0
    scaled = hs.DeepLinear(
        [rng.normal(size=(3, 3)), rng.normal(size=(3, 3))], multipliers=(0.5, 3.0), residual=True
    )
    yield "multipliers", scaled, deep, 1.5
    for d, m in [(1, 1), (3, 2), (2, 9), (1, 6)]:
        net = hs.ResidualLinear(rng.normal(size=(m, d)), rng.normal(size=(d, m)))
        yield f"two layers {d} {m}", net, two_layers, 1.0
    yield "nothing", hs.ResidualLinear(np.zeros((4, 2)), np.zeros((2, 4))), two_layers, 1.0


CASES = list(cases())


@pytest.mark.parametrize(
    ("net", "forward", "scale"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_against_autodiff(net, forward, scale):
    rng = np.random.default_rng(1)
    d = net.dims[0]
    x, y = rng.normal(size=(2, 7, d))
    hessian, ggn, gradient, value = dense(forward, net.weights, x, y, scale)
    norm = np.abs(np.linalg.eigvalsh(hessian)).max()
    weights = [torch.as_tensor(w) for w in net.weights]
    np.testing.assert_allclose(net(x), scale * forward(weights, torch.as_tensor(x)), rtol=1e-12)
    assert float(net.loss(x, y)) == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(net.gradient(x, y), gradient, rtol=0, atol=1e-13 * norm)
    H = net.hessian(x, y)
    np.testing.assert_allclose(H.dense(), hessian, rtol=0, atol=1e-13 * norm)
    assert_same_spectrum(H.spectrum(), hessian, norm)
    assert_same_spectrum(H.ggn.spectrum(), ggn, norm)
    assert_same_spectrum(H.functional.spectrum(), hessian - ggn, norm)
    assert H.spectrum().verify(H).worst < 1e-13
    again = net.with_parameters(net.parameters())
    np.testing.assert_array_equal(again(x), net(x))


def test_small_residual_layers_are_nearly_the_identity():
    x = hs.whiten(np.random.default_rng(2).normal(size=(20, 4)))
    net = hs.DeepLinear([np.zeros((4, 4))] * 3, residual=True)
    s = net.hessian(x, x).spectrum()
    # Three layers I: all of M moves with each, so the d² eigenvalues are 3.
    np.testing.assert_allclose(s.eigenvalues[:16], 3.0, rtol=1e-13)
    assert s.method.startswith("closed form")
    assert net.balance() == 0.0


def test_aligned_residual_layers_are_solved_pair_by_pair():
    rng = np.random.default_rng(3)
    x = hs.whiten(rng.normal(size=(40, 5)))
    layers = [np.diag(rng.normal(size=5)) for _ in range(4)]
    net = hs.DeepLinear(layers, residual=True)
    y = x * rng.normal(size=5)
    H = net.hessian(x, y)
    assert H.spectrum().method.startswith("aligned pairs")
    assert H.spectrum().verify(H).worst < 1e-13


@pytest.mark.parametrize("loss", ["logistic", "cross-entropy"])
def test_other_losses_see_the_identity_too(loss):
    rng = np.random.default_rng(4)
    W1, W2 = rng.normal(size=(6, 3)), rng.normal(size=(3, 6))
    x = rng.normal(size=(8, 3))
    y = rng.integers(3, size=8) if loss == "cross-entropy" else np.sign(rng.normal(size=(8, 3)))
    net = hs.ResidualLinear(W1, W2)
    one = hs.DeepLinear([np.eye(3) + W2 @ W1])
    assert float(net.loss(x, y, loss)) == pytest.approx(float(one.loss(x, y, loss)), rel=1e-13)
    H = net.hessian(x, y, loss)
    assert H.spectrum().verify(H).worst < 1e-13


def test_gradient_descent_is_that_of_the_weights():
    rng = np.random.default_rng(5)
    x = hs.whiten(rng.normal(size=(9, 2)))
    diagonal = [np.diag([0.5, 0.1]), np.diag([0.2, 0.3])]
    for net, y in (
        (hs.ResidualLinear(rng.normal(size=(4, 2)), rng.normal(size=(2, 4))), x @ [[1, 2], [3, 4]]),
        (hs.ResidualLinear(*diagonal), x * [3.0, -1.0]),
        (hs.DeepLinear(diagonal, residual=True), x * [3.0, -1.0]),
    ):
        t = hs.gradient_descent(net, x, y, lr=0.01, steps=5)
        theta = net.parameters()
        for _ in range(5):
            theta = theta - 0.01 * net.with_parameters(theta).gradient(x, y)
        last = net.with_parameters(theta)
        np.testing.assert_allclose(t[5].parameters(), theta, rtol=1e-12, atol=1e-15)
        assert float(t.loss[5]) == pytest.approx(float(last.loss(x, y)), rel=1e-12)
        top = np.linalg.eigvalsh(last.hessian(x, y).dense())[-1]
        assert float(t.sharpness[5]) == pytest.approx(top, rel=1e-9)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="W2 must have as many outputs as W1 has inputs, 3"):
        hs.ResidualLinear(np.ones((4, 3)), np.ones((2, 4)))
    with pytest.raises(ValueError, match="square and of one size"):
        hs.DeepLinear([np.ones((2, 3))], residual=True)
    batch = hs.ResidualLinear(np.ones((5, 4, 2)), np.ones((5, 2, 4)))
    assert batch[1].batch_shape == ()
    assert repr(batch) == "ResidualLinear(2-4-2, batch=(5,))"


def test_errors_know_of_terms_that_cancel_in_what_is_learned():
    """The prediction of layers 1 + W with a W of −1 is zero, and so is the functional part."""
    net = hs.DeepLinear([[[1e16]], [[-1.0]], [[26.5]]], residual=True)
    s = net.hessian([[1.0], [2.0]], [[0.0], [0.0]]).functional.spectrum()
    assert (np.abs(s.eigenvalues) <= s.errors).all()


@pytest.mark.parametrize("loss", ["mse", "huber"])
@pytest.mark.parametrize("large", [1.0, 1e9])
def test_a_layer_that_undoes_its_input_forgets_large_layers_before_it(loss, large):
    # (I + W) = 0 makes the prediction zero, however large what enters the layer.
    rng = np.random.default_rng(2)
    weights = [large * rng.normal(size=(2, 2)), large * rng.normal(size=(2, 2)), -np.eye(2)]
    x = rng.normal(size=(6, 2))
    net = hs.DeepLinear(weights, residual=True)
    np.testing.assert_array_equal(net(x), 0 * x)
    # At y = 0 only the last layer has second derivatives, those of a linear layer on P x.
    s = net.hessian(x, 0 * x, loss).spectrum()
    entering = deep(weights[:2], x)
    truth = np.linalg.eigvalsh(entering.T @ entering / len(x))
    np.testing.assert_allclose(s.eigenvalues[:4], np.repeat(truth, 2)[::-1], atol=1e-13 * truth[-1])
    assert s.rank() == 4 or truth[0] < 1e-10 * truth[-1]
    assert s.errors.max() < 1e-10 * truth[-1]
