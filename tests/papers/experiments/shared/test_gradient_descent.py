"""Training by shortcuts, against plain descent on the samples with PyTorch's gradients."""

import numpy as np
import pytest

import hessence as hs
from hessence.papers.experiments.shared.gradient_descent import (
    activated_gradient,
    half_squared_error,
    standard_networks,
    torch_model,
    train,
    train_linear,
    white_sharpness,
)
from hessence.papers.experiments.shared.image_training import white_inputs

torch = pytest.importorskip("torch")


def descent(layers, x, y, rate, steps, bend=lambda z: z):
    """Return the layers of one network and their loss after so many steps."""
    x, y = torch.tensor(x), torch.tensor(y)
    layers = [torch.tensor(w, requires_grad=True) for w in layers]
    for step in range(steps + 1):
        signal = x
        for w in layers[:-1]:
            signal = bend(signal @ w.T)
        loss = half_squared_error(signal @ layers[-1].T, y)
        if step < steps:
            gradients = torch.autograd.grad(loss, layers)
            with torch.no_grad():
                for w, g in zip(layers, gradients, strict=True):
                    w -= rate * g
    return [w.detach().numpy() for w in layers], loss.item()


@pytest.mark.parametrize("white", [False, True])
@pytest.mark.parametrize("hidden", [(), (3,), (4, 3)])
def test_training_from_moments_is_descent_on_the_samples(white, hidden):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 9)) @ rng.normal(size=(9, 9)) / 3
    x, y = hs.whiten(x) if white else x, rng.normal(size=(40, 2))
    start = standard_networks((9, *hidden, 2), 2, rng)
    (end,) = train_linear(start, x, y, 0.02, 90, [90])
    for i in range(2):
        layers, loss = descent([w[i] for w in start], x, y, 0.02, 90)
        assert end.loss[i] == pytest.approx(loss, rel=1e-10)
        for w, expected in zip(end.weights, layers, strict=True):
            np.testing.assert_allclose(w[i], expected, rtol=1e-9, atol=1e-11)


def test_steps_taken_together_follow_single_ones():
    rng = np.random.default_rng(1)
    x, y = hs.whiten(rng.normal(size=(60, 5))), rng.normal(size=(60, 2))
    start = standard_networks((5, 6, 6, 2), 1, rng)
    gradient = activated_gradient(x, y, "tanh")
    (end,) = train(start, gradient, 0.01, 600, [600], halving=False, together=50)
    layers, loss = descent([w[0] for w in start], x, y, 0.01, 600, torch.tanh)
    assert end.loss[0] == pytest.approx(loss, rel=1e-3)
    begun = float(gradient(start)[0][0])
    assert abs(end.loss[0] - loss) < 2e-3 * (begun - loss)
    for w, expected in zip(end.weights, layers, strict=True):
        assert np.abs(w[0] - expected).max() < 5e-3 * np.abs(expected).max()


@pytest.mark.parametrize("small", [1.0, 1e-3])
def test_inputs_that_are_not_seen_add_nothing_to_the_sharpness(small):
    rng = np.random.default_rng(2)
    x, y = hs.whiten(rng.normal(size=(50, 12))), 0.1 * rng.normal(size=(50, 2))
    nets = standard_networks((12, 3, 3, 2), 2, rng)
    nets = [small * nets[0], *nets[1:]]
    dense = [
        np.linalg.eigvalsh(hs.DeepLinear([w[i] for w in nets]).hessian(x, y).dense())[-1]
        for i in range(2)
    ]
    np.testing.assert_allclose(white_sharpness(nets, x, y), dense, rtol=1e-7)


@pytest.mark.parametrize("blank", [False, True])
def test_white_inputs_span_what_the_pixels_do(blank):
    rng = np.random.default_rng(3)
    pixels = rng.random((30, 6))
    if blank:
        pixels[:, [1, 4]] = 0
    x = white_inputs(pixels, 2.0)
    assert x.shape == (30, 4 if blank else 6)
    np.testing.assert_allclose(x.T @ x / 30, 4 * np.eye(x.shape[1]), atol=1e-12)
    rest = pixels - x @ np.linalg.lstsq(x, pixels, rcond=None)[0]
    assert np.abs(rest).max() < 1e-12


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("activation", ["linear", "tanh", "relu", "leaky-relu"])
def test_gradients_with_an_activation_are_pytorchs(activation, last):
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(20, 4)), rng.normal(size=(20, 3))
    layers = standard_networks((4, 5, 5, 3), 1, rng)
    model = torch_model([w[0] for w in layers], activation, last)
    assert sum(not isinstance(part, torch.nn.Linear) for part in model) == 2 + last
    loss = half_squared_error(model(torch.tensor(x)), torch.tensor(y))
    loss.backward()
    found, gradients = activated_gradient(x, y, activation, last)(layers)
    assert found[0] == pytest.approx(loss.item(), rel=1e-12)
    for g, parameter in zip(gradients, model.parameters(), strict=True):
        np.testing.assert_allclose(g[0], parameter.grad.numpy(), rtol=1e-10, atol=1e-14)
