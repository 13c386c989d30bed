"""Brackets where rounding hides on which side of a loss's kink a prediction is, against mpmath."""

from __future__ import annotations

import warnings

import mpmath
import numpy as np
import pytest
import torch
from torch import nn

import hessence as hs
from tests.linear_exact import exact_parts

mp = mpmath.mp


def huber(f, y):
    return (f - y if abs(f - y) <= 1 else mp.sign(f - y)), mp.mpf(abs(f - y) <= 1)


def smooth(f, y):
    return ((f - y) / 2 if abs(f - y) < 2 else mp.sign(f - y)), mp.mpf(abs(f - y) < 2) / 2


def absolute(f, y):
    return mp.sign(f - y), mp.mpf(0)


def logistic(f, y):
    share = 1 / (1 + mp.exp(y * f))
    return -y * share, share * (1 - share)


def eigenvalues(derivatives, v, w, x, y):
    """All eigenvalues of the mean loss of w·(v x) in (v, w), from 80 digits, descending."""
    m, n = len(v), len(x)
    vs, ws, xs, ys = ([mp.mpf(float(a)) for a in array] for array in (v, w, x, y))
    inner = mp.fsum(a * b for a, b in zip(vs, ws, strict=True))
    at = [derivatives(inner * a, b) for a, b in zip(xs, ys, strict=True)]
    first = mp.fsum(d[0] * a for d, a in zip(at, xs, strict=True)) / n
    second = mp.fsum(d[1] * a * a for d, a in zip(at, xs, strict=True)) / n
    g = [*ws, *vs]
    H = mp.matrix(2 * m, 2 * m)
    for i in range(2 * m):
        for j in range(2 * m):
            H[i, j] = second * g[i] * g[j] + (first if abs(i - j) == m else 0)
    return sorted(mp.eigsy(H, eigvals_only=True), reverse=True)


def model_of(v, w):
    model = nn.Sequential(nn.Linear(1, len(v), bias=False), nn.Linear(len(v), 1, bias=False))
    with torch.no_grad():
        model = model.double()
        model[0].weight.copy_(torch.tensor(v)[:, None])
        model[1].weight.copy_(torch.tensor(w)[None])
    return model


def draw(rng, labels):
    """A network whose predictions are large, or cancel, and targets about a threshold away."""
    m, n, big = int(rng.integers(1, 4)), int(rng.integers(1, 4)), 10.0 ** rng.integers(0, 11)
    v, w = rng.normal(size=(2, m)) * big
    if m > 1:
        times = rng.choice([1, 3, 7])
        v[-1], w[-1] = times * v[0], -w[0] / times * (1 + rng.choice([0, 3e-16, 1e-14]))
        v[1:-1] /= big
        w[1:-1] /= big
    x = rng.normal(size=n)
    away = rng.choice([-1, 0, 1, 2, -2, 0.5]) * (1 + rng.choice([0, 1e-16, 1e-3]))
    y = (v @ w) * x + away
    return v, w, x, np.where(rng.random(n) < 0.5, -1.0, 1.0) if labels else y


