"""ReLU networks against autodiff: gradient, Hessian, and every eigenvalue and eigenvector."""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import hessence as hs
from tests.linear_exact import exact_parts
from tests.linear_oracle import assert_same_spectrum
from tests.networks.relu.relu_oracle import (
    TORCH_LOSSES,
    ReLUCase,
    targets,
    typical,
    weights_of,
)
from tests.oracle import OWN
from tests.strategies import NUMBERS, at_least

NETWORKS = {
    "two layers": ((2, 30, 2), "", 0.0),
    "biases": ((2, 25, 3), "11", 0.0),
    "a bias at the end": ((3, 20, 2), "01", 0.0),
    "leaky": ((2, 25, 2), "10", 0.2),
    "absolute value": ((2, 20, 2), "", -1.0),
    "linear": ((3, 20, 2), "", 1.0),
    "many inputs": ((8, 30, 1), "", 0.0),
    "many outputs": ((1, 20, 6), "", 0.0),
    "narrower than its cells need": ((4, 3, 2), "10", 0.0),
    "three layers": ((2, 14, 12, 2), "010", 0.0),
    "four layers": ((2, 9, 8, 7, 2), "1111", 0.1),
}


def everything(case, tolerance=1e-12):
    """Compare all that is known of a network with autodiff."""
    H, net = case.operator(), case.net()
    loss = OWN.get(case.loss, case.loss)
    np.testing.assert_allclose(net.loss(case.x, case.y, loss), case.value, rtol=1e-12)
    gradient = net.gradient(case.x, case.y, loss)
    scale = np.abs(case.gradient).max()
    np.testing.assert_allclose(gradient, case.gradient, rtol=0, atol=1e-12 * scale + 1e-300)
    np.testing.assert_allclose(H.dense(), case.hessian, rtol=0, atol=1e-13 * case.norm)
    parts = {"ggn": case.ggn, "functional": case.hessian - case.ggn}
    for operator, dense in [(H, case.hessian), *((getattr(H, n), d) for n, d in parts.items())]:
        s = operator.spectrum()
        assert s.method == "cells"
        assert_same_spectrum(s, dense, case.norm, tolerance)
        np.testing.assert_allclose(
            operator.trace(), np.trace(dense), rtol=0, atol=1e-12 * case.norm
        )
        square = (dense * dense).sum()
        assert abs(operator.squared_norm() - square) <= 1e-12 * len(dense) * case.norm**2
    return H


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    dims, biases, slope = NETWORKS[name]
    case = typical(dims, biases, slope)
    H = everything(case)
    assert H.spectrum().verify(H).worst < 1e-13


@pytest.mark.parametrize("loss", TORCH_LOSSES)
def test_losses(loss):
    everything(typical((2, 14, 3), "10", 0.0, loss, n=4))


def test_a_loss_of_pytorch():
    case = typical((2, 14, 3), "01", 0.0, "cross-entropy", n=6)
    loss = torch.nn.CrossEntropyLoss(label_smoothing=0.3)
    H = case.net().hessian(case.x, case.y, loss)
    theta = case.theta
    dense = torch.autograd.functional.hessian(
        lambda t: loss(case.outputs(t), torch.tensor(case.y)), theta
    ).numpy()
    assert_same_spectrum(H.spectrum(), dense, np.linalg.norm(dense, 2), 1e-13)
    assert H.spectrum().verify(H).worst < 1e-13


# Corners: dead and duplicate units, zero weights, no residual, units of very different inputs.


@st.composite
def cases(draw):
    depth = draw(st.sampled_from([2, 2, 3]))
    dims = [draw(st.integers(1, 3)), *(draw(st.integers(1, 5)) for _ in range(depth - 1))]
    dims.append(draw(st.integers(1, 3)))
    biases = "".join(draw(st.sampled_from("01")) for _ in range(depth))
    n, slope = draw(st.integers(1, 4)), draw(st.sampled_from([0.0, 0.0, 0.25, -1.0]))
    rng = np.random.default_rng(0)
    weights = [
        draw(hnp.arrays(float, w.shape, elements=NUMBERS)) for w in weights_of(dims, biases, rng)
    ]
    first = weights[0]
    corner = draw(st.sampled_from(["free", "free", "alike", "dead", "on", "zero"]))
    x = draw(hnp.arrays(float, (n, dims[0]), elements=NUMBERS))
    if corner == "alike":
        first[:] = first[0]
    elif corner == "dead":
        x, first[:] = np.abs(x), -np.abs(first)
    elif corner == "on":
        x, first[:] = np.abs(x), np.abs(first)
    elif corner == "zero":
        weights[-1][:] = 0
    powers = st.sampled_from([0, 0, 0, -9, 9])
    scale = np.asarray([10.0 ** draw(powers) for _ in range(dims[0])])
    x, first[:] = x * scale, first / scale
    loss = draw(st.sampled_from(["mse", "mse", "huber", "own"]))
    y = targets(n, dims[-1], loss, rng)
    case = ReLUCase(weights, x, y, loss, slope=slope)
    if loss == "mse" and draw(st.sampled_from([False, False, True])):
        y = case.outputs(case.theta).numpy()
        case = ReLUCase(weights, x, y, loss, slope=slope)
    return case


