"""Pictures, by what they show: the data of their lines."""

import numpy as np
import pytest

import hessence as hs
from hessence.plotting import draw_spectrum, draw_sweep, draw_trajectory, new_figure


@pytest.fixture
def ax():
    _, (ax,) = new_figure()
    return ax


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(2, 20))


def shown(ax):
    return np.concatenate([line.get_ydata() for line in ax.lines if len(line.get_xdata())])


def test_spectrum_shows_every_eigenvalue(ax, data):
    rng = np.random.default_rng(1)
    spectrum = hs.ScalarReLU(*rng.normal(size=(2, 10))).hessian(*data).spectrum()
    draw_spectrum(spectrum, ax)
    values = np.concatenate([ln.get_ydata() for ln in ax.lines if ln.get_marker() in ("o", "s")])
    np.testing.assert_array_equal(values, spectrum.eigenvalues)
    words = {text.get_text() for text in ax.get_legend().get_texts()}
    assert words == {space.label.replace("/", ", ") for space in spectrum.spaces}


def test_spectrum_of_a_wide_network_costs_few_points(ax, data):
    rng = np.random.default_rng(1)
    spectrum = hs.ScalarLinear(*rng.normal(size=(2, 10**6))).hessian(*data).spectrum()
    draw_spectrum(spectrum, ax)
    assert shown(ax).size < 20


def test_trajectory_shows_outliers_and_phases(ax):
    rng = np.random.default_rng(2)
    x = rng.normal(size=30)
    net = hs.ScalarLinear(*(0.2 * rng.normal(size=(2, 5))))
    t = hs.gradient_descent(net, x, x, lr=0.1, steps=60)
    draw_trajectory(t, ax)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), t.outliers[:, 0])
    assert {text.get_text() for text in ax.texts} <= set(t.phase)
    assert ax.texts


def test_sweep_draws_one_line_for_each_eigenspace(ax, data):
    rng = np.random.default_rng(3)
    net = hs.ScalarLinear(*rng.normal(size=(2, 5)))
    scales = np.asarray([1.0, 2.0, 3.0])
    draw_sweep(scales, [net.hessian(s * data[0], data[1]).spectrum() for s in scales], ax)
    assert sum(len(line.get_xdata()) == 3 for line in ax.lines) == 4


def test_batches_are_refused_in_words(ax, data):
    rng = np.random.default_rng(4)
    net = hs.ScalarLinear(*rng.normal(size=(2, 3, 5)))
    with pytest.raises(ValueError, match="one network"):
        draw_spectrum(net.hessian(*data).spectrum(), ax)
    with pytest.raises(ValueError, match="one network"):
        draw_trajectory(hs.gradient_descent(net, *data, lr=0.01, steps=2), ax)


def test_methods_make_their_own_axes(data):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    net = hs.ScalarLinear([1.0, 2.0], [0.5, 0.25])
    assert net.hessian(*data).spectrum().plot().get_ylabel() == "eigenvalue"
    assert hs.gradient_descent(net, *data, lr=0.1, steps=3).plot().get_xlabel() == "step"
    plt.close("all")
