"""The flattest minimum of self-attention, against the closed form and against training."""

import mpmath
import numpy as np
import pytest
import torch

import hessence as hs
from tests import attention_oracle as oracle


def two_tokens(a, d_K):
    """Return min_u a² [T² + (2a²u/√d_K)(1 − T²)²/T²] in many digits."""

    def sharpness(u):
        t = mpmath.tanh(u)
        return a**2 * (t**2 + (2 * a**2 * u / mpmath.sqrt(d_K)) * (1 - t**2) ** 2 / t**2)

    u = mpmath.findroot(lambda s: mpmath.diff(sharpness, s), 0.9)
    return float(sharpness(u))


@pytest.mark.parametrize("d_K", [1, 2, 5])
@pytest.mark.parametrize("a", [0.7, 0.98, 1.4])
def test_two_opposite_tokens(a, d_K):
    net = hs.SelfAttention(0.3, *np.ones((2, d_K)))
    edge = net.edge([a, -a], [-a, a], lr=2.3)
    assert edge.sharpness == pytest.approx(two_tokens(a, d_K), rel=1e-10)
    assert edge.loss < 1e-25
    assert edge.threshold == 2 / 2.3


def test_the_threshold_between_rest_and_swings():
    net = hs.SelfAttention(0.1, [0.1, 0.1], [0.1, 0.1])
    low, high = 0.9, 1.1
    for _ in range(40):
        middle = (low + high) / 2
        lasts = net.edge([middle, -middle], [-middle, middle], lr=2.3).lasts
        low, high = (low, middle) if lasts else (middle, high)
    assert low == pytest.approx(0.98399, abs=5e-6)


@pytest.mark.parametrize(("a", "lasts"), [(0.9, False), (1.05, True)])
def test_training_rests_or_swings_as_told(a, lasts):
    rng = np.random.default_rng(0)
    net = hs.SelfAttention(0.1 * rng.normal(), *(0.1 * rng.normal(size=(2, 2))))
    x = np.asarray([a, -a])
    t = hs.gradient_descent(net, x, -x, lr=2.3, steps=4000)
    assert net.edge(x, -x, lr=2.3).lasts == lasts
    assert (t.loss[-50:].max() > 1e-6) == lasts


@pytest.mark.parametrize("tokens", [(1.25, -0.5), (1.5, -0.25)])
def test_a_single_perfect_fit_is_not_overlooked(tokens):
    """Fits are as good at infinity; training comes to rest at a fit between the points tried."""
    rng = np.random.default_rng(1)
    net = hs.SelfAttention(0.1 * rng.normal(), *(0.1 * rng.normal(size=(2, 2))))
    x = np.asarray(tokens)
    t = hs.gradient_descent(net, x, x[::-1], lr=2.3, steps=4000)
    edge = net.edge(x, x[::-1], lr=2.3)
    assert t.loss[-1] < 1e-25
    assert edge.loss < 1e-25
    assert not edge.lasts
    rest = t[4000]
    assert edge.inner == pytest.approx(rest.w_q @ rest.w_k, rel=1e-6)
    assert edge.sharpness <= t.sharpness[-1] * (1 + 1e-9)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("d_K", [1, 3])
def test_the_flattest_minimum_is_one_and_as_sharp_as_told(masked, d_K):
    """A minimum with a residual: the gradient vanishes there, and autodiff finds the sharpness."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 4, 5))
    mask = np.arange(5) < rng.integers(2, 6, size=(4, 1)) if masked else None
    edge = hs.SelfAttention(0.1, *np.ones((2, d_K))).edge(x, y, lr=0.5, mask=mask)
    half = np.zeros(d_K)
    half[0] = np.sqrt(abs(edge.inner))
    theta = np.concatenate([[edge.value], half, np.sign(edge.inner) * half])
    values = np.linalg.eigvalsh(oracle.hessian(theta, x, y, mask, "mse"))
    assert values[0] > -1e-6 * values[-1]
    assert edge.sharpness == pytest.approx(values[-1], rel=1e-6)
    moved = torch.tensor(theta, requires_grad=True)
    loss = oracle.cost(oracle.outputs(moved, x, mask), y, mask, "mse")
    (slope,) = torch.autograd.grad(loss, moved)
    assert edge.loss == pytest.approx(loss.item(), rel=1e-9)
    assert float(slope.abs().max()) < 1e-6


def test_bad_input():
    with pytest.raises(ValueError, match="lr must be a positive number, got 0"):
        hs.SelfAttention(1.0, [1.0], [1.0]).edge([1.0], [1.0], lr=0)
    with pytest.raises(ValueError, match="one network"):
        hs.SelfAttention([1.0, 1.0], [[1.0]] * 2, [[1.0]] * 2).edge([1.0], [1.0], lr=1.0)