@given(cases())
def test_corners(case):
    H = case.operator()
    np.testing.assert_allclose(H.dense(), case.hessian, rtol=0, atol=1e-13 * case.norm)
    assert_same_spectrum(H.spectrum(), case.hessian, case.norm, 1e-13)


@given(st.lists(st.sampled_from([0, -9, 9, 3, -5]), min_size=5, max_size=5), st.integers(0, 99))
def test_units(powers, seed):
    """Features and outputs in any units, weights that do not make up for them."""
    case = typical((3, 12, 2), "10", 0.0, n=4, seed=seed)
    scale = 10.0 ** np.asarray(powers)
    W1, b1, W2 = case.weights
    case = ReLUCase([W1, b1, W2 * scale[3:, None]], case.x * scale[:3], case.y * scale[3:])
    s = case.operator().spectrum()
    values = np.linalg.eigvalsh(case.hessian)[::-1]
    np.testing.assert_allclose(s.eigenvalues, values, rtol=0, atol=1e-13 * case.norm)


def in_many_digits(case):
    """Return the Hessian of a network without biases, each sample's in 50 digits.

    For one sample the network is linear, with factors diag(s) W.
    """
    net, total = case.net(), 0
    for x, y in zip(case.x[:, None], case.y[:, None], strict=True):
        slopes = [*(s[0] for s in net._forward(x)[1]), np.ones(net.dims[-1])]
        factors = [s[:, None] * w for s, w in zip(slopes, net.weights, strict=True)]
        scale = [np.repeat(s, w.shape[1]) for s, w in zip(slopes, net.weights, strict=True)]
        scale = np.concatenate(scale)
        whole = exact_parts(hs.DeepLinear(factors), x, y, case.loss)[0]
        total = total + scale[:, None] * whole * scale / len(case.x)
    return total


@at_least(15)
@given(
    st.sampled_from([(2, 6, 2), (1, 5, 1), (3, 7, 1), (2, 3, 3, 2)]),
    st.sampled_from(["mse", "huber"]),
    st.lists(st.sampled_from([0, 0, -6, 6, 3]), min_size=5, max_size=5),
    st.integers(0, 99),
)
def test_errors_hold(dims, loss, powers, seed):
    case = typical(dims, "", 0.0, loss, n=3, seed=seed)
    scale = 10.0 ** np.asarray(powers)
    weights, x = [*case.weights[:-1], case.weights[-1] * scale[3]], case.x * scale[: dims[0]]
    near = hs.ReLU(weights)(x) * (1 + 1e-9 * scale[4])
    case = ReLUCase(weights, x, near, loss)
    s = case.operator().spectrum()
    values = np.linalg.eigvalsh(in_many_digits(case))[::-1]
    assert (np.abs(s.eigenvalues - values) <= s.errors).all()
    assert (s.errors <= 1e-9 * s.norm).all()


def test_saturated_outputs_beside_ordinary_ones():
    case = typical((2, 15, 2), "", 0.0, "huber", n=6)
    W1, W2 = case.weights
    case = ReLUCase([W1, W2 * np.asarray([[1.0], [1e7]])], case.x, case.y, "huber")
    assert_same_spectrum(case.operator().spectrum(), case.hessian, case.norm, 1e-13)


# Labels.


def test_dead_units_are_flat():
    case = typical((3, 10, 2))
    W1, W2 = weights_of((3, 10, 2), "", np.random.default_rng(1))
    W1, x = np.abs(W1), np.abs(case.x)
    W1[:4] *= -1
    s = hs.TwoLayerReLU(W1, W2).hessian(x, case.y).spectrum()
    assert sum(space.multiplicity for space in s["flat/dead"]) == 4 * (3 + 2)


