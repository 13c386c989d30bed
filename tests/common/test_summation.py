"""Compensated sums against Python's exact `math.fsum`."""

import math

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hessence._common.summation import compensated_sum

WIDE = st.floats(-1e150, 1e150)


@given(st.lists(WIDE, min_size=1, max_size=40))
def test_as_if_in_twice_the_precision(terms):
    exact, sizes = math.fsum(terms), math.fsum(map(abs, terms))
    total = compensated_sum(np.asarray(terms))
    assert abs(total - exact) <= 2**-52 * abs(exact) + len(terms) ** 2 * 2.0**-104 * sizes


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 1000])
def test_cancellation_of_all_but_a_crumb(n):
    rng = np.random.default_rng(n)
    large = rng.normal(size=n) * 1e10
    terms = rng.permutation(np.concatenate([large, -large, [1e-8]]))
    assert compensated_sum(terms) == pytest.approx(math.fsum(terms), rel=1e-15)


def test_last_axis_of_any_array_and_the_gradient_of_a_plain_sum():
    terms = np.random.default_rng(0).normal(size=(3, 5))
    rows = [math.fsum(row) for row in terms]
    np.testing.assert_allclose(compensated_sum(terms), rows, rtol=1e-15)
    strict = compensated_sum(array_api_strict.asarray(terms))
    np.testing.assert_allclose(np.asarray(strict), rows, rtol=1e-15)
    tensor = torch.tensor(terms, requires_grad=True)
    (gradient,) = torch.autograd.grad(compensated_sum(tensor).sum(), tensor)
    np.testing.assert_array_equal(gradient, np.ones_like(terms))
