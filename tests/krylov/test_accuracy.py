"""Every spectrum × end × precision × library: the bounds hold, the multiplicities are right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.linalg import eigsh

from hessence.krylov.eigenpairs import eigenpairs
from tests.krylov.market import KINDS, ORDER, SPECTRA, Counting, ends, matrix, numbers
from tests.strategies import at_least

WHICH = ("LA", "SA", "LM", "BE")


def check(pairs, H, k, which, tol):
    """Compare with NumPy's dense solver: values, residuals, bounds, orthogonality, flags."""
    exact = np.linalg.eigvalsh(H)
    norm = np.abs(exact).max()
    # NumPy's own answer is good to some spacings of ‖H‖, so it cannot judge more finely.
    slack = 30 * np.finfo(np.float64).eps * norm
    found = pairs.eigenvalues, pairs.errors, pairs.eigenvectors
    values, errors, vectors = (numbers(x) for x in found)
    precision = float(np.finfo(str(pairs.errors.dtype).removeprefix("torch.")).eps)
    assert pairs.converged
    assert (np.diff(values) <= 0).all()
    # An eigenvalue lies within the error of each value ...
    assert (np.abs(exact[:, None] - values).min(axis=0) <= errors + slack).all()
    # ... and it is the one with that number, up to what tol calls equal.
    wanted, found = ends(exact, k, which), values
    if which == "LM":  # of two with equal magnitude either will do
        wanted, found = np.sort(np.abs(wanted)), np.sort(np.abs(found))
        errors = np.full(k, errors.max())
    assert (np.abs(wanted - found) <= errors + max(tol, 16 * precision) * norm + slack).all()
    unit = norm or 1.0  # or the squares of tiny residuals would underflow
    residuals = np.linalg.norm((H @ vectors - vectors * values) / unit, axis=0) * unit
    assert (residuals <= numbers(pairs.errors) * (1 + 1e-6) + slack).all()
    assert np.abs(vectors.T @ vectors - np.eye(k)).max() <= 40 * precision


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_bounds_contain_the_truth(spectrum, dtype, kind):
    rng = np.random.default_rng(sum(map(ord, spectrum)))
    H = matrix(SPECTRA[spectrum](ORDER, rng), rng).astype(dtype)
    for which, k, tol in [("LA", 6, 1e-6), ("SA", 4, 1e-4), ("LM", 5, 1e-6), ("BE", 5, 1e-8)]:
        pairs = eigenpairs(KINDS[kind](H), k=k, which=which, tol=tol)
        assert type(pairs.eigenvectors) is type(KINDS[kind](H))
        assert str(pairs.eigenvectors.dtype).removeprefix("torch.") == dtype
        check(pairs, H.astype(np.float64), k, which, tol)


@at_least(80)
@given(data=st.data())
def test_bounds_hold_for_any_spectrum(data):
    n = data.draw(st.integers(1, 10) | st.integers(65, 130))
    distinct = data.draw(
        st.lists(st.floats(-1, 1, width=16, allow_subnormal=False), min_size=1, max_size=n)
    )
    scale = 10.0 ** data.draw(st.integers(-150, 150))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    values = scale * np.asarray(distinct)[rng.integers(len(distinct), size=n)]
    H = matrix(values, rng)
    k = data.draw(st.integers(1, min(n, 6)))
    which = data.draw(st.sampled_from(WHICH))
    columns = data.draw(st.integers(1, min(3, n)))
    check(eigenpairs(H, k, which, rng=rng, columns=columns), H, k, which, 1e-6)


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("n", [1, 2, 3, 40, 64, 65, 70])
def test_all_eigenvalues_of_small_matrices(n, which):
    rng = np.random.default_rng(n)
    H = matrix(rng.normal(size=n), rng)
    pairs = eigenpairs(H, k=n, which=which)
    np.testing.assert_allclose(pairs.eigenvalues, np.linalg.eigvalsh(H)[::-1], atol=1e-13)
    assert pairs.products == n
    assert pairs.method == "dense"
    assert pairs.confidence == 1


