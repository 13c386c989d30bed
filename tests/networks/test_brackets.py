"""Brackets and counts of the solvable two-layer networks, against their exact spectra."""

from __future__ import annotations

import numpy as np
import pytest

import hessence as hs
from hessence.networks.two_layer import slicing


def instances():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=6), rng.normal(size=6)
    X, Y = rng.normal(size=(6, 3)), rng.normal(size=(6, 2))
    w, v, b = rng.normal(size=(3, 7))
    W1, W2 = rng.normal(size=(7, 3)), rng.normal(size=(2, 7))
    biases = [rng.normal(size=7), rng.normal(size=2)]
    labels = np.asarray([0, 1, 1, 0, 1, 0])
    yield hs.ScalarLinear(w, v), (x, y), None
    yield hs.ScalarReLU(w, v), (x, y), "huber"
    yield hs.ScalarAffine(w, v, b), (x, np.sign(y)), "logistic"
    yield hs.TwoLayerLinear(W1, W2), (X, Y), "mse"
    yield hs.TwoLayerLinear(W1, W2), (X, labels), "cross-entropy"
    yield hs.TwoLayerReLU(W1, W2), (X, Y), None
    yield hs.ReLU([W1, W2], biases, slope=0.2), (X, labels), "cross-entropy"


@pytest.mark.parametrize(("net", "data", "loss"), [*instances()])
def test_the_exact_spectrum_is_in_the_brackets_and_counts_agree(net, data, loss):
    found = hs.brackets(net, data, loss)
    exact = net.hessian(*data, loss or "mse").spectrum()
    values, noise = exact.eigenvalues, 1e-13 * np.abs(exact.eigenvalues).max()
    assert len(found) == len(values)
    assert (found.lower <= values + noise).all()
    assert (found.upper >= values - noise).all()
    assert found.inertia() == exact.inertia()
    apart = np.sort(values)[np.append(np.diff(np.sort(values)) > 1e3 * noise, True)]
    edges = np.asarray([-np.inf, *(apart[1:] + apart[:-1]) / 2, np.inf])
    assert (found.histogram(edges) == np.histogram(values, edges)[0]).all()
    for index in (0, len(values) // 3, -1):
        low, high = found.eigenvalue(index)
        assert low - noise <= values[index] <= high + noise
        assert high - low < 1e3 * noise


def test_a_network_with_other_layers_is_refused():
    with pytest.raises(ValueError, match="DeepLinear is not two layers"):
        hs.brackets(hs.DeepLinear([np.eye(2)] * 3), (np.eye(2), np.eye(2)))
    with pytest.raises(ValueError, match="params is for PyTorch models"):
        hs.brackets(hs.ScalarLinear([1.0], [1.0]), ([1.0], [1.0]), params="w")
    with pytest.raises(ValueError, match="one network"):
        hs.brackets(hs.ScalarLinear([[1.0]], [[1.0]]), ([1.0], [1.0]))
    with pytest.raises(ValueError, match=r"a pair \(x, y\)"):
        hs.brackets(hs.ScalarLinear([1.0], [1.0]), [1.0, 2.0, 3.0])


def relu_network():
    rng = np.random.default_rng(2)
    net = hs.TwoLayerReLU(rng.normal(size=(60, 5)), rng.normal(size=(1, 60)))
    return net, (rng.normal(size=(8, 5)), rng.normal(size=(8, 1)))


def test_the_exact_zeros_of_a_wide_relu_network_are_certified():
    net, data = relu_network()
    values = np.linalg.eigvalsh(net.hessian(*data).dense())
    found = hs.brackets(net, data)
    assert found.zeros == (np.abs(values) < 1e-12 * np.abs(values).max()).sum()
    assert found.inertia().flat == found.zeros


def test_counts_that_sum_far_terms_once_are_the_same(monkeypatch):
    # As for networks of a million parameters, where summing all at both ends would take long.
    monkeypatch.setattr(slicing, "QUICK", 0.0)
    monkeypatch.setattr(slicing, "KEPT", 0)
    first, *_, biased = instances()
    for net, data, loss in ((*relu_network(), None), first, biased):
        values = np.linalg.eigvalsh(net.hessian(*data, loss or "mse").dense())
        for share in (0.0, 0.5):
            monkeypatch.setattr(slicing, "NEAR", share)
            found = hs.brackets(net, data, loss)
            for at in np.random.default_rng(0).choice(values, 8) * 1.01 + 1e-3:
                assert found.count(-np.inf, at) == (values <= at).sum()
