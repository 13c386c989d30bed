"""The density against known spectra: the band covers, the ends hold, nothing appears twice."""

from __future__ import annotations

import json

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.linalg import aslinearoperator

import hessence as hs
from tests.krylov.market import KINDS, ORDER, SPECTRA, Counting, matrix
from tests.strategies import at_least


def smoothed(values, points, width):
    """Return the density of known eigenvalues, smoothed."""
    distance = (np.asarray(points)[:, None] - values) / width
    return np.exp(-(distance**2) / 2).mean(axis=1) / width / np.sqrt(2 * np.pi)


def within(density, values, factor=1.0):
    """Return the share of points within the band, where there is anything to see."""
    truth = smoothed(values, density.grid, density.width)
    seen = truth > 1e-6 * truth.max()
    off = np.abs(density.values - truth)[seen]
    return float((off <= factor * density.band[seen] + 1e-12 * truth.max()).mean())


def check_ends(density, values):
    """Neither end is outside of the spectrum, and each has an eigenvalue within its error."""
    slack = 100 * np.finfo(np.float64).eps * np.abs(values).max()
    (low, high), (low_error, high_error) = density.ends, density.ends_errors
    assert np.abs(values - low).min() <= low_error + slack
    assert np.abs(values - high).min() <= high_error + slack
    assert values.min() - low_error - slack <= low <= high <= values.max() + high_error + slack


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_band_and_ends_for_every_kind(spectrum, dtype, kind):
    rng = np.random.default_rng(sum(map(ord, spectrum)))
    H = matrix(SPECTRA[spectrum](ORDER, rng), rng).astype(dtype)
    exact = np.linalg.eigvalsh(H.astype(np.float64))
    density = hs.density(KINDS[kind](H), probes=8, steps=40)
    assert within(density, exact, factor=2.0) > 0.9
    check_ends(density, exact)
    for array in (density.grid, density.values, density.band, density.nodes, density.weights):
        assert isinstance(array, np.ndarray)
        assert array.dtype == np.float64
    assert density.nodes.shape == density.weights.shape == (8, 40)
    assert np.trapezoid(density.values, density.grid) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(density.weights.sum(axis=1), 1, rtol=1e-12)
    assert density.grid[0] < exact.min() <= exact.max() < density.grid[-1]


@pytest.mark.parametrize(("probes", "steps"), [(16, 40), (3, 40), (1, 40), (12, 12)])
def test_the_band_covers_95_percent_and_is_no_wider_than_it_must_be(probes, steps):
    # Over all spectra and seeds. The spread of the probes alone would cover 86 to 93 %.
    covered, halved, eigenvalues = [], [], 300
    for name, spectrum in SPECTRA.items():
        values = spectrum(eigenvalues, np.random.default_rng(1))
        if name in ("zero", "identity", "tiny"):
            continue  # nothing is left to chance, or it has been seen
        grid = np.linspace(values.min(), values.max(), 97)
        for seed in range(6 if probes > 1 else 16):
            density = hs.density(Counting(values), probes, steps, rng=seed, grid=grid)
            covered.append(within(density, values))
            halved.append(within(density, values, factor=0.5))
    assert np.mean(covered) > 0.945
    if (probes, steps) == (16, 40):
        assert np.mean(halved) < 0.85


@pytest.mark.parametrize("spectrum", ["even", "negative_trace", "outliers_on_a_bulk"])
def test_a_width_too_fine_for_the_steps_widens_the_band(spectrum):
    values = SPECTRA[spectrum](3000, np.random.default_rng(1))
    extent = values.max() - values.min()
    fine = hs.density(Counting(values), probes=8, steps=24, width=extent / 300)
    assert within(fine, values) > 0.95
    assert "raise steps or width" in fine.message
    assert fine.message in repr(fine)
    usual = hs.density(Counting(values), probes=8, steps=24)
    assert within(usual, values) > 0.93
    assert "raise" not in usual.message
    assert usual.width > fine.width


def test_no_ghosts_after_200_steps():
    isolated = np.array([9.0, 7.0, 5.0, -4.0])
    bulk = np.random.default_rng(0).uniform(-1, 1, size=1996)
    for kind in KINDS:
        for dtype in ("float32", "float64"):
            operator = Counting(np.concatenate([isolated, bulk]).astype(dtype), kind)
            density = hs.density(operator, probes=3, steps=200)
            near = np.abs(density.nodes[:, :, None] - isolated) < 1e-3
            count = (near & (density.weights > 1e-10)[:, :, None]).sum(axis=1)
            np.testing.assert_array_equal(count, np.ones((3, 4)))
            assert density.products == 600


