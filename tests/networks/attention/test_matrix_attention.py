"""Self-attention of any embedding dimension against autodiff."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from tests.linear_oracle import assert_same_spectrum


def instance(seed, d=2, keys=5, outputs=2, sequences=2, n=4, loss="mse"):
    rng = np.random.default_rng(seed)
    net = hs.MatrixAttention(rng.normal(size=(d, outputs)), *rng.normal(size=(2, d, keys)))
    x = rng.normal(size=(sequences, n, d))
    y = rng.normal(size=(sequences, n, outputs))
    return net, x, (rng.integers(outputs, size=(sequences, n)) if loss != "mse" else y)


def forward(net, x):
    shapes = [w.shape for w in (net.W_v, net.W_q, net.W_k)]
    x = torch.tensor(x)

    def outputs(theta):
        sizes = [int(np.prod(s)) for s in shapes]
        V, Q, K = (p.reshape(s) for p, s in zip(torch.split(theta, sizes), shapes, strict=True))
        scores = x @ Q @ K.T @ x.transpose(1, 2) / Q.shape[1] ** 0.5
        scores = torch.cat([scores[..., :1] + net.sink, scores[..., 1:]], dim=-1)
        return torch.softmax(scores, dim=-1) @ x @ V

    return outputs


def cost_of(y, loss):
    y = torch.tensor(y)
    if loss == "mse":
        return lambda f: ((f - y) ** 2).sum(dim=-1).mean() / 2
    return lambda f: torch.nn.functional.cross_entropy(f.flatten(0, 1), y.flatten())


def check(net, x, y, loss="mse"):
    outputs, cost = forward(net, x), cost_of(y, loss)
    theta = torch.tensor(np.asarray(net.parameters()))
    dense = torch.autograd.functional.hessian(lambda p: cost(outputs(p)), theta).numpy()
    slope = torch.autograd.functional.jacobian(lambda p: cost(outputs(p)), theta).numpy()
    norm = max(np.linalg.norm(dense, 2), 1e-300)
    f = outputs(theta)
    jacobian = torch.autograd.functional.jacobian(outputs, theta).reshape(f.numel(), -1).numpy()
    curvature = torch.autograd.functional.hessian(cost, f).reshape(f.numel(), -1).numpy()
    ggn = jacobian.T @ curvature @ jacobian
    H = net.hessian(x, y, loss)
    np.testing.assert_allclose(H.dense(), dense, rtol=0, atol=1e-12 * norm)
    np.testing.assert_allclose(net.gradient(x, y, loss), slope, rtol=0, atol=1e-12 * norm)
    np.testing.assert_allclose(net(x), f.numpy(), rtol=1e-12, atol=1e-13)
    assert float(net.loss(x, y, loss)) == pytest.approx(float(cost(f)), rel=1e-12)
    assert_same_spectrum(H.spectrum(), dense, norm)
    assert_same_spectrum(H.ggn.spectrum(), ggn, norm)
    assert_same_spectrum(H.functional.spectrum(), dense - ggn, norm)
    assert H.spectrum().verify(H).worst < 1e-12
    return H


@pytest.mark.parametrize(("sink", "loss"), [(2.5, "mse"), (-1.0, "cross-entropy")])
def test_a_sink_raises_the_scores_of_the_first_token(sink, loss):
    net, x, y = instance(3, loss=loss)
    raised = net.with_sink(sink)
    check(raised, x, y, loss)
    assert raised.with_parameters(raised.parameters()).sink == sink
    assert (
        np.asarray(raised.attention(x))[..., 0] > np.asarray(net.attention(x))[..., 0]
    ).all() == (sink > 0)


def test_a_sink_that_is_no_number():
    net, *_ = instance(0)
    with pytest.raises(ValueError, match="sink must be finite, got nan"):
        net.with_sink(float("nan"))


@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.integers(1, 8),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from(["mse", "cross-entropy"]),
)
def test_against_autodiff(seed, d, keys, outputs, n, loss):
    check(*instance(seed, d, keys, outputs, n=n, loss=loss), loss)


@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
@pytest.mark.parametrize("units", [(1e-9, 1.0), (1e4, 1e-3)])
def test_features_in_any_units(units, loss):
    net, x, y = instance(6, loss=loss)
    weights = [(w.T / np.sqrt(units)).T for w in (net.W_q, net.W_k)]
    check(hs.MatrixAttention(net.W_v, *weights), x * units, y, loss)


@pytest.mark.parametrize("sink", [0.0, 1.5])
def test_a_mask_is_as_good_as_shorter_sequences(sink):
    net, x, y = instance(7, sequences=1, n=5)
    net = net.with_sink(sink)
    mask = np.asarray([[False, True, True, False, True]])
    short = net.hessian(x[:, mask[0]], y[:, mask[0]])
    hidden = np.where(mask[..., None], x, 1e6), np.where(mask[..., None], y, -1e6)
    masked = net.hessian(*hidden, mask=mask)
    size = np.abs(short.dense()).max()
    np.testing.assert_allclose(masked.dense(), short.dense(), rtol=0, atol=1e-13 * size)
    assert float(net.loss(*hidden, mask=mask)) == pytest.approx(
        float(net.loss(x[:, mask[0]], y[:, mask[0]])), rel=1e-13
    )


def test_gradients_flow_through_the_sharpness():
    net, x, y = instance(8, keys=6)
    theta = torch.tensor(np.asarray(net.parameters()), requires_grad=True)
    base = hs.MatrixAttention(*(torch.tensor(np.asarray(w)) for w in (net.W_v, net.W_q, net.W_k)))
    here = base.with_parameters(theta).hessian(torch.tensor(x), torch.tensor(y))
    (slope,) = torch.autograd.grad(here.spectrum().sharpness, theta)
    for i in range(0, len(theta), 5):
        step = np.zeros(len(theta))
        step[i] = 1e-5
        moved = (net.with_parameters(net.parameters() + s * step) for s in (1, -1))
        plus, minus = (float(n.hessian(x, y).spectrum().sharpness) for n in moved)
        assert float(slope[i]) == pytest.approx((plus - minus) / 2e-5, rel=1e-6, abs=1e-8)


def test_one_dimension_agrees_with_the_scalar_layer():
    net, x, y = instance(1, d=1, keys=6, outputs=1)
    scalar = hs.SelfAttention(net.W_v[0, 0], net.W_q[0], net.W_k[0])
    a = net.hessian(x, y).spectrum().eigenvalues
    b = scalar.hessian(x[..., 0], y[..., 0]).spectrum().eigenvalues
    np.testing.assert_allclose(a, b, atol=1e-13 * np.abs(b).max())


def test_the_papers_size_is_exact():
    rng = np.random.default_rng(2)
    net = hs.MatrixAttention(rng.normal(size=(10, 10)) / 3, *rng.normal(size=(2, 10, 100)) / 3)
    x = rng.normal(size=(10, 10, 10))
    H = net.hessian(x, x[:, ::-1])
    spectrum = H.spectrum()
    assert len(spectrum) == 2100
    assert [s.multiplicity for s in spectrum["bulk"]] == [80] * 20
    assert spectrum.verify(H, samples=2).worst < 1e-12


def test_single_sequences_and_torch_arrays():
    net, x, y = instance(3)
    one = net.hessian(x[0], y[0]).spectrum()
    weights = (torch.tensor(np.asarray(w)) for w in (net.W_v, net.W_q, net.W_k))
    other = hs.MatrixAttention(*weights).hessian(torch.tensor(x[0]), torch.tensor(y[0])).spectrum()
    assert isinstance(other.eigenvalues, torch.Tensor)
    np.testing.assert_allclose(other.eigenvalues.numpy(), one.eigenvalues, atol=1e-13)
    assert net(x[0]).shape == (4, 2)
    assert net.attention(x[0]).shape == (4, 4)


def test_arrays_of_the_standard():
    strict = pytest.importorskip("array_api_strict")
    net, x, y = instance(9, keys=7)
    weights = (strict.asarray(np.asarray(w)) for w in (net.W_v, net.W_q, net.W_k))
    H = hs.MatrixAttention(*weights).hessian(strict.asarray(x), strict.asarray(y))
    spectrum, own = H.spectrum(), net.hessian(x, y).spectrum()
    assert isinstance(spectrum.eigenvalues, type(strict.asarray(x)))
    np.testing.assert_allclose(np.asarray(spectrum.eigenvalues), own.eigenvalues, atol=1e-13)
    for space in (*spectrum["bulk"], *spectrum["twin"]):
        assert space.vectors(1).shape == (H.shape[0], 1)


def test_products_of_many_columns_at_once():
    net, x, y = instance(10, sequences=40, n=40)
    H = net.hessian(x, y)
    columns = np.random.default_rng(0).normal(size=(H.shape[0], 50))
    each = np.stack([H @ column for column in columns.T], axis=-1)
    np.testing.assert_allclose(H @ columns, each, rtol=1e-11, atol=1e-13)


def test_parts_do_not_multiply_by_their_zeros():
    net, x, y = instance(3)
    H, nothing = net.hessian(x, y), {"ggn": ("skew", "first"), "functional": ("second",)}
    for part, names in nothing.items():
        own = getattr(H, part)
        unused = {name: np.nan * getattr(own.moments, name) for name in names}
        spoilt = replace(own, moments=replace(own.moments, **unused))
        np.testing.assert_array_equal(spoilt.dense(), own.dense())


def test_unused_keys_and_zero_weights():
    net, x, y = instance(4, keys=6)
    W_q, W_k = np.zeros((2, 6)), np.zeros((2, 6))
    W_q[:, :2], W_k[:, :2] = net.W_q[:, :2], net.W_k[:, :2]
    H = check(hs.MatrixAttention(net.W_v, W_q, W_k), x, y)
    assert all(s.multiplicity == 4 for s in H.spectrum()["bulk"])
    check(hs.MatrixAttention(net.W_v, 0 * W_q, 0 * W_k), x, y)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda n, x, y: hs.MatrixAttention(n.W_v, n.W_q, n.W_k[:, :1]), "W_k must have the shape"),
        (lambda n, x, y: hs.MatrixAttention(n.W_v[:1], n.W_q, n.W_k), "W_v must have shape"),
        (lambda n, x, y: n.hessian(x[..., :1], y), "x must have shape"),
        (lambda n, x, y: n.hessian(x, y[:1]), r"y must have shape \(2, 4, 2\)"),
        (lambda n, x, y: n.hessian(x, y.transpose(1, 0, 2)), "y must have shape"),
        (lambda n, x, y: n.hessian(x, None), "y is missing"),
        (lambda n, x, y: n.hessian(x, np.full((2, 4), 7), "cross-entropy"), "class indices"),
        (lambda n, x, y: n.hessian(x, y, "none"), "loss must be one of"),
        (lambda n, x, y: n.with_parameters(np.ones(3)), "theta must have 24 entries"),
    ],
)
def test_bad_input(make, words):
    with pytest.raises(ValueError, match=words):
        make(*instance(5))
