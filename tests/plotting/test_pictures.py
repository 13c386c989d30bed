"""Pictures, by what they show: the data of their lines."""

import itertools

import numpy as np
import pytest

import hessence as hs
from hessence.models.history import History, Measurement
from hessence.models.layers import LayerSpectra
from hessence.plotting.axes import new_figure
from hessence.plotting.spectra import draw_spectrum, draw_sweep
from hessence.plotting.training import draw_history, draw_trajectory


@pytest.fixture
def ax():
    _, (ax,) = new_figure()
    return ax


@pytest.fixture
def plt():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


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
    points = np.concatenate([ln.get_xydata() for ln in ax.lines if ln.get_marker() in ("o", "s")])
    ranks, values = points[np.argsort(points[:, 0])].T
    np.testing.assert_array_equal(ranks, np.arange(1, 21))
    np.testing.assert_array_equal(values, spectrum.eigenvalues)
    words = {text.get_text() for text in ax.get_legend().get_texts()}
    assert words == {space.label.replace("/", ", ") for space in spectrum.spaces}


def test_many_labels_are_told_by_their_heads(ax):
    rng = np.random.default_rng(2)
    net = hs.TwoLayerLinear(rng.normal(size=(40, 12)), rng.normal(size=(12, 40)))
    spectrum = net.hessian(*rng.normal(size=(2, 50, 12))).spectrum()
    assert len({space.label for space in spectrum.spaces}) > 8
    draw_spectrum(spectrum, ax)
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert sorted(words) == sorted({space.label.partition("/")[0] for space in spectrum.spaces})


def test_spectrum_of_a_wide_network_costs_few_points(ax, data):
    rng = np.random.default_rng(1)
    spectrum = hs.ScalarLinear(*rng.normal(size=(2, 10**6))).hessian(*data).spectrum()
    draw_spectrum(spectrum, ax)
    assert shown(ax).size < 20
    upper, lower = (float(space.value) for space in spectrum["bulk"])
    bulk = next(line for line in ax.lines if line.get_label() == "bulk")
    np.testing.assert_array_equal(
        bulk.get_xydata(),
        [[2, upper], [10**6, upper], [np.nan, upper],
         [10**6 + 2, lower], [2 * 10**6, lower], [np.nan, lower]],
    )  # fmt: skip


def test_thousands_of_eigenvalues_make_one_line_for_each_label(ax):
    rng = np.random.default_rng(3)
    net = hs.TwoLayerLinear(rng.normal(size=(30, 30)), rng.normal(size=(30, 30)))
    spectrum = net.hessian(*rng.normal(size=(2, 40, 30))).spectrum()
    assert len(spectrum.spaces) > 1000
    draw_spectrum(spectrum, ax)
    drawn = [line for line in ax.lines if len(line.get_xdata()) and line.get_marker() != "None"]
    assert len(drawn) == len({space.label.partition("/")[0] for space in spectrum.spaces})
    assert sum(len(line.get_xdata()) for line in drawn) == len(spectrum)


def test_trajectory_shows_outliers_and_phases(ax):
    rng = np.random.default_rng(2)
    x = rng.normal(size=30)
    net = hs.ScalarLinear(*(0.2 * rng.normal(size=(2, 5))))
    t = hs.gradient_descent(net, x, x, lr=0.1, steps=60)
    draw_trajectory(t, ax)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), t.outliers[:, 0])
    assert {text.get_text() for text in ax.texts} <= set(t.phase)
    assert ax.texts


def test_every_phase_is_named(ax):
    x = np.linspace(-1, 1, 20)
    t = hs.gradient_descent(hs.ScalarLinear([0.4, 0.1], [-0.2, 0.3]), x, x, lr=0.3, steps=400)
    assert t.phase.count("early") < 400 / 12  # too short for a word inside
    draw_trajectory(t, ax)
    assert [text.get_text() for text in ax.texts] == ["late"]
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert words.count("early phase") == 1
    assert "late phase" not in words


def test_sweep_draws_one_line_for_each_eigenspace(ax, data):
    rng = np.random.default_rng(3)
    net = hs.ScalarLinear(*rng.normal(size=(2, 5)))
    scales = np.asarray([1.0, 2.0, 3.0])
    draw_sweep(scales, [net.hessian(s * data[0], data[1]).spectrum() for s in scales], ax)
    assert sum(len(line.get_xdata()) == 3 for line in ax.lines) == 4


