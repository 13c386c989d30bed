"""Inputs and outputs in any units, against 50 digits: errors stay within 1e-13 ‖H‖."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from tests.linear_exact import FAMILIES, Families, assert_exact


def cases():
    rng = np.random.default_rng(0)
    for name, dims, features, outputs, loss in [
        ("features", (3, 5, 2), [1, 1e-4, 1e-9], [1, 1], "mse"),
        ("outputs", (2, 4, 3), [1, 1], [1, 1e-4, 1e-9], "mse"),
        ("both", (3, 6, 2), [1, 1e-5, 1e-9], [1, 1e-9], "mse"),
        ("both, other loss", (3, 5, 2), [1, 1e-5, 1e-9], [1, 1e-9], "cross-entropy"),
        ("one output", (4, 3, 1), [1, 1e-3, 1e-6, 1e-9], [1], "mse"),
        ("deep", (2, 3, 3, 2), [1, 1e-9], [1, 1e-9], "mse"),
        ("deep, other loss", (2, 2, 3, 2), [1, 1e-9], [1, 1], "cross-entropy"),
    ]:
        for compensated in (False, True):
            weights = [rng.normal(size=(b, a)) for a, b in pairwise(dims)]
            x = rng.normal(size=(6, dims[0])) * features
            y = rng.normal(size=(6, dims[-1])) * outputs
            if compensated:
                # Weights in the opposite units, so that every feature and output counts.
                weights[0] = weights[0] / features
                weights[-1] = weights[-1] * np.asarray(outputs)[:, None]
            if loss == "cross-entropy":
                y = np.eye(dims[-1])[rng.integers(dims[-1], size=6)]
            yield pytest.param(weights, x, y, loss, id=f"{name}, {compensated=}")
    # One output that is as good as decided beside ordinary ones.
    weights = [rng.normal(size=(4, 3)), rng.normal(size=(3, 4))]
    weights[1][0] += 40 * np.linalg.pinv(weights[0])[0]
    x = np.concatenate([np.ones((5, 1)), rng.normal(size=(5, 2))], axis=1)
    y = np.eye(3)[[0, 0, 0, 1, 2]]
    yield pytest.param(weights, x, y, "cross-entropy", id="saturated")


@pytest.mark.parametrize(("weights", "x", "y", "loss"), list(cases()))
def test_units_cost_no_digits(weights, x, y, loss):
    assert_exact(hs.DeepLinear(weights), x, y, loss)


@pytest.mark.parametrize("loss", ["mse", "huber"])
@pytest.mark.parametrize("far", [1.0, 1e-4, 1e-12])
@pytest.mark.parametrize("size", [1e-1, 1e-4, 1e-8])
def test_a_residual_connection_rounds_nothing_off(size, far, loss):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(5, 2))
    # Targets close to the inputs, which the connection alone fits.
    y = x + far * rng.normal(size=(5, 2)) * 0.1
    W1, W2 = size * rng.normal(size=(4, 2)), size * rng.normal(size=(2, 4))
    assert_exact(hs.ResidualLinear(W1, W2), x, y, loss)
    layers = [size * rng.normal(size=(2, 2)) for _ in range(3)]
    assert_exact(hs.DeepLinear(layers, residual=True), x, y, loss)


@pytest.mark.parametrize("family", FAMILIES)
@given(st.integers(0, 2**32 - 1))
def test_errors_are_bounds_and_small_where_nothing_cancels(family, seed):
    assert_exact(*Families(seed).case(family))
