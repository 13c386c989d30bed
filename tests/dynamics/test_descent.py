"""Reduced trajectories against PyTorch's own SGD on the weights."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from hessence.dynamics import trajectory
from tests.oracle import log_one_plus_exp

RELU = {hs.ScalarLinear: False, hs.ScalarReLU: True}


def sgd(net, x, y, lr, steps, momentum, pointwise=None):
    """Train with torch.optim.SGD and return losses and weights at every point."""
    w, v = (torch.tensor(a, requires_grad=True) for a in (net.w, net.v))
    optimiser = torch.optim.SGD([v, w], lr=lr, momentum=momentum)
    x, y = torch.tensor(x), torch.tensor(y)
    losses, weights = [], []
    for _ in range(steps + 1):
        hidden = x[:, None] * v
        prediction = (torch.relu(hidden) if RELU[type(net)] else hidden) @ w
        cost = pointwise or (lambda f, t: (f - t) ** 2 / 2)
        loss = cost(prediction, y).mean()
        losses.append(loss.item())
        weights.append((w.detach().numpy().copy(), v.detach().numpy().copy()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return np.asarray(losses), weights


def instance(kind, seed, m=12, n=20, scale=0.5):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = np.abs(x) + 0.1 * rng.normal(size=n)
    return kind(scale * rng.normal(size=m), scale * rng.normal(size=m)), x, y


def assert_same_path(path, losses, weights, tolerance):
    np.testing.assert_allclose(path.loss, losses, rtol=tolerance)
    for step, (w, v) in enumerate(weights):
        size = max(np.abs(w).max(), np.abs(v).max())
        np.testing.assert_allclose(path[step].w, w, rtol=0, atol=tolerance * size)
        np.testing.assert_allclose(path[step].v, v, rtol=0, atol=tolerance * size)


@pytest.mark.parametrize("kind", [hs.ScalarLinear, hs.ScalarReLU])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("lr", [0.02, 0.18])
def test_equals_sgd_on_the_weights(kind, momentum, lr):
    net, x, y = instance(kind, seed=1)
    t = hs.gradient_descent(net, x, y, lr=lr, steps=60, momentum=momentum)
    assert_same_path(t, *sgd(net, x, y, lr, 60, momentum), tolerance=1e-11)


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5]), st.sampled_from([0.0, 0.5]))
def test_relu_units_that_change_sign_are_never_wrong(seed, m, momentum):
    net, x, y = instance(hs.ScalarReLU, seed, m=m, scale=0.3)
    t = hs.gradient_descent(net, x, y, lr=0.3, steps=15, momentum=momentum)
    losses, weights = sgd(net, x, y, 0.3, 15, momentum)
    assert_same_path(t, losses, weights, tolerance=1e-9)


def test_flips_do_happen_in_these_tests():
    net, x, y = instance(hs.ScalarReLU, seed=1)
    t = hs.gradient_descent(net, x, y, lr=0.18, steps=60, momentum=0.9)
    assert any(((t[0].v > 0) != (t[step].v > 0)).any() for step in range(61))


@pytest.mark.parametrize("kind", [hs.ScalarLinear, hs.ScalarReLU])
@pytest.mark.parametrize(
    ("loss", "cost"),
    [
        ("logistic", lambda f, t: log_one_plus_exp(-t * f)),
        ("huber", lambda f, t: torch.nn.functional.huber_loss(f, t, reduction="none")),
    ],
)
def test_other_losses(kind, loss, cost):
    net, x, y = instance(kind, seed=4)
    y = np.sign(y - y.mean())
    t = hs.gradient_descent(net, x, y, lr=0.3, steps=40, momentum=0.5, loss=loss)
    assert_same_path(t, *sgd(net, x, y, 0.3, 40, 0.5, cost), tolerance=1e-11)
    assert t.sharpness[7] == pytest.approx(float(t[7].hessian(x, y, loss).spectrum().sharpness))


@pytest.mark.parametrize("kind", [hs.ScalarLinear, hs.ScalarReLU])
def test_reports_agree_with_the_spectra_of_the_networks(kind):
    net, x, y = instance(kind, seed=2)
    t = hs.gradient_descent(net, x, y, lr=0.1, steps=20, momentum=0.8)
    for step in (0, 1, 7, 20):
        dense = t[step].hessian(x, y).dense()
        values = np.linalg.eigvalsh(dense)
        assert t.sharpness[step] == pytest.approx(values[-1], rel=1e-10)
        assert t.trace[step] == pytest.approx(np.trace(dense), rel=1e-10)
        assert t.phase[step] == t[step].phase(x, y)
        gaps = np.abs(values[:, None] - np.ravel(t.outliers[step])).min(axis=0)
        assert gaps.max() < 1e-10
        np.testing.assert_allclose(t.spectrum(step).eigenvalues, values[::-1], atol=1e-10)


def test_long_relu_runs_forget_and_replay_states(monkeypatch):
    monkeypatch.setattr(trajectory, "BUDGET", 10**6)
    rng = np.random.default_rng(0)
    net = hs.ScalarReLU(0.05 * rng.normal(size=2000), 0.05 * rng.normal(size=2000))
    x = rng.normal(size=30)
    t = hs.gradient_descent(net, x, np.abs(x), lr=0.05, steps=300, momentum=0.5)
    assert len(t._states._kept) < 20
    _, weights = sgd(net, x, np.abs(x), 0.05, 300, 0.5)
    for step in (0, 3, 101, 202, 299, 300):
        np.testing.assert_allclose(t[step].v, weights[step][1], rtol=0, atol=1e-11)


def test_the_bulk_eigenspace_never_moves():
    net, x, y = instance(hs.ScalarLinear, seed=5)
    t = hs.gradient_descent(net, x, y, lr=0.05, steps=50)
    before = np.concatenate([s.vectors() for s in t.spectrum(0)["bulk"]], axis=1)
    after = np.concatenate([s.vectors() for s in t.spectrum(50)["bulk"]], axis=1)
    overlap = np.linalg.svd(before.T @ after, compute_uv=False)
    np.testing.assert_allclose(overlap, 1, atol=1e-12)


def test_a_batch_trains_like_its_members():
    rng = np.random.default_rng(3)
    w, v = rng.normal(size=(2, 4, 6))
    x, y = rng.normal(size=(2, 10))
    t = hs.gradient_descent(hs.ScalarLinear(w, v), x, y, lr=0.05, steps=9, momentum=0.3)
    for i in range(4):
        one = hs.gradient_descent(hs.ScalarLinear(w[i], v[i]), x, y, lr=0.05, steps=9, momentum=0.3)
        np.testing.assert_allclose(t.loss[:, i], one.loss, rtol=1e-13)
        np.testing.assert_allclose(t.outliers[:, i], one.outliers, rtol=1e-11, atol=1e-14)
        assert tuple(t.phase[:, i]) == one.phase
        np.testing.assert_allclose(t[9].w[i], one[9].w, rtol=1e-12)


def test_torch_in_torch_out():
    net, x, y = instance(hs.ScalarReLU, seed=6)
    other = hs.ScalarReLU(*(torch.tensor(a, dtype=torch.float32) for a in (net.w, net.v)))
    data = (torch.tensor(a, dtype=torch.float32) for a in (x, y))
    t = hs.gradient_descent(other, *data, lr=0.05, steps=5)
    reference = hs.gradient_descent(net, x, y, lr=0.05, steps=5)
    assert t.loss.dtype == t[3].w.dtype == torch.float32
    np.testing.assert_allclose(t.loss.numpy(), reference.loss, rtol=1e-5)


def test_divergence_is_told_not_hidden():
    net, x, y = instance(hs.ScalarLinear, seed=1, scale=2.0)
    t = hs.gradient_descent(net, x, y, lr=5.0, steps=50)
    assert t.diverged is not None
    assert np.isfinite(t.loss[: t.diverged]).all()
    assert not np.isfinite(t.loss[t.diverged])
    with pytest.raises(ValueError, match=f"diverged at step {t.diverged}"):
        t[t.diverged]


def test_zero_steps_and_indexing():
    net, x, y = instance(hs.ScalarReLU, seed=1)
    t = hs.gradient_descent(net, x, y, lr=0.1, steps=0)
    assert repr(t).startswith("1 point of training: loss ")
    assert len(t) == 1
    np.testing.assert_array_equal(t[-1].w, net.w)
    with pytest.raises(IndexError, match="step 1"):
        t[1]


@pytest.mark.filterwarnings("ignore::hessence.KinkWarning")
def test_dead_units_stay_where_they_are():
    net = hs.ScalarReLU(w=np.asarray([1.0, 2.0, -1.0]), v=np.asarray([1.0, 0.0, -1.0]))
    x = np.asarray([1.0, -2.0, 0.5])
    t = hs.gradient_descent(net, x, np.abs(x), lr=0.1, steps=10, momentum=0.9)
    assert_same_path(t, *sgd(net, x, np.abs(x), 0.1, 10, 0.9), tolerance=1e-12)
    assert t[10].w[1] == 2.0


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"lr": 0}, ValueError, "lr must be a positive number, got 0"),
        ({"lr": -1.0}, ValueError, "lr"),
        ({"lr": float("nan")}, ValueError, "lr"),
        ({"lr": "fast"}, TypeError, "lr"),
        ({"lr": "0.1"}, TypeError, "lr must be a positive number, got str"),
        ({"lr": True}, TypeError, "lr must be a positive number, got bool"),
        ({"sam": float("inf")}, ValueError, "sam must be a number that is not negative, got inf"),
        ({"steps": -1}, ValueError, "steps must not be negative, got -1"),
        ({"steps": 1.5}, TypeError, "steps must be an integer"),
        ({"momentum": 1.0}, ValueError, "momentum"),
        ({"momentum": -0.1}, ValueError, "momentum"),
        ({"loss": "none"}, ValueError, "loss"),
        ({"net": "network"}, TypeError, "net must be"),
        ({"y": np.ones(3)}, ValueError, "y"),
    ],
)
def test_bad_input(changes, error, words):
    net, x, y = instance(hs.ScalarLinear, seed=0)
    arguments = {"net": net, "x": x, "y": y, "lr": 0.1, "steps": 3} | changes
    with pytest.raises(error, match=words):
        hs.gradient_descent(**arguments)


def test_a_batch_of_relu_networks_is_refused_by_name():
    rng = np.random.default_rng(0)
    net = hs.ScalarReLU(*rng.normal(size=(2, 3, 4)))
    with pytest.raises(ValueError, match="net must be a single ReLU network"):
        hs.gradient_descent(net, [1.0], [1.0], lr=0.1, steps=1)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("gap", [0.0, 1e-9])
def test_weights_that_start_equal_or_opposite(sign, gap):
    """w − v vanishes or nearly so; its multiple may grow beyond all bounds and must not matter."""
    rng = np.random.default_rng(8)
    v = 0.3 * rng.normal(size=6)
    net = hs.ScalarLinear(sign * v + gap * rng.normal(size=6), v)
    x = rng.normal(size=20)
    t = hs.gradient_descent(net, x, -sign * 2 * x, lr=0.2, steps=400)
    losses, weights = sgd(net, x, -sign * 2 * x, 0.2, 40, 0.0)
    np.testing.assert_allclose(t.loss[:41], losses, rtol=1e-9)
    np.testing.assert_allclose(t[40].w, weights[40][0], rtol=0, atol=1e-9)
    assert t.diverged is None
    assert np.isfinite(t.sharpness).all()


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("kind", [hs.ScalarAffine, hs.DecoupledInputs, hs.DecoupledOutputs])
def test_networks_without_a_reduction_train_on_their_weights(kind, momentum):
    rng = np.random.default_rng(9)
    weights = rng.normal(size=(3, 4)) if kind is hs.ScalarAffine else rng.normal(size=(2, 3, 4))
    net = kind(*weights)
    x = rng.normal(size=(10, 3)) if kind is hs.DecoupledInputs else rng.normal(size=10)
    y = rng.normal(size=(10, 3)) if kind is hs.DecoupledOutputs else rng.normal(size=10)
    t = hs.gradient_descent(net, x, y, lr=0.03, steps=12, momentum=momentum)
    theta, velocity = np.asarray(net.parameters()), 0.0
    for step in range(13):
        here = net.with_parameters(theta)
        values = np.linalg.eigvalsh(here.hessian(x, y).dense())
        np.testing.assert_allclose(t[step].parameters(), theta, rtol=1e-12)
        assert float(t.loss[step]) == pytest.approx(float(here.loss(x, y)), rel=1e-12)
        assert float(t.sharpness[step]) == pytest.approx(values[-1], rel=1e-11)
        assert float(t.trace[step]) == pytest.approx(values.sum(), rel=1e-11)
        velocity = momentum * velocity + here.gradient(x, y)
        theta = theta - 0.03 * velocity
    assert t.method == "weights"


def test_no_bulk_and_no_outliers_where_there_are_no_units():
    x = np.asarray([1.0, -1.0, 2.0])
    t = hs.gradient_descent(hs.ScalarLinear([0.5], [0.2]), x, x, steps=3)
    assert np.isnan(t.bulk).all()
    assert np.isfinite(t.outliers).all()
    t = hs.gradient_descent(hs.ScalarReLU([0.5, 0.4], [0.2, 0.3]), x, x, lr=0.01, steps=3)
    assert np.isnan(t.bulk[:, 1]).all()
    assert np.isnan(t.outliers[:, 1]).all()
    assert np.isfinite(t.bulk[:, 0]).all()
    assert t.diverged is None
    for step in range(4):
        labels = {space.label for space in t.spectrum(step).spaces}
        assert labels == {"outlier/+cell", "bulk/+cell"}
    t = hs.gradient_descent(hs.SelfAttention(0.5, [0.2], [0.3]), x, x[::-1], steps=3)
    assert np.isnan(t.bulk).all()
    top = [float(t.spectrum(step).sharpness) for step in range(4)]
    np.testing.assert_allclose(t.sharpness, top, rtol=1e-12)