def test_the_bulk_is_seen_beside_much_larger_outliers(ax, data):
    x, noise = data
    net = hs.ScalarLinear(np.full(1000, 0.1), np.full(1000, 0.1))
    scales = np.asarray([1.0, 2.0])
    draw_sweep(
        scales, [net.hessian(s * x, net(s * x) + 0.1 * noise).spectrum() for s in scales], ax
    )
    lines = {line.get_label(): line.get_ydata()[0] for line in ax.lines}
    assert abs(lines["outlier"]) > 100 * abs(lines["bulk"]) > 0
    ax.figure.canvas.draw()
    places = ax.transData.transform([(1.0, lines["bulk"]), (1.0, 0.0)])[:, 1]
    assert abs(np.diff(places)[0]) > ax.bbox.height / 20


def history(lr, ggn=True, n=4):
    """Return a history of made-up numbers, two eigenvalues at each of n steps."""
    records = [
        Measurement(
            step=10 * i,
            loss=1.0,
            eigenvalues=[4.0 + i, 2.0],
            errors=[0.0, 0.0],
            ggn_eigenvalues=[3.5 + i, 1.5] if ggn else [np.nan, np.nan],
            ggn_errors=[0.0, 0.0],
            trace=np.nan,
            trace_stderr=np.nan,
            lr=lr[i] if isinstance(lr, list) else lr,
            products=2,
            ggn_products=2,
            trace_products=0,
            converged=True,
            checked=False,
        )
        for i in range(n)
    ]
    return History(100, 2, tuple(records))


def test_history_shows_both_matrices_and_the_threshold(ax):
    draw_history(history(lr=0.25), ax)
    lines = {line.get_label(): line for line in ax.lines}
    np.testing.assert_array_equal(lines["sharpness"].get_xdata(), [0, 10, 20, 30])
    np.testing.assert_array_equal(lines["sharpness"].get_ydata(), [4, 5, 6, 7])
    np.testing.assert_array_equal(lines["the next"].get_ydata(), [2, 2, 2, 2])
    ggn = lines["Gauss–Newton: the 2 largest"]
    np.testing.assert_array_equal(ggn.get_ydata(), [3.5, 4.5, 5.5, 6.5])
    assert ggn.get_linestyle() == "--"
    np.testing.assert_array_equal(lines["2 / lr"].get_ydata(), [8, 8])
    assert sum(len(line.get_xdata()) == 4 for line in ax.lines) == 4


def test_history_follows_a_schedule(ax):
    draw_history(history(lr=[0.5, 0.4, 0.25, np.nan]), ax)
    lines = {line.get_label(): line for line in ax.lines}
    np.testing.assert_array_equal(lines["2 / lr"].get_ydata(), [4, 5, 8, np.nan])


def test_a_rate_that_falls_to_zero_leaves_the_eigenvalues_in_sight(plt):
    found = history(lr=[0.5, 0.4, 1e-3, 1e-9])
    top = found.eigenvalues.max()
    low, high = found.plot().get_ylim()
    assert low < found.eigenvalues.min()
    assert top < high < 5 * top


def test_history_without_learning_rate_or_gauss_newton_shows_the_rest(ax):
    draw_history(history(lr=np.nan, ggn=False), ax)
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert sorted(words) == ["sharpness", "the next"]


def test_history_names_a_threshold_out_of_sight(ax):
    draw_history(history(lr=0.001), ax)
    assert "2 / lr = 2e+03, far above" in [t.get_text() for t in ax.get_legend().get_texts()]
    assert ax.get_ylim()[1] < 10


@pytest.mark.parametrize("n", [0, 1])
def test_history_may_be_short(ax, n):
    draw_history(history(lr=0.1, n=n), ax)
    assert all(line.get_marker() == "o" for line in ax.lines if len(line.get_xdata()) == n == 1)


