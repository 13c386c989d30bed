"""What goes in, what comes out, and what is refused in one sentence."""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.sparse.linalg import LinearOperator

import hessence as hs
from hessence.krylov._linear_algebra import lengths
from hessence.krylov.eigenpairs import eigenpairs
from tests.krylov.market import Counting, matrix

VALUES = np.concatenate([[5.0, 5.0, 3.0], np.linspace(-1, 1, 97)])
H = matrix(VALUES, np.random.default_rng(0))


class TorchOperator:
    """As curvlinops has them: a type and a device, and no arrays to look at."""

    shape = (100, 100)
    device = torch.device("cpu")

    def __init__(self, dtype):
        self.dtype = dtype

    def __matmul__(self, other):
        assert isinstance(other, torch.Tensor)
        return torch.asarray(H, dtype=self.dtype) @ other


@pytest.mark.parametrize(
    ("operator", "kind", "dtype"),
    [
        (H, np.ndarray, np.float64),
        (H.astype(np.float32), np.ndarray, np.float32),
        (torch.asarray(H), torch.Tensor, torch.float64),
        (torch.asarray(H, requires_grad=True), torch.Tensor, torch.float64),
        (array_api_strict.asarray(H), type(array_api_strict.asarray(H)), array_api_strict.float64),
        (LinearOperator(H.shape, matvec=lambda v: H @ v, dtype=np.float64), np.ndarray, np.float64),
        (LinearOperator(H.shape, matvec=lambda v: H @ v), np.ndarray, np.float64),
        (scipy.sparse.csr_array(H), np.ndarray, np.float64),
        (TorchOperator(torch.float64), torch.Tensor, torch.float64),
        (TorchOperator(torch.float32), torch.Tensor, torch.float32),
    ],
)  # fmt: skip
def test_vectors_are_of_the_operators_kind(operator, kind, dtype):
    pairs = eigenpairs(operator, k=3)
    for array in (pairs.eigenvalues, pairs.eigenvectors, pairs.errors):
        assert type(array) is kind
        assert array.dtype == dtype
    np.testing.assert_allclose(np.asarray(pairs.eigenvalues), [5, 5, 3], rtol=1e-5)
    assert tuple(pairs.eigenvectors.shape) == (100, 3)
    assert len(pairs) == 3


def test_integers_are_promoted():
    pairs = eigenpairs(np.diag(np.arange(80)), k=2)
    np.testing.assert_allclose(pairs.eigenvalues, [79.0, 78.0])


def test_an_unknown_operator_takes_the_kind_of_its_start():
    class Bare:
        shape = (100, 100)

        def __matmul__(self, other):
            return torch.asarray(H) @ other

    pairs = eigenpairs(Bare(), k=2, v0=torch.ones(100, dtype=torch.float64))
    assert isinstance(pairs.eigenvectors, torch.Tensor)


def test_our_own_operators():
    rng = np.random.default_rng(1)
    hessian = hs.ScalarLinear(rng.normal(size=60), rng.normal(size=60)).hessian(
        rng.normal(size=9), rng.normal(size=9)
    )
    pairs = eigenpairs(hessian, k=5, which="BE")
    exact = hessian.spectrum().eigenvalues
    np.testing.assert_allclose(pairs.eigenvalues, np.r_[exact[:3], exact[-2:]], atol=1e-9)