def test_norm_of_a_part_does_not_form_the_gradients_of_all_predictions(monkeypatch):
    rng = np.random.default_rng(5)
    net = hs.ReLU([rng.normal(size=(9, 3)), rng.normal(size=(2, 9))])
    H = net.hessian(rng.normal(size=(4, 3)), rng.normal(size=(4, 2)))
    parts = {part: part.dense() for part in (H.ggn, H.functional)}
    monkeypatch.delattr("hessence.networks.hidden_layers.Layout.join")
    for part, matrix in parts.items():
        np.testing.assert_allclose(part.squared_norm(), (matrix**2).sum(), rtol=1e-12)
        np.testing.assert_allclose(part.trace(), np.trace(matrix), rtol=1e-12)


def test_everything_is_dead():
    x = np.ones((4, 2))
    H = hs.ReLU([-np.ones((5, 2)), np.ones((4, 5)), np.ones((2, 4))]).hessian(x, np.ones((4, 2)))
    s = H.spectrum()
    assert len(s) == 5 * 2 + 5 * 4 + 4 * 2
    assert [(space.label, float(space.value)) for space in s.spaces] == [("flat/dead", 0.0)] * 2


def test_labels_name_the_cells():
    rng = np.random.default_rng(0)
    net = hs.TwoLayerReLU(rng.normal(size=(40, 1)), rng.normal(size=(1, 40)))
    x, y = rng.normal(size=(9, 1)), rng.normal(size=(9, 1))
    s = net.hessian(x, y).spectrum()
    for c, units in enumerate(net.cells(x)[0]):
        spaces = s[f"bulk/layer 1/cell {c}"]
        assert [space.multiplicity for space in spaces] == [len(units) - 2] * 2
        for space in spaces:
            moved = space.vectors().reshape(2, 40, -1)
            others = np.setdiff1d(np.arange(40), units)
            np.testing.assert_array_equal(moved[:, others], 0)


def test_one_input_is_the_scalar_network():
    rng = np.random.default_rng(0)
    w, v, x, y = rng.normal(size=30), rng.normal(size=30), rng.normal(size=9), rng.normal(size=9)
    scalar = hs.ScalarReLU(w, v).hessian(x, y).spectrum()
    s = hs.TwoLayerReLU(v[:, None], w[None]).hessian(x[:, None], y[:, None]).spectrum()
    np.testing.assert_allclose(s.eigenvalues, scalar.eigenvalues, atol=1e-14 * scalar.norm)


def test_one_cell_is_the_narrow_twin():
    rng = np.random.default_rng(0)
    W1, W2 = np.abs(rng.normal(size=(50, 3))), rng.normal(size=(2, 50))
    x, y = np.abs(rng.normal(size=(9, 3))), rng.normal(size=(9, 2))
    H, linear = (net(W1, W2).hessian(x, y) for net in (hs.TwoLayerReLU, hs.TwoLayerLinear))
    assert len(H.spectrum()["twin"]) == len(linear.spectrum()["twin"])
    np.testing.assert_allclose(
        H.spectrum().eigenvalues, linear.spectrum().eigenvalues, atol=1e-13 * linear.spectrum().norm
    )


# Kinds of arrays.


@pytest.mark.parametrize("dims", [(2, 12, 2), (2, 6, 5, 2)])
def test_arrays_of_any_library(dims):
    case = typical(dims, "1" * (len(dims) - 1), n=4)
    expected = case.operator().spectrum()
    for convert in (array_api_strict.asarray, torch.tensor):
        H = case.operator(convert)
        s = H.spectrum()
        assert type(s.eigenvalues) is type(convert(case.x))
        np.testing.assert_allclose(
            np.asarray(s.eigenvalues), expected.eigenvalues, atol=1e-13 * expected.norm
        )
        assert s.verify(H).worst < 1e-13


def test_single_precision():
    case = typical((2, 30, 2), n=6)
    s = case.operator(lambda a: a.astype(np.float32)).spectrum()
    assert s.eigenvalues.dtype == np.float32
    np.testing.assert_allclose(
        s.eigenvalues, np.linalg.eigvalsh(case.hessian)[::-1], atol=1e-5 * case.norm
    )