@pytest.mark.parametrize("which", WHICH)
def test_agrees_with_scipy(which):
    rng = np.random.default_rng(3)
    H = matrix(SPECTRA["outliers_on_a_bulk"](ORDER, rng), rng)
    theirs = eigsh(H, k=4, which=which, v0=np.ones(ORDER))[0][::-1]
    np.testing.assert_allclose(eigenpairs(H, k=4, which=which).eigenvalues, theirs, atol=1e-8)


@pytest.mark.parametrize("multiplicity", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_exact_multiplicities(multiplicity, seed):
    n = 3000
    rng = np.random.default_rng(seed)
    values = np.concatenate([[6.0] * multiplicity, [5.0, 5.0], rng.uniform(-1, 1, size=n)])
    pairs = eigenpairs(Counting(values), k=multiplicity + 2, rng=seed)
    expected = [6.0] * multiplicity + [5.0, 5.0]
    assert (np.abs(pairs.eigenvalues - expected) <= pairs.errors).all()
    assert pairs.confidence >= 0.99


def test_close_neighbours_are_not_missed():
    # Three eigenvalues closer than the tolerance. A search that does not look into the pending
    # vector misses one of them in 13 of 100 runs; the promise is 1 in 200.
    rng = np.random.default_rng(5)
    missed = 0
    for seed in range(30):
        close = [0.99788838, 0.9977234, 0.99766979, 0.97839815]
        values = np.concatenate([[4, 4, 4, 3, 2, 2], close, rng.uniform(-1, 0.95, size=190)])
        pairs = eigenpairs(Counting(values), k=10, tol=1e-4, rng=seed)
        missed += np.abs(pairs.eigenvalues - ends(values, 10, "LA")).max() > 8e-4
    assert missed <= 1


def test_an_outlier_behind_a_bulk():
    # A random vector sees the identity with residual 5/√n, well below the tolerance.
    values = np.ones(10**5)
    values[7] = 6.0
    pairs = eigenpairs(Counting(values), k=1, tol=0.05)
    np.testing.assert_allclose(pairs.eigenvalues, [6.0])


def test_single_precision_and_a_million_parameters():
    rng = np.random.default_rng(0)
    values = np.concatenate([10 * 0.7 ** np.arange(4), 0.1 * rng.normal(size=10**6)])
    for kind in KINDS:
        pairs = eigenpairs(Counting(values.astype(np.float32), kind), k=3)
        errors = np.abs(numbers(pairs.eigenvalues) - values[:3])
        assert pairs.converged
        assert (errors <= numbers(pairs.errors)).all()
        vectors = numbers(pairs.eigenvectors)
        assert np.abs(vectors.T @ vectors - np.eye(3)).max() < 2e-6


def test_restarts_with_a_small_basis():
    rng = np.random.default_rng(1)
    H = matrix(0.97 ** np.arange(300), rng)
    pairs = eigenpairs(H, k=6, ncv=12)
    assert pairs.method == "Lanczos"
    assert pairs.products > 36
    check(pairs, H, 6, "LA", 1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_too_small_to_search_is_solved_in_full(seed):
    """Of 150 values 0.01 − 10u³ a search that is cut short took some below for the largest."""
    rng = np.random.default_rng(seed)
    values = 0.01 - 10 * rng.uniform(size=150) ** 3
    turn = np.linalg.qr(rng.normal(size=(150, 150)))[0]
    matrix = turn * values @ turn.T
    pairs = eigenpairs((matrix + matrix.T) / 2, k=3)
    wanted = np.sort(values)[::-1][:3]
    assert np.abs(pairs.eigenvalues - wanted).max() <= 2e-6 * np.abs(values).max()


@pytest.mark.parametrize("n", [100, 500, 2000])
def test_no_tolerance_is_as_far_as_rounding_goes(n):
    A = np.random.default_rng(n).normal(size=(n, n))
    pairs = eigenpairs((A + A.T) / 2, k=3, tol=0)
    assert pairs.converged
    assert "as small as rounding lets them be" in pairs.message