def test_the_table_tells_what_was_found():
    shown = repr(eigenpairs(H, k=3))
    assert shown.startswith("3 of 100 eigenvalues, largest: Lanczos, ")
    assert shown.splitlines()[1].split() == ["value", "error"]
    assert len(shown.splitlines()) == 5
    assert "… 8 more …" in repr(eigenpairs(H, k=20))
    assert "of each of (2,) operators" in repr(eigenpairs(np.stack([H, H]), k=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be an integer between 1 and 100, got 0"),
        ({"k": 101}, "k must be an integer between 1 and 100, got 101"),
        ({"k": 2.5}, "k must be an integer"),
        ({"k": True}, "k must be an integer"),
        ({"which": "largest"}, "which must be"),
        ({"which": None}, "which must be"),
        ({"tol": -1.0}, "tol must be"),
        ({"tol": float("nan")}, "tol must be"),
        ({"tol": "small"}, "tol must be"),
        ({"tol": np.True_}, "tol must be .* got bool"),
        ({"tol": np.str_("0.1")}, "tol must be .* got str_"),
        ({"v0": np.ones(99)}, r"v0 must have shape \(100,\) or \(100, b\) with b ≤ n, got \(99,\)"),
        ({"v0": np.ones((2, 100))}, "v0 must have shape"),
        ({"v0": np.full(100, np.nan)}, "v0 contains NaN"),
        ({"ncv": 10}, "ncv must be an integer between 11 and 100"),
        ({"columns": 0}, "columns must be"),
        ({"max_products": 3}, "max_products must be an integer of at least 10"),
        ({"confidence": 1.0}, "confidence must be"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        eigenpairs(H, **arguments)


@pytest.mark.parametrize(
    ("operator", "error", "message"),
    [
        (np.ones((3, 4)), ValueError, r"H must be square and not empty.*\(3, 4\)"),
        (np.ones(3), ValueError, "H must be square"),
        (np.ones((0, 0)), ValueError, "H must be square and not empty"),
        (np.triu(np.ones((5, 5))), ValueError, "H must be symmetric"),
        (np.full((5, 5), np.nan), ValueError, "H contains NaN"),
        (np.ones((5, 5), dtype=complex), TypeError, "H has type complex128"),
        (torch.ones(5, 5, dtype=torch.bfloat16), TypeError, "H has type bfloat16"),
        ("H", TypeError, "H must be a matrix or an operator with .shape and @, got str"),
        (TorchOperator(torch.float16), TypeError, "H has type float16"),
    ],
)
def test_bad_operators(operator, error, message):
    with pytest.raises(error, match=message):
        eigenpairs(operator, k=1)


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (lambda v: v[:-1], ValueError, "H @ v must have the shape of v"),
        (lambda v: v * np.nan, ValueError, "H @ v contains NaN or infinity"),
        (lambda v: torch.asarray(v), TypeError, "H @ v must return a NumPy array"),
        (
            lambda v: None,
            TypeError,
            "H @ v must return a NumPy array like v, got builtins.NoneType",
        ),
    ],
)
def test_bad_products(image, error, message):
    class Broken(Counting):
        def __matmul__(self, other):
            return image(other)

    for n in (10, 100):
        with pytest.raises(error, match=message):
            eigenpairs(Broken(np.ones(n)), k=1)


def test_mismatched_starts_and_seeds():
    with pytest.raises(TypeError, match="H is a NumPy array and v0 a PyTorch array"):
        eigenpairs(H, k=1, v0=torch.ones(100))
    with pytest.raises(TypeError, match="rng must be an integer or a numpy Generator"):
        eigenpairs(H, k=1, rng="seed")


def test_lengths_of_strided_columns_in_single_precision():
    columns = np.random.default_rng(0).standard_normal((2**20, 16)).astype(np.float32).T[..., None]
    truth = np.linalg.norm(columns.astype(np.float64), axis=-2)
    np.testing.assert_allclose(lengths(columns), truth, rtol=1e-6)


def test_the_sharpness_is_the_largest_of_all():
    H = np.diag([3.0, 2.0, 1.0, -9.0, -10.0])
    assert hs.eigenpairs(H, k=1).sharpness == 3.0
    assert hs.eigenpairs(H, k=2, which="BE").sharpness == 3.0
    assert hs.eigenpairs(H, k=3, which="LM").sharpness == 3.0
    assert hs.eigenpairs(H, k=5, which="SA").sharpness == 3.0
    for k, which in ((1, "SA"), (2, "LM")):
        with pytest.raises(ValueError, match="the largest eigenvalue is not among those found"):
            _ = hs.eigenpairs(H, k=k, which=which).sharpness
