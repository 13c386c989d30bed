"""A hidden layer with batch normalisation against PyTorch's own, differentiated twice."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from tests.oracle import LOSSES, all_vectors


def pieces(net, theta):
    names = [name for name in ("v", "gamma", "beta", "w") if getattr(net, name) is not None]
    return dict(zip(names, theta.reshape(len(names), -1), strict=True))


def outputs(net, theta, x):
    own = pieces(net, theta)
    hidden = torch.nn.functional.batch_norm(
        torch.tensor(x)[:, None] * own["v"], None, None, own["gamma"], own.get("beta"),
        training=True, eps=1e-300,
    )  # fmt: skip
    return hidden @ own["w"]


def instance(seed, m, n, shift):
    rng = np.random.default_rng(seed)
    w, gamma, v, beta = rng.normal(size=(4, m))
    net = hs.ScalarBatchNorm(w, gamma, v, beta if shift else None)
    return net, 3 + 2 * rng.normal(size=n), rng.normal(size=n)


@given(
    st.integers(0, 10**6), st.integers(1, 3), st.integers(2, 5), st.booleans(),
    st.sampled_from(["mse", "logistic", "huber"]),
)  # fmt: skip
def test_against_autodiff(seed, m, n, shift, loss):
    net, x, y = instance(seed, m, n, shift)
    y = np.sign(y) if loss == "logistic" else y
    theta = torch.tensor(np.asarray(net.parameters()))

    def cost(theta):
        return LOSSES[loss](outputs(net, theta, x), torch.tensor(y)).mean()

    np.testing.assert_allclose(net(x), outputs(net, theta, x), rtol=0, atol=1e-12)
    assert float(net.loss(x, y, loss)) == pytest.approx(cost(theta).item(), rel=1e-12)
    gradient = torch.autograd.functional.jacobian(cost, theta)
    np.testing.assert_allclose(net.gradient(x, y, loss), gradient, rtol=0, atol=1e-10)
    dense = torch.autograd.functional.hessian(cost, theta).numpy()
    H = net.hessian(x, y, loss)
    # PyTorch's own normalisation leaves rounding of 1/(x − E[x]) in the flat directions.
    tolerance = 1e-10 * max(1.0, np.linalg.norm(dense, 2))
    np.testing.assert_allclose(H.dense(), dense, rtol=0, atol=tolerance)
    np.testing.assert_allclose(H.ggn.dense() + H.functional.dense(), H.dense(), atol=1e-12)
    for part in (H, H.ggn, H.functional):
        s, own = part.spectrum(), part.dense()
        norm = np.linalg.norm(own, 2)
        values = np.linalg.eigvalsh(own)[::-1]
        np.testing.assert_allclose(s.eigenvalues, values, rtol=0, atol=1e-13 * norm)
        vectors, expanded = all_vectors(s)
        assert np.abs(own @ vectors - vectors * expanded).max() <= 1e-13 * norm
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(own)), atol=1e-13)
        assert sum(space.multiplicity for space in s["flat/norm"]) == m
        assert s.verify(part).worst < 1e-12


def test_training_leaves_the_first_layer_where_it_is():
    net, x, y = instance(3, 4, 12, shift=True)
    t = hs.gradient_descent(net, x, y, lr=0.1, steps=30, momentum=0.5)
    np.testing.assert_array_equal(t[30].v, net.v)
    assert t.loss[30] < t.loss[0]
    theta = torch.tensor(np.asarray(net.parameters()), requires_grad=True)
    optimiser = torch.optim.SGD([theta], lr=0.1, momentum=0.5)
    for _ in range(30):
        optimiser.zero_grad()
        (((outputs(net, theta, x) - torch.tensor(y)) ** 2).mean() / 2).backward()
        optimiser.step()
    np.testing.assert_allclose(t[30].w, pieces(net, theta.detach())["w"], rtol=0, atol=1e-9)


def test_data_in_other_units_change_nothing():
    net, x, y = instance(4, 3, 9, shift=False)
    mine = net.hessian(x, y).spectrum().eigenvalues
    other = net.hessian(1e-9 * x + 1e-7, y).spectrum().eigenvalues
    np.testing.assert_allclose(other, mine, rtol=0, atol=1e-12 * mine[0])


def test_bad_input():
    with pytest.raises(ValueError, match="v must not be zero"):
        hs.ScalarBatchNorm([1.0], [1.0], [0.0])
    with pytest.raises(ValueError, match="x must not be constant"):
        hs.ScalarBatchNorm([1.0], [1.0], [1.0]).hessian([2.0, 2.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="gamma must have the shape of w"):
        hs.ScalarBatchNorm([1.0], [1.0, 2.0], [1.0])


@given(st.integers(0, 10**6), st.integers(2, 40), st.integers(-12, 15))
def test_normalised_data_are_as_accurate_as_they_say(seed, n, power):
    """Against fractions: also data whose spread is a few spacings of their mean."""
    x = np.random.default_rng(seed).normal(size=n) + 10.0**power
    data = hs.ScalarBatchNorm([1.0], [1.0], [1.0])._data(x, x)
    exact = [Fraction(float(xi)) for xi in x]
    mean = sum(exact) / n
    gaps = [xi - mean for xi in exact]
    with mpmath.workdps(40):
        variance = sum(gap * gap for gap in gaps) / n
        deviation = mpmath.sqrt(mpmath.mpf(variance.numerator) / variance.denominator)
        truth = [mpmath.mpf(gap.numerator) / gap.denominator / deviation for gap in gaps]
        off = [
            abs(mpmath.mpf(float(a)) - b) for a, b in zip(data.samples[0][:, 0], truth, strict=True)
        ]
    assert (np.asarray(off, dtype=float) <= data.errors).all()
    assert data.errors.max() < 1e-11


def test_errors_count_those_of_the_normalised_data():
    net, x, y = instance(5, 3, 7, shift=True)
    H = net.hessian(x, y)
    for part in (H, H.ggn, H.functional):
        assert part.rounding() > part.core.rounding() > 0
        s = part.spectrum()
        assert s.errors.max() < 1e-11 * s.norm


@pytest.mark.parametrize("part", ["hessian", "ggn", "functional"])
@pytest.mark.parametrize("shift", [False, True])
def test_errors_of_a_batch_are_those_of_its_networks(part, shift):
    rng = np.random.default_rng(8)
    weights = rng.normal(size=(4 if shift else 3, 3, 5))
    x, y = rng.normal(size=(2, 6))

    def errors(index):
        H = hs.ScalarBatchNorm(*weights[:, index]).hessian(x, y)
        return (H if part == "hessian" else getattr(H, part)).spectrum().errors

    each = [errors(i) for i in range(3)]
    np.testing.assert_allclose(errors(slice(None)), each, rtol=0.02, atol=1e-20)
