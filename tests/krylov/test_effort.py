"""How many products it takes: beside SciPy, from a warm start, and when there is not enough."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator, eigsh

import hessence as hs
from hessence.krylov.eigenpairs import eigenpairs
from hessence.krylov.eigenpairs_result import ConvergenceWarning
from tests.krylov.market import Counting, matrix

N = 9000


def hessian_like(name):
    """Return spectra as trained networks have them: a few outliers, a bulk around zero."""
    rng = np.random.default_rng(0)
    index = np.arange(1, N + 1)
    outliers = [30, 25, 18, 14, 12, 11, 9, 7, 6.5, 5.5, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5]
    return {
        "geometric outliers": lambda: np.r_[10 * 0.7 ** index[:20], 0.02 * rng.normal(size=N - 20)],
        "ten outliers": lambda: np.r_[outliers, 0.3 * rng.exponential(size=N - 16) ** 2 - 0.02],
        "power law": lambda: 10 / index**0.5,
        "exponential": lambda: 10 * np.exp(-index / 8),
    }[name]()  # fmt: skip


@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("name", ["geometric outliers", "ten outliers", "power law", "exponential"])
def test_about_as_many_products_as_arpack(name, k):
    values = hessian_like(name)
    theirs = Counting(values)
    wrapped = LinearOperator(theirs.shape, matvec=lambda v: theirs @ v.ravel(), dtype=np.float64)
    eigsh(wrapped, k=k, which="LA", tol=1e-6, v0=np.random.default_rng(1).normal(size=N))
    ours = Counting(values)
    pairs = eigenpairs(ours, k=k)
    assert pairs.converged
    assert pairs.products == ours.products
    # The search for missed copies is in ours, and not in theirs.
    assert ours.products <= 1.2 * theirs.products
    assert eigenpairs(values_only := Counting(values), k=k, confidence=0).converged
    assert values_only.products <= 1.02 * theirs.products


@pytest.mark.parametrize("k", [1, 5])
def test_a_warm_start_saves_products(k):
    rng = np.random.default_rng(2)
    H = matrix(np.concatenate([10 * 0.8 ** np.arange(12), 0.3 * rng.normal(size=388)]), rng)
    change = matrix(rng.uniform(-1, 1, size=400), rng)
    before = eigenpairs(H, k=k)
    for size, most in [(1e-9, k), (1e-4, 2 * k)]:
        after = H + size * change
        warm, cold = eigenpairs(after, k=k, v0=before.eigenvectors), eigenpairs(after, k=k)
        assert warm.products <= most < cold.products
        np.testing.assert_allclose(warm.eigenvalues, cold.eigenvalues, atol=1e-8)


def test_a_search_finds_what_a_start_has_no_part_in():
    values = np.concatenate([[5.0, 4.0], np.random.default_rng(3).uniform(-1, 1, size=500)])
    second = np.eye(502)[:, 1]
    assert eigenpairs(Counting(values), k=1, v0=second).eigenvalues == [4.0]
    pairs = eigenpairs(Counting(values), k=1, v0=second, confidence=0.99)
    np.testing.assert_allclose(pairs.eigenvalues, [5.0])
    assert pairs.confidence >= 0.99


def test_a_start_from_an_earlier_call_with_the_same_seed_hides_no_copies():
    values = np.concatenate([np.repeat([2.0, 1.0, -1.0, -2.0], 100), [0.3, -0.4, 0.8]])
    for seed in range(12):
        before = eigenpairs(Counting(values), k=3, tol=1e-8, rng=seed)
        for j in range(2):
            start = before.eigenvectors[:, j]
            after = eigenpairs(Counting(values), k=3, tol=1e-8, rng=seed, v0=start)
            np.testing.assert_allclose(after.eigenvalues, 2.0, atol=1e-6)


def test_a_search_that_was_not_made_is_told_of():
    values = np.repeat([3.0, 2.0, 1.0], 100)
    pairs = eigenpairs(Counting(values), k=3, max_products=3, confidence=0.999)
    assert pairs.confidence == 0
    assert "may be missing" in pairs.message


@pytest.mark.filterwarnings("ignore::hessence.ConvergenceWarning")
@pytest.mark.parametrize("which", ["LA", "SA", "LM", "BE"])
def test_each_value_is_told_resolved_or_not_by_its_own_residual(which):
    values = np.concatenate([[-40.0, 30.0, 3.0, -2.0], np.linspace(-1.5, 2.5, 400)])
    pairs = eigenpairs(Counting(values), k=4, which=which, tol=1e-6, max_products=14)
    vectors = pairs.eigenvectors
    defects = values[:, None] * vectors - pairs.eigenvalues * vectors
    residuals = np.linalg.norm(defects, axis=0)
    assert 0 < pairs.resolved.sum() < 4
    np.testing.assert_array_equal(pairs.resolved, residuals <= 1e-6 * 40)


def test_useless_starts_are_replaced_by_random_ones():
    values = np.linspace(0, 1, 100) ** 3
    for start in (np.zeros(100), np.zeros((100, 3)), np.ones((100, 4))):
        pairs = eigenpairs(Counting(values), k=2, v0=start)
        np.testing.assert_allclose(pairs.eigenvalues, [1.0, (98 / 99) ** 3], atol=1e-9)


def test_same_seed_same_result():
    values = np.random.default_rng(4).normal(size=500)
    first, second = (eigenpairs(Counting(values), k=4, rng=7) for _ in range(2))
    assert (first.eigenvalues == second.eigenvalues).all()
    assert (first.eigenvectors == second.eigenvectors).all()
    generator = eigenpairs(Counting(values), k=4, rng=np.random.default_rng(7))
    assert (first.eigenvectors == generator.eigenvectors).all()


def test_not_converged_is_said_and_not_raised():
    values = np.linspace(-1, 1, 5000)
    with pytest.warns(ConvergenceWarning, match="raise max_products") as record:
        pairs = eigenpairs(Counting(values), k=3, max_products=40)
    assert record[0].filename == __file__
    assert not pairs.converged
    assert not pairs.resolved.any()
    assert pairs.products == 40
    assert pairs.message in repr(pairs)
    assert (np.abs(pairs.eigenvalues[:, None] - values).min(axis=1) <= pairs.errors).all()
    with pytest.warns(ConvergenceWarning):
        further = eigenpairs(Counting(values), k=3, v0=pairs.eigenvectors, max_products=300)
    assert (further.errors < pairs.errors).all()


def test_hard_spectra_of_moderate_size_end_densely():
    values = np.linspace(-1, 1, 400)
    pairs = eigenpairs(Counting(values), k=4, which="LM", ncv=5)
    assert pairs.method == "dense"
    assert pairs.products == 800
    np.testing.assert_allclose(pairs.eigenvalues, values[[-1, -2, 1, 0]])


def test_a_budget_below_the_order_is_kept():
    for n in (3, 10, 64, 90):
        values = np.concatenate([[5.0], np.linspace(0, 1e-9, n - 1)])
        ours = Counting(values)
        pairs = eigenpairs(ours, k=1, max_products=2)
        assert pairs.products == ours.products <= 2
        np.testing.assert_allclose(pairs.eigenvalues, [5.0])


@pytest.mark.parametrize("n", [10, 200])
def test_an_operator_that_is_not_symmetric_is_found_out(n):
    class Skewed(Counting):
        def __matmul__(self, other):
            return super().__matmul__(other) + 1e-3 * np.roll(other, 1, axis=0)

    values = np.concatenate([[5.0, 4.0], np.linspace(-1, 1, n - 2)])
    with pytest.warns(ConvergenceWarning, match="not symmetric"):
        pairs = eigenpairs(Skewed(values), k=2)
    assert pairs.products <= max(n, 40)


def test_a_tolerance_below_rounding_is_told_of():
    H = np.diag(np.linspace(0.0, 1.0, 300)).astype(np.float32)
    assert "as small as rounding lets them be" in hs.eigenpairs(H, k=2, tol=1e-12).message
    assert "rounding" not in hs.eigenpairs(H, k=2, tol=1e-4).message


def test_a_search_for_copies_that_was_too_short_is_told_of():
    values = np.concatenate([[5.0] * 4, [3.0] * 3, [-4.0] * 3, np.linspace(-1, 1, 64)])
    start = np.random.default_rng(0).standard_normal(74)
    short = hs.eigenpairs(np.diag(values), k=5, which="LM", ncv=6, confidence=0.9999, v0=start)
    assert short.confidence < 0.9999
    assert "Copies of multiple eigenvalues may be missing" in short.message


def test_images_too_long_for_single_precision_are_told_of():
    values = np.full(300, 1e17, dtype=np.float32)
    values[:16], values[20], values[21] = 6e4, 1e20, 9e19
    start = np.eye(300, dtype=np.float32)[0]
    with pytest.raises(ValueError, match=r"H @ v is finite, but its square is not: scale H down"):
        hs.eigenpairs(np.diag(values), k=2, v0=start, confidence=0.99)
    with pytest.raises(ValueError, match=r"H @ v is finite, but its square is not"):
        hs.trace(np.diag(values), products=300)
