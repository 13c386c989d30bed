"""Single precision, SciPy, and operands that do not fit."""

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh

import hessence as hs
from tests.models.market import MODELS, problem
from tests.models.oracle import assert_same


@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
@pytest.mark.parametrize("name", MODELS)
def test_single_precision(name, operator):
    double, single = problem(name), problem(name, torch.float32)
    expected = operator(double.model, double.data, double.loss).dense()
    H = operator(single.model, single.data, single.loss)
    assert H.dtype == torch.float32
    dense = H.dense()
    assert dense.dtype == torch.float32
    assert_same(dense, expected.float(), 2e-5)
    v = torch.linspace(-1, 1, H.shape[0])
    assert (H @ v).dtype == torch.float32
    assert_same(H @ v, (expected @ v.double()).float(), 5e-5)
    assert H.check().passed


@pytest.mark.parametrize("which", ["LA", "SA"])
def test_a_single_precision_model_in_scipys_double_vectors(which):
    case = problem("gpt", torch.float32)
    H = hs.hessian(case.model, case.data, case.loss)
    values = torch.linalg.eigvalsh(H.dense().double()).numpy()
    expected = values[-3:] if which == "LA" else values[:3]
    start = np.random.default_rng(0).normal(size=H.shape[0])
    assert start.dtype == np.float64
    found, vectors = eigsh(H.to_scipy(), k=3, which=which, v0=start, tol=1e-4)
    np.testing.assert_allclose(np.sort(found), expected, rtol=1e-3, atol=1e-5)
    assert np.isfinite(vectors).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scipy_operators(dtype):
    case = problem("tanh_mlp", dtype)
    H = hs.hessian(case.model, case.data, case.loss)
    S = H.to_scipy()
    assert S.shape == H.shape
    assert S.dtype == np.dtype(str(dtype).removeprefix("torch."))
    dense = H.dense().numpy()
    columns = np.random.default_rng(1).normal(size=(H.shape[0], 3))
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    for operand in (columns, columns[:, 0], columns[:, :1], columns.astype(np.float32)):
        np.testing.assert_allclose(S @ operand, dense @ operand, atol=tolerance)
        np.testing.assert_allclose(S.T @ operand, dense @ operand, atol=tolerance)


BAD = [
    (torch.ones(5), ValueError, r"operand of @ must be a vector \(54,\)"),
    (torch.ones(5, 54), ValueError, "operand of @ must be a vector"),
    (torch.ones(3, 2, 54), ValueError, "operand of @ must"),
    (torch.ones(()), ValueError, "operand of @ must be a vector"),
    (torch.ones(54, 0), ValueError, "operand of @ is empty"),
    (torch.full((54,), torch.nan), ValueError, "operand of @ contains NaN"),
    (torch.full((54,), torch.inf), ValueError, "operand of @ contains"),
    (torch.ones(54, dtype=torch.complex64), TypeError, "operand of @ has type complex"),
    (torch.ones(54, dtype=torch.float16), TypeError, "operand of @ has type .*float16"),
    (np.ones(54), TypeError, "PyTorch.*operand of @.*NumPy"),
    ("abc", TypeError, "operand"),
    (None, TypeError, "operand"),
]


@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
@pytest.mark.parametrize(("operand", "error", "message"), BAD)
def test_operands_that_do_not_fit(operand, error, message, operator):
    case = problem("tanh_mlp", torch.float32)
    H = operator(case.model, case.data, case.loss)
    with pytest.raises(error, match=message):
        H @ operand


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operands_of_the_other_precision(dtype):
    """Products are in the model's precision, the operand in its own."""
    case = problem("tanh_mlp", dtype)
    H = hs.hessian(case.model, case.data, case.loss)
    other = torch.float64 if dtype == torch.float32 else torch.float32
    for shape in ((54,), (54, 3)):
        v = torch.linspace(-1, 1, int(np.prod(shape)), dtype=other).reshape(shape)
        assert_same((H @ v).double(), (H @ v.to(dtype)).double(), 1e-5)


def test_integers_lists_and_strides():
    case = problem("tanh_mlp")
    H = hs.hessian(case.model, case.data, case.loss)
    ones = H @ torch.ones(54, dtype=torch.float64)
    assert torch.equal(H @ torch.ones(54, dtype=torch.int64), ones)
    assert torch.equal(H @ ([1] * 54), ones)
    wide = torch.randn(108, 6, dtype=torch.float64)
    assert_same(H @ wide[::2, ::3], H @ wide[::2, ::3].contiguous())
    assert_same(H @ wide.T[:3, :54].T, H @ wide[:54, :3])


def test_results_do_not_carry_a_graph():
    case = problem("tanh_mlp")
    for operator in (hs.hessian, hs.ggn):
        H = operator(case.model, case.data, case.loss)
        v = torch.ones(54, dtype=torch.float64, requires_grad=True)
        for result in (H @ v, H.dense(), H.gradient()):
            assert not result.requires_grad


def test_an_operator_knows_where_and_what_it_is():
    case = problem("tanh_mlp", torch.float32)
    H = hs.hessian(case.model, case.data, case.loss)
    assert H.device == torch.device("cpu")
    assert repr(H) == "ModelHessian of shape (54, 54)"