def test_gradients_flow_through_eigenvalues():
    case = typical((2, 6, 2), "10", n=3)
    tensors = [torch.tensor(w, requires_grad=True) for w in case.weights]
    W1, b1, W2 = tensors
    s = hs.ReLU([W1, W2], [b1, None]).hessian(torch.tensor(case.x), torch.tensor(case.y)).spectrum()
    values = s.eigenvalues.detach().numpy()
    gap = 1e-3 * np.abs(values).max()
    alone = [i for i, t in enumerate(values) if (np.abs(values - t) > gap).sum() == len(values) - 1]
    assert len(alone) > 3
    step = 1e-5
    for i in (alone[0], alone[len(alone) // 2], alone[-1]):
        found = torch.autograd.grad(s.eigenvalues[i], tensors, retain_graph=True)
        for which, exact in enumerate(found):
            for at in [(1,) * exact.ndim]:
                moved = []
                for sign in (1, -1):
                    weights = [w.copy() for w in case.weights]
                    weights[which][at] += sign * step
                    dense = ReLUCase(weights, case.x, case.y).hessian
                    moved.append(np.linalg.eigvalsh(dense)[::-1][i])
                numeric = (moved[0] - moved[1]) / (2 * step)
                np.testing.assert_allclose(exact[at].item(), numeric, rtol=1e-5, atol=1e-6)


# The network itself.


def test_training_and_files(tmp_path):
    case = typical((2, 12, 2), "11", n=6)
    t = hs.gradient_descent(case.net(), case.x, case.y, lr=0.01, steps=20)
    assert t.loss[-1] < t.loss[0]
    s = t.spectrum(20)
    np.testing.assert_allclose(s.sharpness, t.sharpness[20], rtol=1e-10)
    s.save(tmp_path / "s.json")
    assert hs.load(tmp_path / "s.json").labels == s.labels
    net = case.net()
    np.testing.assert_array_equal(net.with_parameters(net.parameters())(case.x), net(case.x))


def test_top_where_the_block_is_too_large():
    rng = np.random.default_rng(0)
    net = hs.TwoLayerReLU(rng.normal(size=(300, 20)), rng.normal(size=(3, 300)))
    H = net.hessian(rng.normal(size=(100, 20)), rng.normal(size=(100, 3)))
    with pytest.raises(ValueError, match=r"still has 6900 of its 6900 dimensions.*H\.top\(k\)"):
        H.spectrum()
    assert H.top(1).converged


def test_kinks_are_told_of():
    W1, W2 = np.asarray([[1.0, -1.0], [0.0, 0.0]]), np.ones((1, 2))
    x, y = np.asarray([[1.0, 1.0], [2.0, 1.0]]), np.ones((2, 1))
    with pytest.warns(hs.KinkWarning, match="2 hidden unit"):
        hs.TwoLayerReLU(W1, W2).hessian(x, y)
    # A sample that is zero moves no unit without a bias.
    hs.TwoLayerReLU(W1[:1], W2[:, :1]).hessian(0 * x, y)
    with pytest.warns(hs.KinkWarning, match="1 hidden unit"):
        hs.ReLU([W1[:1], W2[:, :1]], [np.zeros(1), None]).hessian(0 * x, y)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: hs.ReLU([np.ones((2, 2))]), ValueError, "weights must be two matrices or more"),
        (lambda: hs.ReLU(np.ones((2, 2, 2))), TypeError, "weights must be a sequence"),
        (lambda: hs.ReLU([np.ones((2, 2)), np.ones((2, 3))]), ValueError, r"W2 must have shape"),
        (lambda: hs.ReLU([np.ones((2, 2))] * 2, [None]), ValueError, "biases must be as many"),
        (lambda: hs.ReLU([np.ones((2, 2))] * 2, [np.ones(3), None]), ValueError, "b1 must have"),
        (lambda: hs.ReLU([np.ones((2, 2))] * 2, slope=np.nan), ValueError, "slope must be"),
        (lambda: hs.TwoLayerReLU(np.ones((5, 2)), np.ones((2, 4))), ValueError, "W2 must have"),
    ],
)
def test_bad_networks(make, error, says):
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize(
    ("x", "y", "loss", "says"),
    [
        (np.ones((3, 4)), np.ones((3, 2)), "mse", "x must have shape"),
        (np.ones((3, 2)), np.ones((2, 2)), "mse", "y must have shape"),
        (np.ones((3, 2)), None, "mse", "y is missing"),
        (np.ones((3, 2)), np.ones((3, 2)), "no", "loss must be one of"),
    ],
)
def test_bad_data(x, y, loss, says):
    net = hs.TwoLayerReLU(np.ones((5, 2)), np.ones((2, 5)))
    with pytest.raises(ValueError, match=says):
        net.hessian(x, y, loss)