@pytest.mark.parametrize(("which", "scale"), [("LA", "log"), ("BE", "symlog"), ("SA", "symlog")])
def test_layers_have_a_row_each(ax, which, scale):
    matrices = {"a": [3.0, 2.0, -1.0], "b.weight": [0.25, 0.125, -2.0]}
    found = {name: hs.eigenpairs(np.diag(m), k=2, which=which) for name, m in matrices.items()}
    LayerSpectra(found).plot(ax)
    for place, (line, pairs) in enumerate(zip(ax.lines, found.values(), strict=False)):
        assert list(line.get_ydata()) == [place, place]
        np.testing.assert_array_equal(line.get_xdata(), pairs.eigenvalues)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b.weight"]
    assert ax.get_xscale() == scale


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_labels_of_eigenvalues_on_both_sides_of_one_power_do_not_touch(ax, scale):
    matrices = {"a": np.diag([0.32, 0.27]), "b": np.diag([4.0, 3.2])}
    found = {name: hs.eigenpairs(scale * matrix, k=2) for name, matrix in matrices.items()}
    LayerSpectra(found).plot(ax)
    ax.figure.canvas.draw()
    low, high = ax.get_xlim()
    labels = [t for t in ax.get_xticklabels(which="both") if t.get_text()]
    boxes = [t.get_window_extent() for t in labels if low <= t.get_position()[0] <= high]
    boxes.sort(key=lambda box: box.x0)
    assert len(boxes) >= 3
    assert all(left.x1 + 10 < right.x0 for left, right in itertools.pairwise(boxes))


def test_layers_of_one_scale_are_drawn_on_a_linear_one(ax):
    LayerSpectra({"a": hs.eigenpairs(np.diag([3.0, 2.0, -1.0]), k=2, which="BE")}).plot(ax)
    assert ax.get_xscale() == "linear"


def test_small_eigenvalues_of_both_signs_are_seen_beside_large_ones(ax):
    matrices = {"a": [1000.0, 900.0, -2.0], "b": [0.5, 0.25, -0.5]}
    found = {name: hs.eigenpairs(np.diag(m), k=2, which="BE") for name, m in matrices.items()}
    LayerSpectra(found).plot(ax)
    ax.figure.canvas.draw()
    places = ax.transData.transform([(v, 0) for v in (-2.0, -0.5, 0.0, 0.5, 1000.0)])[:, 0]
    assert np.diff(places).min() > ax.bbox.width / 20


def test_batches_are_refused_in_words(ax, data):
    rng = np.random.default_rng(4)
    net = hs.ScalarLinear(*rng.normal(size=(2, 3, 5)))
    with pytest.raises(ValueError, match="one network"):
        draw_spectrum(net.hessian(*data).spectrum(), ax)
    with pytest.raises(ValueError, match="one network"):
        draw_trajectory(hs.gradient_descent(net, *data, lr=0.01, steps=2), ax)


def test_methods_make_their_own_axes(plt, data):
    net = hs.ScalarLinear([1.0, 2.0], [0.5, 0.25])
    assert net.hessian(*data).spectrum().plot().get_ylabel() == "eigenvalue"
    assert hs.gradient_descent(net, *data, lr=0.1, steps=3).plot().get_xlabel() == "step"


NAMES = ("spectrum", "trajectory", "sharpness", "history", "layers", "density", "sweep")


@pytest.fixture(scope="module")
def pictures():
    """Return the way to every picture that a result draws of itself, by name."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=20)
    net = hs.ScalarReLU(*rng.normal(size=(2, 6)))
    attention = hs.SelfAttention(1.0, *rng.normal(size=(2, 3)))
    pairs = {"a": hs.eigenpairs(np.diag([2.0, 1.0, -1.0]), k=2)}
    return {
        "spectrum": net.hessian(x, np.abs(x)).spectrum().plot,
        "trajectory": hs.gradient_descent(net, x, np.abs(x), lr=0.01, steps=30).plot,
        "sharpness": hs.gradient_descent(attention, x, x[::-1], lr=0.1, steps=30).plot,
        "history": history(lr=0.25).plot,
        "layers": LayerSpectra(pairs).plot,
        "density": hs.density(np.diag([2.0, 1.0, -1.0])).plot,
        "sweep": lambda ax: draw_sweep([1.0, 2.0], [net.hessian(x, x).spectrum()] * 2, ax),
    }


@pytest.mark.parametrize("name", NAMES)
def test_legends_lie_inside_the_axes_of_others(plt, pictures, name):
    figure, axes = plt.subplots(1, 2)
    ax = pictures[name](axes[0])
    figure.canvas.draw()
    legend = ax.get_legend()
    if name == "layers":
        assert legend is None
        return
    inside, outer = legend.get_window_extent(), figure.bbox
    assert outer.x0 <= inside.x0 < inside.x1 <= outer.x1
    assert outer.y0 <= inside.y0 < inside.y1 <= outer.y1


@pytest.mark.parametrize("name", NAMES)
def test_several_axes_are_refused_in_words(plt, pictures, name):
    _, axes = plt.subplots(1, 2)
    with pytest.raises(TypeError, match=r"^ax must be one matplotlib Axes, got ndarray\.$"):
        pictures[name](axes)
