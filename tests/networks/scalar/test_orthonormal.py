"""Two layers, one output, orthonormal inputs: the closed form for any number of inputs."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from tests.oracle import all_vectors


def instance(inputs, m, seed, nu=1.3, sigma=0.8, multiple=0.0):
    rng = np.random.default_rng(seed)
    V = nu * np.linalg.qr(rng.normal(size=(m, inputs)))[0]
    w = rng.normal(size=m)
    x = hs.whiten(rng.normal(size=(3 * inputs + 5, inputs)), sigma)
    trend = rng.normal(size=len(x))
    trend = trend - x @ np.linalg.lstsq(x, trend, rcond=None)[0]
    return hs.TwoLayerLinear(V, w[None]), x, (multiple * (x @ V.T @ w) + trend)[:, None]


def autodiff(net, x, y):
    m, inputs = net.W1.shape

    def cost(theta):
        V, w = theta[: m * inputs].reshape(m, inputs), theta[m * inputs :]
        return ((torch.tensor(x) @ V.T @ w - torch.tensor(y[:, 0])) ** 2).mean() / 2

    theta = torch.tensor(np.asarray(net.parameters()))
    return torch.autograd.functional.hessian(cost, theta).numpy()


@given(
    st.integers(1, 5), st.integers(0, 4), st.integers(0, 10**6), st.sampled_from([0.0, 1.0, 3.0])
)
def test_every_eigenvalue_and_eigenvector(inputs, more, seed, multiple):
    net, x, y = instance(inputs, inputs + more, seed, multiple=multiple)
    H, dense = net.hessian(x, y), autodiff(net, x, y)
    s, norm = H.spectrum(), np.linalg.norm(dense, 2)
    np.testing.assert_allclose(
        s.eigenvalues, np.linalg.eigvalsh(dense)[::-1], rtol=0, atol=1e-13 * norm
    )
    vectors, values = all_vectors(s)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(dense)), rtol=0, atol=1e-13)
    residual = np.linalg.norm(dense @ vectors - vectors * values, axis=0)
    assert residual.max() <= 1e-13 * norm
    assert (np.asarray(s.errors) < 1e-11 * norm).all()


@pytest.mark.parametrize("inputs", [1, 2, 3, 5])
def test_the_pair_adds_up_to_the_trace_over_the_number_of_inputs(inputs):
    net, x, y = instance(inputs, 9, seed=inputs)
    s = net.hessian(x, y).spectrum()
    assert s.method == "closed form"
    pair = [float(space.value) for space in s["outlier/pair"]]
    assert sum(pair) == pytest.approx(float(s.trace) / inputs, rel=1e-12)
    counts = dict.fromkeys(("outlier/pair", "outlier/triple", "bulk", "flat"), 0)
    for space in s.spaces:
        counts[space.label] += space.multiplicity
    assert counts == {
        "outlier/pair": 2,
        "outlier/triple": 3 * (inputs - 1),
        "bulk": 2 * (9 - inputs),
        "flat": (inputs - 1) * 8,
    }


def test_a_pytorch_model_is_recognised():
    net, x, y = instance(3, 8, seed=1)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 8, bias=False), torch.nn.Linear(8, 1, bias=False)
    ).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor(net.W1))
        model[1].weight.copy_(torch.tensor(net.W2))
    data = (torch.tensor(x), torch.tensor(y))
    s = hs.spectrum(model, data, torch.nn.MSELoss())
    assert s.exact
    assert s.method == "closed form"
    values = 2 * np.linalg.eigvalsh(autodiff(net, x, y))[::-1]
    np.testing.assert_allclose(s.eigenvalues, values, rtol=0, atol=1e-12 * values[0])


@pytest.mark.parametrize("tilt", [1e-10, 1e-6])
def test_almost_orthonormal_inputs_go_to_the_twin(tilt):
    net, x, y = instance(3, 6, seed=2)
    net = hs.TwoLayerLinear(net.W1 + tilt * np.eye(6, 3), net.W2)
    s, dense = net.hessian(x, y).spectrum(), autodiff(net, x, y)
    assert s.method == "narrow twin"
    values = np.linalg.eigvalsh(dense)[::-1]
    np.testing.assert_allclose(s.eigenvalues, values, rtol=0, atol=1e-13 * values[0])
