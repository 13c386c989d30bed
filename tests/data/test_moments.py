"""Moments of data against plain NumPy averages, in one piece and in batches."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from tests.oracle import KINDS
from tests.strategies import typical

SHAPES = {"one input": ((), ()), "matrix": ((3,), (2,)), "vector input": ((3,), ())}


def data(shape, n=23, seed=0):
    rng = np.random.default_rng(seed)
    of_x, of_y = SHAPES[shape]
    return rng.normal(size=(n, *of_x)), rng.normal(size=(n, *of_y))


def batches(x, y, size):
    return ((x[i : i + size], y[i : i + size]) for i in range(0, len(x), size))


def assert_moments(moments, x, y):
    x, y = x.reshape(len(x), -1), y.reshape(len(y), -1)
    n = len(x)
    assert moments.n == n
    assert moments.dimensions == (x.shape[1], y.shape[1])
    for mine, plain in [
        (moments.xx, x.T @ x / n),
        (moments.yx, y.T @ x / n),
        (moments.yy, y.T @ y / n),
        (moments.x_mean, x.mean(axis=0) if n else 0 * x.sum(axis=0)),
        (moments.y_mean, y.mean(axis=0) if n else 0 * y.sum(axis=0)),
    ]:
        np.testing.assert_allclose(mine, plain, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [None, 1, 5, 23, 100])
def test_whole_or_in_ragged_batches(shape, size):
    x, y = data(shape)
    moments = hs.Moments(x, y) if size is None else hs.Moments.from_batches(batches(x, y, size))
    assert_moments(moments, x, y)
    assert (moments.samples is None) == (size is not None)
    assert f"n=23, inputs={x.reshape(23, -1).shape[1]}" in repr(moments)


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("outputs", ["one input", "two outputs"])
def test_cells_split_the_line_at_zero(size, outputs):
    x, y = data("one input")
    x[:3] = 0.0
    y = y if outputs == "one input" else np.stack([y, -(y**2)], axis=1)
    moments = hs.Moments(x, y) if size is None else hs.Moments.from_batches(batches(x, y, size))
    assert_moments(moments.cells.plus, x[x > 0], y[x > 0])
    assert_moments(moments.cells.minus, x[x <= 0], y[x <= 0])


@pytest.mark.parametrize("size", [None, 1])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_empty_cell(size, sign):
    x, y = sign * np.asarray([1.0, 2.0]), np.asarray([3.0, 4.0])
    moments = hs.Moments(x, y) if size is None else hs.Moments.from_batches(batches(x, y, size))
    empty, full = moments.cells[::-1] if sign > 0 else moments.cells
    assert (empty.n, full.n) == (0, 2)
    assert [empty.sum_xx.item(), empty.sum_yx.item(), empty.sum_yy.item()] == [0, 0, 0]


@pytest.mark.parametrize("size", [None, 7])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_constant_input(shape, size):
    x, y = data(shape)
    moments = hs.Moments(x, y) if size is None else hs.Moments.from_batches(batches(x, y, size))
    extended = np.concatenate([x.reshape(23, -1), np.ones((23, 1))], axis=1)
    assert_moments(moments.with_constant(), extended, y)


@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=30))
def test_streaming_is_as_exact_as_fsum(values):
    x = np.asarray(values)
    moments = hs.Moments.from_batches(batches(x, np.ones_like(x), 1))
    size = math.fsum(map(abs, values))
    assert (
        abs(moments.sum_x[0] - math.fsum(values)) <= 1e-15 * abs(math.fsum(values)) + 1e-28 * size
    )
    assert moments.sum_yx[0, 0] == moments.sum_x[0]


def test_streaming_crumbs_onto_a_rock():
    rock, crumbs = 1e8, np.full(10**3, 1e-9)
    x = np.concatenate([[rock], crumbs])
    moments = hs.Moments.from_batches(batches(x, np.ones_like(x), 1))
    assert moments.sum_x[0] == math.fsum(x)
    assert np.cumsum(x)[-1] != math.fsum(x)


# In place of samples.


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_networks_take_moments_in_place_of_samples(kind, size):
    case = typical(kind)
    x, y = case.x, case.y
    moments = hs.Moments(x, y) if size is None else hs.Moments.from_batches(batches(x, y, size))
    H = case.net.hessian(moments)
    np.testing.assert_allclose(H.dense(), case.hessian, rtol=0, atol=1e-13 * case.norm)
    np.testing.assert_allclose(H.spectrum().trace, np.trace(case.hessian), rtol=1e-12)
    np.testing.assert_allclose(case.net.gradient(moments), case.gradient, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(case.net.loss(moments), case.value, rtol=1e-13)


@pytest.mark.parametrize("kind", ["ScalarLinear", "ScalarReLU"])
def test_anatomy_and_phase_take_moments_too(kind):
    case = typical(kind)
    moments = hs.Moments.from_batches(batches(case.x, case.y, 2))
    whole = case.net.anatomy(case.x, case.y).sharpness
    np.testing.assert_allclose(case.net.anatomy(moments).sharpness, whole, rtol=1e-13)
    assert case.net.phase(moments) == case.net.phase(case.x, case.y)


@pytest.mark.parametrize("kind", ["ScalarLinear", "ScalarReLU"])
def test_loss_from_moments_survives_a_perfect_fit(kind):
    """σ²g² − 2cg + E[y²] would cancel to noise of either sign."""
    net = typical(kind).net
    x = np.linspace(-1, 1, 9) + 1e3
    moments = hs.Moments.from_batches(batches(x, net(x), 4))
    assert 0 <= net.loss(moments) < 1e-14 * np.mean(net(x) ** 2)


@pytest.mark.parametrize("loss", ["logistic", "huber"])
@pytest.mark.parametrize("kind", KINDS)
def test_other_losses_need_samples(kind, loss):
    case = typical(kind, "logistic")
    kept = case.net.hessian(hs.Moments(case.x, case.y), loss=loss)
    np.testing.assert_allclose(
        kept.dense(), case.net.hessian(case.x, case.y, loss).dense(), rtol=1e-14, atol=1e-15
    )
    gone = hs.Moments.from_batches([(case.x, case.y)])
    with pytest.raises(ValueError, match="loss must be 'mse'"):
        case.net.hessian(gone, loss=loss)


X, Y = np.asarray([1.0, 2.0]), np.asarray([3.0, 4.0])
BAD = {
    "lengths": (lambda: hs.Moments(X, Y[:1]), ValueError, "y must have one row"),
    "too many axes of x": (
        lambda: hs.Moments(np.ones((2, 2, 2)), Y),
        ValueError,
        "x must have shape",
    ),
    "too many axes of y": (
        lambda: hs.Moments(X, np.ones((2, 2, 2))),
        ValueError,
        "y must have shape",
    ),
    "no axis": (lambda: hs.Moments(1.0, Y), ValueError, "x must have shape"),
    "kinds": (
        lambda: hs.Moments(X, torch.ones(2)),
        TypeError,
        "x is a NumPy array and y a PyTorch",
    ),
    "no batches": (lambda: hs.Moments.from_batches([]), ValueError, "batches is empty"),
    "batches that change": (
        lambda: hs.Moments.from_batches([(X, Y), (np.ones((2, 3)), Y)]),
        ValueError,
        "batches must agree",
    ),
    "targets twice": (
        lambda: hs.ScalarLinear([1.0], [1.0]).hessian(hs.Moments(X, Y), Y),
        ValueError,
        "y must be left out",
    ),
    "no targets": (lambda: hs.ScalarLinear([1.0], [1.0]).hessian(X), ValueError, "y is missing"),
    "cells of a plane": (lambda: hs.Moments(np.ones((2, 2)), Y).cells, ValueError, "one input"),
    "wrong dimensions": (
        lambda: hs.ScalarLinear([1.0], [1.0]).hessian(hs.Moments(np.ones((2, 2)), Y)),
        ValueError,
        "x must be data with one input",
    ),
    "another kind": (
        lambda: hs.ScalarLinear(torch.ones(1), torch.ones(1)).hessian(hs.Moments(X, Y)),
        TypeError,
        "x a NumPy array",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_data_that_do_not_fit(name):
    act, error, message = BAD[name]
    with pytest.raises(error, match=message):
        act()


def test_batches_that_are_no_pairs_are_refused_in_words():
    with pytest.raises(ValueError, match=r"batches must yield pairs \(x, y\)"):
        hs.Moments.from_batches([np.ones((3, 2))])