LOSSES = {
    "huber": (huber, "huber"),
    "logistic": (logistic, "logistic"),
    "PyTorch's Huber": (huber, nn.HuberLoss()),
    "smooth L1": (smooth, nn.SmoothL1Loss(beta=2.0)),
    "L1": (absolute, nn.L1Loss()),
    "binary cross-entropy": (logistic, nn.BCEWithLogitsLoss()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_brackets_and_counts_hold_where_rounding_may_cross_a_kink(name):
    derivatives, loss = LOSSES[name]
    rng, tried = np.random.default_rng(7), 0
    for _ in range(100):
        v, w, x, y = draw(rng, derivatives is logistic)
        with warnings.catch_warnings(), mpmath.workdps(80):
            warnings.simplefilter("ignore")
            inner = mp.fsum(mp.mpf(float(a)) * mp.mpf(float(b)) for a, b in zip(v, w, strict=True))
            if derivatives is logistic and abs(inner) * np.abs(x).max() > 700:
                continue  # the derivatives are below the smallest number there is
            tried += 1
            values = eigenvalues(derivatives, v, w, x, y)
            if isinstance(loss, str):
                found = hs.brackets(hs.ScalarLinear(w, v), (x, y), loss)
            else:
                target = (y + 1) / 2 if derivatives is logistic else y
                data = torch.tensor(x)[:, None], torch.tensor(target)[:, None]
                found = hs.brackets(model_of(v, w), data, loss)
                assert found.method == "two layers"
            require_true(found, values)
    assert tried > 15


def require_true(found, values):
    tiny = max(abs(values[0]), abs(values[-1])) * mp.mpf(10) ** -60
    for index, value in enumerate(values):
        low, high = found.eigenvalue(index)
        assert max(low, found.lower[index]) <= value + tiny
        assert value - tiny <= min(high, found.upper[index])
    for at in (0.0, float(values[0]) / 2, -1e3, 1e3 * float(values[0]) + 1):
        try:
            count = found.count(-np.inf, at)
        except ValueError:  # nothing is claimed
            continue
        for end in count.intervals[1]:
            fewest, most = (sum(v <= end + s * tiny for v in values) for s in (-1, 1))
            assert fewest <= count <= most


@pytest.mark.parametrize("residual", [0.5, 3.0])
def test_brackets_are_narrow_where_rounding_crosses_no_kink(residual):
    v, w, x = np.asarray([1.0, -0.5, 2.0]), np.asarray([0.3, 1.0, -1.0]), np.asarray([1.0, -2.0])
    y = (v @ w) * x + residual
    found = hs.brackets(hs.ScalarLinear(w, v), (x, y), "huber")
    with mpmath.workdps(50):
        values = eigenvalues(huber, v, w, x, y)
    low, high = found.eigenvalue(0)
    assert low <= values[0] <= high
    assert high - low < 1e-12 * values[0]


@pytest.mark.parametrize("seed", [1, 4, 10, 43])
def test_brackets_hold_where_rounding_hides_whether_the_logistic_loss_is_saturated(seed):
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.uniform(8, 9.5)
    v, w = size * rng.normal(size=(2, 2))
    # Products of 1e18 cancel down to less than 100, and the prediction is off by as much.
    v[1], w[1] = 3 * v[0], -w[0] / 3
    x, y = np.ones(1), np.sign(rng.normal(size=1))
    with warnings.catch_warnings(), mpmath.workdps(80):
        warnings.simplefilter("ignore")
        require_true(
            hs.brackets(hs.ScalarLinear(w, v), (x, y), "logistic"),
            eigenvalues(logistic, v, w, x, y),
        )


@pytest.mark.parametrize("margin", [400.0, 450.0, 600.0])
def test_brackets_hold_where_squares_of_derivatives_vanish(margin):
    rng = np.random.default_rng(0)
    W1, W2 = rng.normal(size=(3, 2)), rng.normal(size=(2, 3))
    x = rng.normal(size=(1, 2))
    # Weights that are large and cancel, so that predictions are off by many of their roundings.
    W1[2], W2[:, 2] = 3e4 * W1[0], -1e4 * W2[:, 0] / 3
    W1[0] *= 1e4
    W2[:, 0] *= 1e4
    net = hs.TwoLayerLinear(W1, W2)
    first, second = net(x)[0]
    W2[0, 1] += (margin - (first - second)) / (W1[1] @ x[0])
    y = np.asarray([[1.0, 0.0]])
    net = hs.TwoLayerLinear(W1, W2)
    values = np.linalg.eigvalsh(exact_parts(net, x, y, "cross-entropy")[0])[::-1]
    found = hs.brackets(net, (x, y), "cross-entropy")
    noise = 1e-14 * np.abs(values).max()
    assert 0 < values[0] < 1e-150
    assert (found.lower <= values + noise).all()
    assert (found.upper >= values - noise).all()
    low, high = found.eigenvalue(0)
    assert low - noise <= values[0] <= high + noise
