"""The closed-form solvers against mpmath and LAPACK."""

import array_api_strict
import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import hessence as hs
from hessence.spectra.small_eigen import eigensystem, eigenvalues
from tests.oracle import exact_eigenvalues


def orthogonal(rng, k):
    return np.linalg.qr(rng.normal(size=(k, k)))[0]


def with_spectrum(values):
    def make(rng, k):
        q = orthogonal(rng, k)
        return q @ np.diag(np.resize(values, k)) @ q.T

    return make


FAMILIES = {
    "random": lambda rng, k: rng.normal(size=(k, k)),
    "clustered": with_spectrum([1.0, 1.0 + 1e-9, 1.0 - 3e-9]),
    "almost equal": with_spectrum([1.0, 1.0 + 3e-16, 1.0]),
    "close pair": with_spectrum([1.0, 1.0 + 1e-12, -0.3]),
    "double": with_spectrum([2.0, -1.0, -1.0]),
    "graded": lambda rng, k: (
        rng.normal(size=(k, k)) * 10.0 ** -np.add.outer(*[6 * np.arange(k)] * 2)
    ),
    "graded upwards": lambda rng, k: FAMILIES["graded"](rng, k)[::-1, ::-1],
    "rank one": lambda rng, k: np.outer(*[rng.normal(size=k)] * 2),
    "rank one of ones": lambda rng, k: np.ones((k, k)),
    "multiple of the identity": lambda rng, k: 0.1 * np.eye(k),
    "identity and dust": lambda rng, k: np.eye(k) + 1e-13 * rng.normal(size=(k, k)),
    "diagonal": lambda rng, k: np.diag(rng.normal(size=k)),
    "hollow": lambda rng, k: (1 - np.eye(k)) * rng.normal(size=(k, k)),
    "zero": lambda rng, k: np.zeros((k, k)),
}


NORMAL = st.floats(1e-6, 1.0) | st.floats(-1.0, -1e-6)


def symmetric(a):
    return (a + np.swapaxes(a, -1, -2)) / 2


def assert_solved(matrix, tolerance=4e-15):
    """Compare with mpmath, relative to the largest entry."""
    size = np.abs(matrix).max() or 1.0
    k = len(matrix)
    truth = [float(t / size) for t in exact_eigenvalues(mpmath.matrix(matrix.tolist()))]
    values, vectors = eigensystem(matrix)
    np.testing.assert_allclose(values / size, truth, rtol=0, atol=tolerance)
    np.testing.assert_allclose(eigenvalues(matrix) / size, truth, rtol=0, atol=tolerance)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), rtol=0, atol=tolerance)
    residual = (matrix / size) @ vectors - vectors * (values / size)
    np.testing.assert_allclose(residual, 0, rtol=0, atol=tolerance)


@pytest.mark.parametrize("scale", [1.0, 1e150, 1e-150])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("family", FAMILIES)
def test_against_mpmath(family, k, scale):
    rng = np.random.default_rng([k, len(family)])
    for _ in range(3):
        assert_solved(scale * symmetric(FAMILIES[family](rng, k)))


@given(
    hnp.arrays(
        float,
        st.sampled_from([(2, 2), (3, 3)]),
        elements=st.sampled_from([0.0, 1.0, -1.0]) | NORMAL | NORMAL.map(lambda t: 1e-8 * t),
    ),
    st.integers(-498, 498),
)
def test_any_entries_at_any_scale(entries, exponent):
    assert_solved(np.ldexp(symmetric(entries), exponent))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_leading_dimensions_are_a_batch(k):
    rng = np.random.default_rng(k)
    batch = symmetric(np.stack([make(rng, k) for make in FAMILIES.values()])).reshape(2, 7, k, k)
    values, vectors = eigensystem(batch)
    np.testing.assert_allclose(batch @ vectors, vectors * values[..., None, :], rtol=0, atol=1e-14)
    for index in np.ndindex(2, 7):
        np.testing.assert_allclose(values[index], eigenvalues(batch[index]), rtol=0, atol=2e-15)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", [torch.asarray, array_api_strict.asarray], ids=["torch", "strict"])
def test_other_arrays_give_the_same(kind, k):
    matrix = symmetric(np.random.default_rng(k).normal(size=(4, k, k)))
    values, vectors = (np.asarray(part) for part in eigensystem(kind(matrix)))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[:, ::-1], rtol=0, atol=1e-14)
    np.testing.assert_allclose(matrix @ vectors, vectors * values[:, None, :], rtol=0, atol=1e-14)
    assert all(type(part) is type(kind(matrix)) for part in eigensystem(kind(matrix)))


@pytest.mark.parametrize("k", [2, 3, 5])
def test_derivatives_of_eigenvalues_are_the_projectors(k):
    """A conserved law: ∂λ_i/∂A = z_i z_iᵀ, with LAPACK's eigenvectors."""
    matrix = symmetric(np.random.default_rng(k).normal(size=(k, k)))
    tensor = torch.tensor(matrix, requires_grad=True)
    values = eigenvalues(symmetric_tensor(tensor))
    _, vectors = np.linalg.eigh(matrix)
    for i in range(k):
        (gradient,) = torch.autograd.grad(values[i], tensor, retain_graph=True)
        projector = np.outer(*[vectors[:, k - 1 - i]] * 2)
        np.testing.assert_allclose(gradient, projector, rtol=0, atol=1e-12)


def symmetric_tensor(a):
    return (a + a.T) / 2


def test_a_hessian_that_overflows_is_refused_in_a_sentence():
    W = [np.full((4, 4), 1e10, np.float32)] * 3
    x = np.eye(4, dtype=np.float32)
    with (
        np.errstate(all="ignore"),
        pytest.raises(ValueError, match=r"overflows float32: .* float64"),
    ):
        hs.DeepLinear(W).hessian(x, x).spectrum()
    for solve in (eigenvalues, eigensystem):
        with pytest.raises(ValueError, match=r"overflows float64: .* down\.$"):
            solve(np.full((4, 4), np.inf))


def test_entries_on_which_a_solver_gives_up():
    """PyTorch's solver does, on 2 % of these."""
    torch.set_num_threads(1)
    for seed in (72, 85, 239, 289, 352, 390, 415):
        rng = np.random.default_rng(seed)
        dims, weights = (2, 2, 2, 3, 2), []
        for inputs, outputs, size in zip(dims, dims[1:], (1e-4, 1e-4, 30, 1e11), strict=False):
            rows = rng.normal(size=(outputs, inputs)) * 10.0 ** rng.integers(
                -5, 1, size=(outputs, 1)
            )
            weights.append(torch.tensor(rows * size, dtype=torch.float32))
        x = torch.tensor(rng.normal(size=(1, 2)), dtype=torch.float32)
        H = hs.DeepLinear(weights).hessian(x, torch.tensor([[0.75, 0.25]]), "cross-entropy")
        matrix = H.dense()
        values, vectors = eigensystem(matrix)
        exact = torch.linalg.eigvalsh(matrix.double()).flip(0)
        tolerance = 1e-5 * float(exact.abs().max())
        for found in (values, eigenvalues(matrix)):
            np.testing.assert_allclose(found, exact, rtol=0, atol=tolerance)
        assert float((matrix @ vectors - vectors * values).abs().max()) < tolerance
        torch.testing.assert_close(vectors.mT @ vectors, torch.eye(len(matrix)))
