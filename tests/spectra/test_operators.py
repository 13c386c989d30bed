"""Operators as matrices: shapes, columns, batches, and what they refuse."""

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh

import hessence as hs
from hessence.spectra.hessian import positive_norm
from hessence.spectra.operators import Operator
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


@pytest.mark.parametrize("kind", KINDS)
def test_scipy_multiplies_and_solves(kind, rng):
    H = typical(kind, m=4).hessian_operator
    S, dense = H.to_scipy(), np.asarray(H.dense())
    assert S.shape == H.shape
    assert S.dtype == np.float64
    columns = rng.normal(size=(H.shape[-1], 2))
    for operand in (columns, columns[:, 0], columns[:, :1], columns.astype(np.float32)):
        np.testing.assert_allclose(S @ operand, dense @ operand, rtol=0, atol=1e-12)
        np.testing.assert_allclose(S.T @ operand, dense @ operand, rtol=0, atol=1e-12)
    for which, expected in (("LA", 0), ("SA", -1)):
        start = np.ones(H.shape[-1])
        (value,) = eigsh(S, k=1, which=which, v0=start, return_eigenvectors=False)
        np.testing.assert_allclose(value, H.spectrum().eigenvalues[expected], atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scipy_has_its_own_vectors_whatever_the_weights_are(dtype):
    """Float64 vectors of NumPy with weights of PyTorch, in either precision, gradients or not."""
    case = typical("ScalarLinear", m=4)
    weights = {k: torch.tensor(v, dtype=dtype, requires_grad=True) for k, v in case.weights.items()}
    x, y = (torch.tensor(a, dtype=dtype) for a in (case.x, case.y))
    S = type(case.net)(**weights).hessian(x, y).to_scipy()
    assert S.dtype == np.dtype(str(dtype).removeprefix("torch."))
    vector = np.linspace(-1, 1, 8)
    image = S @ vector
    assert isinstance(image, np.ndarray)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(image, case.hessian_operator @ vector, rtol=0, atol=tolerance)


def test_scipy_takes_one_matrix():
    net = hs.ScalarLinear(np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(
        ValueError, match=r"SciPy takes one matrix, but H is a batch of .*\(2, 6, 6\)"
    ):
        net.hessian(np.ones(2), np.ones(2)).to_scipy()


def test_a_matrix_too_large_to_be_written_down():
    H = hs.ScalarLinear(np.ones(10**6), np.ones(10**6)).hessian([1.0], [1.0])
    with pytest.raises(ValueError, match=r"H has 4.0e\+12 entries, which would take 64000 GB: use"):
        H.dense()


def test_a_bound_that_overflows_is_infinite_and_no_nan():
    matrix = np.asarray([[1e308, 1e308], [1e308, 0.0]])

    class Large(Operator):
        shape, reference = (2, 2), matrix

        def times(self, columns):
            return matrix @ columns

    assert positive_norm(Large()) == np.inf