@pytest.mark.parametrize("n", [1, 2, 3, 30])
@pytest.mark.parametrize("steps", [30, 64])
def test_all_steps_give_every_moment_of_every_probe(n, steps):
    # For one probe v, the rule is the spectral measure itself: ∑ ω f(θ) = vᵀ f(H) v.
    rng = np.random.default_rng(n)
    H = matrix(rng.normal(size=n), rng)
    density = hs.density(H, probes=4, steps=steps)
    values, vectors = np.linalg.eigh(H)
    assert density.nodes.shape == (4, n)
    for nodes, weights in zip(density.nodes, density.weights, strict=True):
        assert weights.sum() == pytest.approx(1)
        np.testing.assert_allclose(nodes, values, atol=1e-9)
    if n == 30:
        from hessence.krylov._operand import Probes

        probe = Probes(np.random.default_rng(0), 4, n, np.zeros(1)).draw(2)
        np.testing.assert_allclose(density.weights[2], (vectors.T @ probe) ** 2, atol=1e-10)


@pytest.mark.parametrize(
    ("spectrum", "steps"), [("zero", 1), ("identity", 1), ("low_rank", 4), ("all_degenerate", 4)]
)
def test_a_probe_ends_when_it_has_found_everything(spectrum, steps):
    values = SPECTRA[spectrum](400, np.random.default_rng(0))
    operator = Counting(values)
    density = hs.density(operator, probes=5, steps=50)
    assert density.products == operator.products <= 5 * (steps + 1)
    distinct = np.unique(values)
    for nodes, weights in zip(density.nodes, density.weights, strict=True):
        for value in distinct:
            assert (np.abs(nodes - value)[weights > 1e-12] < 1e-9).sum() == 1
        assert (np.abs(nodes[:, None] - distinct).min(axis=1) < 1e-9).all()


def test_moments_have_honest_errors():
    values = SPECTRA["negative_trace"](500, np.random.default_rng(0))
    deviations = {"mean": [], "exp": []}
    for seed in range(40):
        density = hs.density(Counting(values), probes=4, steps=20, rng=seed, grid=[0.0])
        deviations["mean"].append((density.mean - values.mean()) / density.mean_stderr)
        value, error = density.average(np.exp)
        deviations["exp"].append((value - np.exp(values).mean()) / error)
    for z in deviations.values():
        assert 0.7 < np.std(z) < 1.3
        assert np.abs(z).max() < 4


def test_the_same_seed_gives_the_same_result_and_memory_does_not_matter():
    values = SPECTRA["decaying"](500, np.random.default_rng(0))
    first, again = (hs.density(Counting(values), rng=3) for _ in range(2))
    np.testing.assert_array_equal(first.values, again.values)
    np.testing.assert_array_equal(first.nodes, again.nodes)
    one_by_one = hs.density(Counting(values), rng=3, memory=1)
    in_pairs = hs.density(Counting(values), rng=3, memory=3 * 70 * 500 * 8 - 1)
    for other in (one_by_one, in_pairs):
        np.testing.assert_allclose(other.values, first.values, rtol=1e-6, atol=1e-12)
        assert other.products == first.products
    generator = np.random.default_rng(3)
    np.testing.assert_array_equal(hs.density(Counting(values), rng=generator).nodes, first.nodes)
    assert (hs.density(Counting(values), rng=generator).nodes != first.nodes).any()


def test_single_and_double_precision_see_the_same_probes():
    values = SPECTRA["outliers_on_a_bulk"](500, np.random.default_rng(0))
    densities = [
        hs.density(Counting(values.astype(dtype), kind), width=0.05, grid=np.linspace(-2, 10, 300))
        for dtype in ("float32", "float64")
        for kind in KINDS
    ]
    for density in densities[:-1]:
        np.testing.assert_allclose(density.values, densities[-1].values, atol=1e-3)


def test_foreign_operators():
    rng = np.random.default_rng(0)
    H = matrix(SPECTRA["degenerate"](ORDER, rng), rng)
    expected = hs.density(H, probes=2, steps=10).values
    net = hs.ScalarLinear(rng.normal(size=30), rng.normal(size=30))
    hessian = net.hessian(rng.normal(size=9), rng.normal(size=9))
    assert within(hs.density(hessian), hessian.spectrum().eigenvalues) > 0.9
    for operator in (aslinearoperator(H), torch.asarray(H, requires_grad=True)):
        np.testing.assert_allclose(
            hs.density(operator, probes=2, steps=10).values, expected, rtol=1e-7, atol=1e-10
        )


def test_an_operator_of_the_strict_array_standard():
    rng = np.random.default_rng(0)
    H = matrix(SPECTRA["degenerate"](ORDER, rng), rng)
    strict = array_api_strict.asarray(H)
    expected, found = hs.density(H, probes=2, steps=10), hs.density(strict, probes=2, steps=10)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-7, atol=1e-10)
    expected, found = (hs.trace(x, 40).value for x in (H, strict))
    assert found == pytest.approx(expected, rel=1e-9)


