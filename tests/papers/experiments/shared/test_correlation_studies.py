"""Batches of networks that correlation studies train and measure."""

from dataclasses import replace

import numpy as np
import pytest

import hessence as hs
from hessence.papers.experiments.figures.sharpness_depth import bound
from hessence.papers.experiments.figures.sharpness_norms import measured
from hessence.papers.experiments.shared.gradient_flow import least_loss, train
from hessence.papers.experiments.shared.network_batches import draw_data, draw_networks


def drawn(kind="standard", dims=(4, 9, 4), activation="linear", count=5, samples=64):
    rng = np.random.default_rng(3)
    x, y, noise = draw_data(activation, dims[0], samples, 0.01, "scaled", rng)
    nets = draw_networks(kind, dims, count, rng)
    return nets, x, y, least_loss(x, y, noise, activation)


def loss_of(nets, i, x, y, activation):
    torch = pytest.importorskip("torch")
    hidden = torch.tensor(x).T
    for layer, (w, c) in enumerate(zip(nets.weights, nets.multipliers, strict=True)):
        hidden = c * torch.tensor(w[i]) @ hidden
        if activation == "relu" and layer < len(nets.weights) - 1:
            hidden = torch.relu(hidden)
    return float(torch.nn.functional.mse_loss(hidden.T, torch.tensor(y))) * y.shape[1] / 2


@pytest.mark.parametrize("activation", ["linear", "relu"])
@pytest.mark.parametrize("kind", ["standard", "ntk", "mup"])
def test_training_ends_where_the_loss_is_low_enough(kind, activation):
    nets, x, y, least = drawn(kind, (4, 20, 4), activation)
    trained, losses = train(nets, x, y, activation, 1.1 * least, 3000)
    for i, loss in enumerate(losses):
        assert loss == pytest.approx(loss_of(trained, i, x, y, activation), rel=1e-5)
    reached = losses <= 1.1 * least * (1 + 1e-6)
    # With ReLU on few samples, one network of the five crawls along a kink.
    assert reached.sum() >= (5 if activation == "linear" else 4)
    assert (losses > least).all() or activation == "relu"


def test_no_linear_map_has_less_than_the_least_loss():
    _, x, y, least = drawn()
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    assert least == pytest.approx(np.sum((y - x @ best) ** 2) / len(x) / 2, rel=1e-12)


@pytest.mark.parametrize("kind", ["standard", "ntk", "mup"])
def test_training_follows_the_gradient_flow(kind):
    """The flow keeps W1W1ᵀ/r₁ − W2ᵀW2/r₂ for layers' rates r, and SGD ends close to its end."""
    nets, x, y, least = drawn(kind, count=10)
    trained, _ = train(nets, x, y, "linear", 1.01 * least, 3000)

    def kept(weights):
        first, second = weights
        left = first @ np.swapaxes(first, 1, 2) / nets.rates[0]
        return left - np.swapaxes(second, 1, 2) @ second / nets.rates[1]

    start = kept(nets.weights)
    moved = np.linalg.norm(kept(trained.weights) - start, axis=(1, 2))
    assert np.median(moved / np.linalg.norm(start, axis=(1, 2))) < 0.03

    rng = np.random.default_rng(4)
    first, second = (w.copy() for w in nets.weights)
    (a, b), rate = nets.multipliers, 0.02 if kind == "standard" else 0.1
    for _ in range(4000):
        part = rng.integers(len(x), size=16)
        hidden = a * first @ x[part].T
        back = (b * second @ hidden - y[part].T) / len(part)
        slope = a * np.swapaxes(b * second, 1, 2) @ back @ x[part]
        second -= rate * nets.rates[1] * b * back @ np.swapaxes(hidden, 1, 2)
        first -= rate * nets.rates[0] * slope
    for i in range(len(first)):
        ours, theirs = (
            hs.DeepLinear([w[i] for w in pair], nets.multipliers).hessian(x, y).top(1)
            for pair in (trained.weights, (first, second))
        )
        assert ours.eigenvalues[0] == pytest.approx(theirs.eigenvalues[0], rel=0.03)


def test_a_network_without_a_gradient_rests():
    nets, x, y, least = drawn(activation="relu")
    dead = replace(nets, weights=tuple(np.zeros_like(w) for w in nets.weights))
    trained, losses = train(dead, x, y, "relu", least, 10**9)
    assert not any(w.any() for w in trained.weights)
    np.testing.assert_allclose(losses, np.sum(y * y) / len(x) / 2, rtol=1e-6)


@pytest.mark.parametrize("kind", ["standard", "ntk", "mup"])
def test_the_bound_is_that_of_the_library_and_the_blocks_those_of_the_hessian(kind):
    nets, x, y, _ = drawn(kind, (3, 5, 4, 3))
    for i, value in enumerate(bound(nets, x)):
        net = hs.DeepLinear([w[i] for w in nets.weights], nets.multipliers)
        assert value == pytest.approx(float(net.bounds(x, y).ggn_norm), rel=1e-10)
    nets, x, y, _ = drawn(kind, (3, 5, 3))
    found = measured(nets, x, y)
    for i in range(len(found["blocks"])):
        H = hs.DeepLinear([w[i] for w in nets.weights], nets.multipliers).hessian(x, y).dense()
        tops = [np.linalg.eigvalsh(block)[-1] for block in (H[:15, :15], H[15:, 15:])]
        assert found["blocks"][i] == pytest.approx(max(tops), rel=1e-10)
        assert found["sum"][i] == pytest.approx(sum(tops), rel=1e-10)
        assert found["sharpness"][i] == pytest.approx(np.linalg.eigvalsh(H)[-1], rel=1e-4)
