"""The picture of a density: its lines, colours, legend and limits."""

import numpy as np
import pytest

import hessence as hs
from hessence.krylov.density_result import known_density
from hessence.plotting.axes import COLOURS, new_figure


@pytest.fixture
def ax():
    _, (ax,) = new_figure()
    return ax


@pytest.fixture(scope="module")
def two():
    """Return densities of matrices of very different scale and size."""
    large = np.diag(np.concatenate([[50.0, 40.0], np.linspace(-10, 10, 198)]))
    return hs.density(np.diag(np.linspace(0, 1, 100)), steps=30), hs.density(large, steps=30)


def words(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_density_shows_values_band_and_eigenvalues(ax):
    H = np.diag(np.concatenate([[5.0, 4.0], np.linspace(-1, 1, 198)]))
    density = hs.density(H, probes=4, steps=30)
    density.plot(ax, eigenvalues=np.asarray([5.0, 4.0]))
    line, marks = ax.lines
    np.testing.assert_array_equal(line.get_xdata(), density.grid)
    high = density.values > 0.01
    np.testing.assert_array_equal(line.get_ydata()[high], density.values[high])
    np.testing.assert_array_equal(marks.get_xdata(), [5.0, 4.0])
    assert ax.get_yscale() == "log"
    low, top = ax.get_ylim()
    # One eigenvalue alone is to be seen, and so is the top of the band.
    assert low < 1 / (200 * density.width * np.sqrt(2 * np.pi))
    assert top > (density.values + density.band).max()
    (band,) = ax.collections
    vertices = band.get_paths()[0].vertices
    assert vertices[:, 1].max() == pytest.approx((density.values + density.band).max())


def test_two_densities_can_be_told_apart(ax, two):
    first, second = two
    first.plot(ax, label="before")
    second.plot(ax, label="after")
    assert sorted(words(ax)) == ["after", "after, 95 % band", "before", "before, 95 % band"]
    assert [line.get_color() for line in ax.lines] == list(COLOURS[:2])
    bands = [tuple(band.get_facecolor()[0][:3]) for band in ax.collections]
    assert len(set(bands)) == 2


def test_without_labels_the_band_is_named_once(ax, two):
    for density in two:
        density.plot(ax)
    assert words(ax).count("95 % band") == 1
    assert len(words(ax)) == 3


def test_two_densities_are_both_seen_whole(two):
    for densities in (two, two[::-1]):
        _, (ax,) = new_figure()
        for density in densities:
            density.plot(ax)
        low, top = ax.get_ylim()
        assert all(low < 0.1 / (d.size * d.width) for d in two)
        assert all(top > (d.values + d.band).max() for d in two)
        left, right = ax.get_xlim()
        assert all(left <= d.grid[0] < d.grid[-1] <= right for d in two)


def test_a_colour_can_be_given_and_is_not_taken_again(ax, two):
    two[0].plot(ax, color=COLOURS[0], eigenvalues=[1.0])
    two[1].plot(ax, eigenvalues=[50.0])
    two[1].plot(ax, color="black")
    colours = [line.get_color() for line in ax.lines]
    assert colours == [*COLOURS[:4], "black"]
    marks = [line.get_ydata()[0] for line in ax.lines if line.get_marker() == "|"]
    assert marks[0] < marks[1]


def test_colours_start_again_where_all_are_taken(ax, two):
    for _ in range(len(COLOURS) + 1):
        two[0].plot(ax)
    assert [line.get_color() for line in ax.lines] == [*COLOURS, COLOURS[0]]


@pytest.mark.parametrize("count", [5, 5000, 50_000])
def test_eigenvalues_that_are_known_have_no_band(ax, count):
    known_density(np.random.default_rng(0).normal(size=count)).plot(ax)
    assert len(words(ax)) == 1
    assert not ax.collections


def test_many_marks_do_not_merge_into_a_bar(ax, two):
    crowd = np.linspace(0, 1, 2000)
    two[1].plot(ax, eigenvalues=[*crowd, 50.0])
    _, many, alone = ax.lines
    np.testing.assert_array_equal(many.get_xdata(), crowd)
    np.testing.assert_array_equal(alone.get_xdata(), [50.0])
    assert many.get_alpha() < 0.5
    assert alone.get_alpha() is None
    assert many.get_markeredgewidth() < alone.get_markeredgewidth()
    assert words(ax)[-1] == "eigenvalues"
    assert ax.get_legend().legend_handles[-1].get_alpha() is None


@pytest.mark.parametrize("values", [[], [2.0], [3.0] * 100, np.linspace(0, 1, 100)])
def test_any_number_of_eigenvalues_is_marked(ax, two, values):
    two[0].plot(ax, eigenvalues=values)
    two[0].plot(ax, eigenvalues=values)
    marks = [line for line in ax.lines if line.get_marker() == "|"]
    shown = np.concatenate([line.get_xdata() for line in marks])
    np.testing.assert_array_equal(shown[np.isfinite(shown)], [*values, *values])
    assert len({float(line.get_ydata()[0]) for line in marks}) == 2
