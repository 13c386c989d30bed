"""Brackets by Weyl's inequality, from the closed form at the nearest orthonormal first layer."""

import numpy as np
import pytest
import torch

import hessence as hs

SHAPES = ((1, 1), (1, 4), (2, 2), (2, 5), (3, 3), (3, 6), (4, 7))


def draw(rng, inputs, m):
    """A first layer, data and targets that are more or less what the closed form wants."""
    near, white = 10.0 ** rng.uniform(-16, 0.5, size=2) * (rng.random(2) < 0.8)
    size, scale = 10.0 ** rng.choice([-6, -1, 0, 0, 0, 2, 6], size=2)
    V = np.linalg.qr(rng.normal(size=(m, inputs)))[0] + near * rng.normal(size=(m, inputs))
    n = 3 * inputs + 4
    x = np.linalg.qr(rng.normal(size=(n, inputs)))[0] * n**0.5
    x = scale * (x + white * rng.normal(size=(n, inputs)))
    w = rng.normal(size=m) * rng.choice([0.0, 1.0, 1.0, 1.0, 1.0, 1e-8])
    trend = rng.normal(size=n)
    trend -= x @ np.linalg.lstsq(x, trend, rcond=None)[0]
    multiple = rng.choice([0.0, 1.0, -2.0, 1 + 1e-9])
    return size * V, w, x, multiple * size * x @ V.T @ w + trend * rng.choice([0.0, 1.0, 1e3])


def autodiff(cases):
    """Dense Hessians of a batch of networks of one shape."""
    V, w, x, y = (torch.tensor(np.stack(part)) for part in zip(*cases, strict=True))
    m, inputs = V.shape[1:]

    theta = torch.cat([V.flatten(1), w], dim=1).requires_grad_()
    first, second = theta[:, : m * inputs].reshape(-1, m, inputs), theta[:, m * inputs :, None]
    outputs = (x @ first.mT @ second)[..., 0]
    # Networks do not meet in the sum of their losses.
    total = ((outputs - y) ** 2).mean(dim=1).sum() / 2
    gradient = torch.autograd.grad(total, theta, create_graph=True)[0]
    rows = [torch.autograd.grad(g.sum(), theta, retain_graph=True)[0] for g in gradient.T]
    return torch.stack(rows, dim=1).numpy()


def oracle_error(net, x, y, values):
    """What autodiff may be off by: some roundings of terms that cancel in the residual."""
    terms = (x**2).mean() * (net.W1**2).sum() + (np.abs(x) * np.abs(y[:, None])).mean()
    return 1e-14 * (np.abs(values).max() + terms * (1 + (net.W2**2).sum()))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [30, pytest.param(400, marks=pytest.mark.slow)])
def test_every_eigenvalue_is_in_its_bracket(shape, count):
    rng = np.random.default_rng([count, *shape])
    cases = [draw(rng, *shape) for _ in range(count)]
    for (V, w, x, y), dense in zip(cases, autodiff(cases), strict=True):
        bounds = (net := hs.TwoLayerLinear(V, w[None])).bounds(x, y[:, None])
        values, b = np.linalg.eigvalsh(dense)[::-1], bounds.orthonormal.brackets()
        slack = oracle_error(net, x, y, values)
        for lower, upper in ((b.lower, b.upper), bounds.intervals()):
            assert (lower - slack <= values).all(), (V, w, x, y)
            assert (values <= upper + slack).all(), (V, w, x, y)
            assert (lower >= b.lower).all()
            assert (upper <= b.upper).all()
        assert (np.abs(values) <= slack).sum() >= b.zeros


@pytest.mark.parametrize("tilt", [1e-12, 1e-6, 1e-2])
def test_brackets_are_as_narrow_as_the_layer_is_orthonormal(tilt):
    """The bound is within a small factor of ‖H − H₀‖, which is known from dense matrices."""
    rng = np.random.default_rng(3)
    V = np.linalg.qr(rng.normal(size=(6, 3)))[0] + tilt * rng.normal(size=(6, 3))
    w, x = rng.normal(size=6), hs.whiten(rng.normal(size=(12, 3)))
    y = rng.normal(size=12)
    y -= x @ np.linalg.lstsq(x, y, rcond=None)[0]
    near = hs.TwoLayerLinear(V, w[None]).bounds(x, y[:, None]).orthonormal
    vectors = near.spectrum.eigenvectors
    closed = vectors * near.spectrum.eigenvalues @ vectors.T
    truth = np.linalg.norm(autodiff([(V, w, x, y)])[0] - closed, 2)
    assert truth <= near.distance + 1e-13 * np.linalg.norm(closed, 2)
    assert near.distance <= 3 * truth + 1e-12


def test_the_pair_of_the_closed_form_adds_up_to_the_trace_over_the_inputs():
    rng = np.random.default_rng(4)
    V = np.linalg.qr(rng.normal(size=(9, 4)))[0] + 0.01 * rng.normal(size=(9, 4))
    x = hs.whiten(rng.normal(size=(20, 4)))
    net = hs.TwoLayerLinear(V, rng.normal(size=(1, 9)))
    y = 0 * x[:, :1]
    near, H = net.bounds(x, y).orthonormal, net.hessian(x, y)
    pair = sum(float(space.value) for space in near.spectrum["outlier/pair"])
    assert pair == pytest.approx(float(H.trace()) / 4, rel=1e-12)


def test_where_there_is_no_closed_form_nearby():
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(8, 3)), rng.normal(size=(8, 1))
    wide, deep = rng.normal(size=(2, 3)), [rng.normal(size=(3, 3)) for _ in range(2)]
    last = rng.normal(size=(1, 3))
    nets = [
        hs.TwoLayerLinear(wide, rng.normal(size=(1, 2))),
        hs.TwoLayerLinear(np.zeros((3, 3)), last),
        hs.DeepLinear([*deep, last]),
        hs.TwoLayerLinear(*deep),
    ]
    for net in nets:
        target = y if net.dims[-1] == 1 else np.concatenate([y] * 3, axis=1)
        bounds = net.bounds(x, target)
        assert bounds.orthonormal is None
        lower, upper = bounds.intervals()
        values = net.hessian(x, target).spectrum().eigenvalues
        assert ((lower <= values) & (values <= upper)).all()


def test_other_kinds_of_arrays_and_single_precision():
    rng = np.random.default_rng(6)
    V, w, x, y = draw(rng, 3, 6)
    single = [torch.tensor(a, dtype=torch.float32) for a in (V, w[None], x, y[:, None])]
    net = hs.TwoLayerLinear(*single[:2])
    b = net.bounds(*single[2:]).orthonormal.brackets()
    rounded = [a.double().numpy() for a in single]
    dense = autodiff([(rounded[0], rounded[1][0], rounded[2], rounded[3][:, 0])])[0]
    values = np.linalg.eigvalsh(dense)[::-1]
    assert ((b.lower <= values) & (values <= b.upper)).all()
    with pytest.raises(ValueError, match="exact counts need the network"):
        b.count(0.0, 1.0)
