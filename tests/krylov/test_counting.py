"""Bounds on the share of eigenvalues contain the truth, for dense random eigenvectors."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from tests.krylov.market import ORDER, SPECTRA, matrix


def truth(values, x):
    """Return the share of values that are at most x, counted one by one."""
    return np.asarray([np.mean(values <= point) for point in np.ravel(x)])


def places(values, rng):
    """Return points between eigenvalues, on either side of each, and beyond them."""
    middles = (np.sort(values)[1:] + np.sort(values)[:-1]) / 2
    gap = 1e-6 * np.abs(values).max() + 1e-300
    low, high = values.min() - gap, values.max() + gap
    near = np.concatenate([values - gap, values + gap, middles, rng.uniform(low, high, 50)])
    return np.concatenate([near, [low, high, -np.inf, np.inf]])


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize(("probes", "steps"), [(1, 5), (4, 20), (16, 64)])
def test_the_truth_is_inside_everywhere(spectrum, probes, steps):
    rng = np.random.default_rng(sum(map(ord, spectrum)))
    for seed in range(2):
        values = SPECTRA[spectrum](ORDER, rng)
        density = hs.density(matrix(values, rng), probes, steps, seed)
        x = places(values, rng)
        lower, upper = density.share(x)
        share = truth(values, x)
        assert (lower <= share + 1e-12).all()
        assert (share <= upper + 1e-12).all()
        assert (np.diff(lower[np.argsort(x)]) >= 0).all()
        assert (lower[-1], upper[-1], lower[-2], upper[-2]) == (1.0, 1.0, 0.0, 0.0)
        wider, narrower = density.share(x, level=0.999), density.share(x, level=0.5)
        assert (wider[0] <= lower).all()
        assert (lower <= narrower[0]).all()
        assert (narrower[1] <= upper).all()
        assert (upper <= wider[1]).all()


@given(data=st.data())
def test_counts_of_any_spectrum_at_any_scale(data):
    n = data.draw(st.integers(1, 60))
    distinct = data.draw(st.lists(st.integers(-50, 50), min_size=1, max_size=n))
    scale = 10.0 ** data.draw(st.integers(-100, 100))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = np.asarray(distinct, dtype=float)[rng.integers(len(distinct), size=n)]
    probes, steps = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 70))
    density = hs.density(scale * matrix(values, rng), probes, steps, rng)
    # Halves are no eigenvalues.
    a, b = sorted(data.draw(st.tuples(*[st.integers(-52, 52)] * 2).filter(lambda t: t[0] != t[1])))
    fewest, most = density.count(scale * (a + 0.5), scale * (b + 0.5), level=0.9999)
    assert fewest <= ((a < values) & (values <= b)).sum() <= most
    assert isinstance(fewest, int)
    assert isinstance(most, int)


def test_bounds_are_narrow_for_large_operators():
    """A single vector tells the share of a large operator to a few percent."""
    values = np.concatenate([np.full(70_000, -1.0), np.full(30_000, 2.0)])

    class Diagonal:
        shape, dtype = (len(values),) * 2, values.dtype

        def __matmul__(self, other):
            return values.reshape(-1, *[1] * (other.ndim - 1)) * other

    density = hs.density(Diagonal(), probes=1, steps=10)
    lower, upper = density.share(0.0)
    assert lower <= 0.7 <= upper < lower + 0.03
    fewest, most = density.count(0.0, np.inf)
    assert fewest <= 30_000 <= most < fewest + 3000


def test_known_eigenvalues_are_counted_exactly():
    spectrum = hs.ScalarLinear(np.ones(40), np.arange(40.0)).hessian([1.0], [2.0]).spectrum()
    density, values = spectrum.density, np.asarray(spectrum.eigenvalues)
    middle = (np.unique(values)[:-1] + np.unique(values)[1:]) / 2
    for x in middle[np.diff(np.unique(values)) > 1e-6]:
        below = int((values <= x).sum())
        assert density.count(-np.inf, x) == (below, below)
        assert density.share(x) == (pytest.approx(below / 80), pytest.approx(below / 80))


def test_shares_of_known_eigenvalues_are_rounded_outward():
    rng = np.random.default_rng(0)
    net = hs.DeepLinear([rng.normal(size=(3, 20)), rng.normal(size=(2, 3))])
    spectrum = net.hessian(rng.normal(size=(30, 20)), rng.normal(size=(30, 2))).spectrum()
    values, distinct = np.asarray(spectrum.eigenvalues), np.unique(spectrum.eigenvalues)
    middles = (distinct[:-1] + distinct[1:])[np.diff(distinct) > 1e-6] / 2
    assert len(middles) > 40
    for x in middles:
        lower, upper = spectrum.density.share(x)
        assert Fraction(lower) <= Fraction(int((values <= x).sum()), len(values)) <= Fraction(upper)
        assert upper - lower < 1e-12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda d: d.share(np.nan), "x contains NaN"),
        (lambda d: d.share("low"), "x must be a number or an array of numbers, got str"),
        (lambda d: d.share(0.0, level=1), "level must be a number between 0 and 1, got 1"),
        (lambda d: d.share(0.0, level="high"), "level must be a number between 0 and 1, got str"),
        (lambda d: d.count(1.0, 1.0), "a must be less than b"),
        (lambda d: d.count(np.nan, 1.0), "a must be a number, got nan"),
        (lambda d: d.count(0.0, "1"), "b must be a number, got str"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        arguments(hs.density(np.eye(9)))


def test_a_level_may_be_numpys():
    density = hs.density(np.diag(np.arange(30.0)), probes=2, steps=4)
    assert density.share(3.3, level=np.asarray(0.5)) == density.share(3.3, level=0.5)


def test_a_second_number_is_no_level():
    with pytest.raises(TypeError, match="positional"):
        hs.density(np.eye(9)).share(0.1, 0.9)


@pytest.mark.slow
@pytest.mark.hunt
def test_containment_over_the_market():
    """The bounds at 95 % fail for fewer than 5 % of the matrices, all points of each together."""
    rng = np.random.default_rng()
    failed, count = 0, 40
    for spectrum in SPECTRA.values():
        for _ in range(count):
            values = spectrum(ORDER, rng)
            density = hs.density(matrix(values, rng), int(rng.integers(1, 9)), 30, rng)
            x = places(values, rng)
            (lower, upper), share = density.share(x), truth(values, x)
            failed += bool((lower > share + 1e-12).any() or (share > upper + 1e-12).any())
    assert failed <= 0.05 * count * len(SPECTRA)
