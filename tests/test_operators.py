"""Operators as matrices: shapes, columns, batches, and what they refuse."""

import numpy as np
import pytest
import torch

import hessence as hs
from tests.oracle import KINDS
from tests.strategies import typical


@pytest.mark.parametrize("kind", KINDS)
def test_h_is_the_sum_of_its_parts(kind, rng):
    H = typical(kind).hessian_operator
    z = rng.normal(size=H.shape[-1])
    np.testing.assert_allclose(H.ggn @ z + H.functional @ z, H @ z, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(H.ggn.functional @ z, 0 * z)
    np.testing.assert_array_equal(H.functional.ggn @ z, 0 * z)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_multiplies_as_its_members_do(kind, rng):
    case = typical(kind)
    net = type(case.net)(**{k: np.stack([v, 2 * v]) for k, v in case.weights.items()})
    H = net.hessian(case.x, case.y)
    p = H.shape[-1]
    assert H.shape == (2, p, p)
    columns = rng.normal(size=(2, p, 3))
    for i in range(2):
        one = net[i].hessian(case.x, case.y)
        np.testing.assert_allclose(H.dense()[i], one.dense(), rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose((H @ columns)[i], one @ columns[i], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose((H @ columns[0])[i], one @ columns[0], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(H.trace()[i], one.trace(), rtol=1e-13)
        np.testing.assert_allclose(H.squared_norm()[i], one.squared_norm(), rtol=1e-13)


BAD = [
    (np.ones(5), ValueError, "operand"),
    (np.ones((5, 6)), ValueError, "operand"),
    (np.full(6, np.nan), ValueError, "operand of @ contains NaN"),
    (np.ones(6) * 1j, TypeError, "operand of @ has type complex"),
    (torch.ones(6), TypeError, "NumPy.*operand of @.*PyTorch"),
    (2.0, ValueError, "operand"),
    ("abc", TypeError, "operand"),
    (None, TypeError, "operand"),
]


@pytest.mark.parametrize(("operand", "error", "message"), BAD)
def test_operands_that_do_not_fit(operand, error, message):
    H = hs.ScalarLinear(np.ones(3), np.ones(3)).hessian(np.ones(2), np.ones(2))
    with pytest.raises(error, match=message):
        H @ operand


@pytest.mark.parametrize("kind", KINDS)
def test_integers_and_lists_are_promoted(kind):
    H = typical(kind).hessian_operator
    p = H.shape[-1]
    np.testing.assert_array_equal(H @ ([1] * p), H @ np.ones(p))
    np.testing.assert_array_equal(H @ np.ones(p, dtype=int), H @ np.ones(p))


@pytest.mark.parametrize("kind", KINDS)
def test_repr_is_one_line(kind):
    H = typical(kind).hessian_operator
    assert str(H.shape) in repr(H)
    assert len(repr(H)) < 80
    other = typical(kind).hessian_operator
    assert (other == H) is False