# Theirs, on import and in products.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_operators_of_curvlinops():
    curvlinops = pytest.importorskip("curvlinops")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2))
    data = [(torch.randn(20, 3), torch.randn(20, 2))]
    operator = curvlinops.HessianLinearOperator(
        model, torch.nn.MSELoss(), list(model.parameters()), data
    )
    exact = np.linalg.eigvalsh((operator @ torch.eye(56)).detach().numpy().astype(np.float64))
    density = hs.density(operator)
    # The points of one density go together, so that fewer of them than 95 % may be within.
    assert within(density, exact) > 0.8
    check_ends(density, exact)
    estimate = hs.trace(operator, 40)
    assert abs(estimate.value - exact.sum()) < 4 * estimate.stderr


def test_other_points_and_widths():
    values = SPECTRA["outliers_on_a_bulk"](300, np.random.default_rng(0))
    density = hs.density(Counting(values))
    here, error = density.at(density.grid)
    np.testing.assert_array_equal(here, density.values)
    np.testing.assert_array_equal(error, density.band)
    points = np.linspace(-2, 10, 50).reshape(2, 25)
    there, error = density.at(points, width=0.5)
    truth = smoothed(values, points.ravel(), 0.5).reshape(2, 25)
    assert (np.abs(there - truth) <= 2 * error).all()


def test_survives_a_file():
    density = hs.density(Counting(np.linspace(-1, 1, 300)), probes=2, steps=9)
    again = hs.Density.from_dict(json.loads(json.dumps(density.to_dict(), allow_nan=False)))
    assert repr(again) == repr(density)
    np.testing.assert_array_equal(again.at([0.1], 0.3), density.at([0.1], 0.3))


def test_an_operator_that_is_not_symmetric_is_remarked():
    class Skewed(Counting):
        def __matmul__(self, other):
            return super().__matmul__(other) + 0.3 * np.roll(other, 1, axis=0)

    density = hs.density(Skewed(np.linspace(0, 1, 200)), probes=2, steps=30)
    assert "not symmetric" in density.message
    assert "! ⟨u, Hv⟩" in repr(density)


@at_least(40)
@given(data=st.data())
def test_any_spectrum_at_any_scale(data):
    n = data.draw(st.integers(1, 40))
    distinct = data.draw(st.lists(st.floats(-1, 1, width=16), min_size=1, max_size=n))
    scale = 10.0 ** data.draw(st.integers(-150, 150))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    values = scale * np.asarray(distinct)[rng.integers(len(distinct), size=n)]
    density = hs.density(Counting(values), probes=2, steps=data.draw(st.integers(1, 50)), rng=rng)
    assert np.isfinite(density.values).all()
    assert np.isfinite(density.band).all()
    assert np.trapezoid(density.values, density.grid) == pytest.approx(1, abs=1e-5)
    check_ends(density, values)
    # Chance can put the mean of two probes anywhere within the spectrum, and not beyond it.
    assert values.min() - 1e-12 * scale <= density.mean <= values.max() + 1e-12 * scale


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"probes": 0}, ValueError, "probes must be an integer of at least 1, got 0"),
        ({"probes": 2.5}, ValueError, "probes must be an integer"),
        ({"steps": 0}, ValueError, "steps must be an integer of at least 1, got 0"),
        ({"steps": True}, ValueError, "steps must be an integer"),
        ({"rng": "seed"}, TypeError, "rng must be an integer or a numpy Generator"),
        ({"width": 0.0}, ValueError, "width must be a positive number, got 0.0"),
        ({"width": float("nan")}, ValueError, "width must be a positive"),
        ({"width": "wide"}, TypeError, "width must be a positive number, got str"),
        ({"grid": [[0.0]]}, ValueError, "grid must have one dimension"),
        ({"grid": [np.nan]}, ValueError, "grid contains NaN"),
        ({"memory": -1}, ValueError, "memory must be a number of bytes that is not negative"),
        ({"memory": "1 GB"}, TypeError, "memory must be a number of bytes"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        hs.density(np.eye(5), **arguments)


@pytest.mark.parametrize(
    ("operator", "error", "message"),
    [
        (np.ones((3, 4)), ValueError, "H must be square"),
        (np.stack([np.eye(3)] * 2), ValueError, r"H must be one matrix.*\(2, 3, 3\)"),
        (np.full((3, 3), np.nan), ValueError, "H contains NaN"),
        (np.triu(np.ones((3, 3))), ValueError, "H must be symmetric"),
        (Counting(np.full(9, np.nan)), ValueError, "H @ v contains NaN or infinity"),
        (7, TypeError, "H must be a matrix or an operator"),
    ],
)
def test_bad_operators(operator, error, message):
    for function in (hs.density, hs.trace):
        with pytest.raises(error, match=message):
            function(operator)
