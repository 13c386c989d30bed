"""Linear networks through training against PyTorch's own SGD."""

import numpy as np
import pytest
import torch

import hessence as hs
from hessence.dynamics import trajectory
from tests.linear_oracle import cross_entropy, squared


def sgd(weights, x, y, lr, steps, momentum, cost=squared):
    layers = [torch.tensor(w, requires_grad=True) for w in weights]
    optimiser = torch.optim.SGD(layers, lr=lr, momentum=momentum)
    x, y = torch.tensor(x), torch.tensor(y)
    losses, points = [], []
    for _ in range(steps + 1):
        f = x
        for w in layers:
            f = f @ w.T
        loss = cost(f, y)
        losses.append(loss.item())
        points.append([w.detach().numpy().copy() for w in layers])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return np.asarray(losses), points


def instance(kind, dims=(3, 4, 5, 2), seed=0):
    rng = np.random.default_rng(seed)
    x = hs.whiten(rng.normal(size=(12, dims[0])), 1.2)
    if kind == "random":
        return hs.init.standard(dims, rng), x, rng.normal(size=(12, dims[-1]))
    net = hs.DeepLinear.balanced(dims, (1.1, 0.6), rng=seed)
    left, _, right = np.linalg.svd(net.product)
    return net, x, x @ (left * [1.5, 0.3] @ right[:2]).T


@pytest.mark.parametrize(("kind", "method"), [("aligned", "modes"), ("random", "moments")])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equals_sgd_on_the_weights(kind, method, momentum):
    net, x, y = instance(kind)
    t = hs.gradient_descent(net, x, y, lr=0.05, steps=40, momentum=momentum)
    losses, points = sgd(net.weights, x, y, 0.05, 40, momentum)
    assert t.method == method
    np.testing.assert_allclose(t.loss, losses, rtol=0, atol=1e-13)
    for step, layers in enumerate(points):
        for mine, theirs in zip(t[step].weights, layers, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["aligned", "random"])
def test_reports_agree_with_the_networks(kind):
    net, x, y = instance(kind)
    t = hs.gradient_descent(net, x, y, lr=0.05, steps=20)
    for step in (0, 3, 20):
        dense = t[step].hessian(x, y).dense()
        values = np.linalg.eigvalsh(dense)
        assert float(t.sharpness[step]) == pytest.approx(values[-1], rel=1e-9)
        assert float(t.trace[step]) == pytest.approx(np.trace(dense), rel=1e-11)
        np.testing.assert_allclose(t.spectrum(step).eigenvalues, values[::-1], atol=1e-11)


@pytest.mark.parametrize("seed", range(5))
def test_sharpness_among_many_pairs(seed):
    rng = np.random.default_rng(seed)
    net = hs.DeepLinear.balanced((6, 7, 8, 5), rng.uniform(0.1, 1.5, size=5), rng)
    left, _, right = np.linalg.svd(net.product)
    x = hs.whiten(rng.normal(size=(20, 6)))
    y = x @ (left * (3 * rng.normal(size=5)) @ right[:5]).T
    t = hs.gradient_descent(net, x, y, lr=0.01, steps=8)
    assert t.method == "modes"
    for step in range(9):
        top = np.linalg.eigvalsh(t[step].hessian(x, y).dense())[-1]
        assert float(t.sharpness[step]) == pytest.approx(top, rel=1e-10)


def test_balanced_stays_balanced_and_aligned_under_small_steps():
    net, x, y = instance("aligned")
    t = hs.gradient_descent(net, x, y, lr=1e-3, steps=200)
    assert t[200].balance() < 1e-5
    assert t[200].alignment(x, y) < 1e-12


def test_two_layers_and_other_losses():
    rng = np.random.default_rng(1)
    net = hs.TwoLayerLinear(rng.normal(size=(5, 3)), rng.normal(size=(4, 5)))
    x, y = rng.normal(size=(15, 3)), rng.integers(4, size=15)
    t = hs.gradient_descent(net, x, y, lr=0.1, steps=30, momentum=0.5, loss="cross-entropy")
    losses, points = sgd(net.weights, x, y, 0.1, 30, 0.5, cross_entropy)
    np.testing.assert_allclose(t.loss, losses, rtol=1e-11)
    assert isinstance(t[30], hs.TwoLayerLinear)
    np.testing.assert_allclose(t[30].W1, points[30][0], atol=1e-11)


def test_a_stack_of_networks_trains_at_once():
    rng = np.random.default_rng(2)
    W1, W2 = rng.normal(size=(4, 5, 3)), rng.normal(size=(4, 2, 5))
    x, y = rng.normal(size=(15, 3)), rng.normal(size=(15, 2))
    t = hs.gradient_descent(hs.TwoLayerLinear(W1, W2), x, y, lr=0.02, steps=10)
    assert t.sharpness.shape == t.loss.shape == (11, 4)
    for i in range(4):
        one = hs.gradient_descent(hs.TwoLayerLinear(W1[i], W2[i]), x, y, lr=0.02, steps=10)
        np.testing.assert_allclose(t.loss[:, i], one.loss, rtol=1e-12)
        np.testing.assert_allclose(t.sharpness[:, i], one.sharpness, rtol=1e-8)


@pytest.mark.parametrize("kind", ["aligned", "random"])
def test_states_that_were_not_kept_are_stepped_to_again(kind, monkeypatch):
    net, x, y = instance(kind)
    whole = hs.gradient_descent(net, x, y, lr=0.05, steps=30, momentum=0.3)
    monkeypatch.setattr(trajectory, "BUDGET", 4000)
    sparse = hs.gradient_descent(net, x, y, lr=0.05, steps=30, momentum=0.3)
    assert len(sparse._states._kept) < 31 == len(whole._states._kept)
    for step in (0, 1, 17, 30):
        for a, b in zip(sparse[step].weights, whole[step].weights, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["aligned", "random"])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_divergence_is_told(kind):
    net, x, y = instance(kind)
    t = hs.gradient_descent(net, x, y, lr=20.0, steps=40)
    assert t.diverged is not None
    assert np.isnan(t.sharpness[t.diverged :]).all()
    assert np.isfinite(t.sharpness[: t.diverged]).all()
    with pytest.raises(ValueError, match="diverged"):
        t[40]
