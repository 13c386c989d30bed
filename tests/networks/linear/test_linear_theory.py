"""The papers' statements about linear networks, on instances made from the theory."""

import tracemalloc

import numpy as np
import pytest

import hessence as hs


def white(n, d, scale=1.0, seed=0):
    return hs.whiten(np.random.default_rng(seed).normal(size=(n, d)), scale)


def counts(spectrum):
    return {
        name: sum(s.multiplicity for s in spectrum[name]) for name in ("dominant", "mixed", "flat")
    }


@pytest.mark.parametrize(
    ("dims", "rank"), [((6, 2, 4), 2), ((5, 7, 7, 3), 3), ((4, 6, 6, 6, 5), 2), ((3, 3, 3), 1)]
)
def test_counts_of_dominant_mixed_and_flat_pairs(dims, rank):
    values = np.linspace(0.5, 1.5, rank)
    net = hs.DeepLinear.balanced(dims, values, rng=1)
    x = white(40, dims[0], scale=1.3)
    spectrum = net.hessian(x, net(x)).ggn.spectrum()
    found = counts(spectrum)
    assert found["dominant"] == rank**2
    assert found["mixed"] == rank * (dims[0] + dims[-1] - 2 * rank)
    dense = np.linalg.eigvalsh(net.hessian(x, net(x)).dense())
    assert found["flat"] == int((np.abs(dense) < 1e-12 * dense.max()).sum())
    assert spectrum.method.startswith("closed form")


def test_six_two_four_has_sixteen_eigenvalues():
    rng = np.random.default_rng(0)
    net = hs.TwoLayerLinear(rng.normal(size=(2, 6)), rng.normal(size=(4, 2)))
    x, y = rng.normal(size=(30, 6)), rng.normal(size=(30, 4))
    G = net.hessian(x, y).ggn
    assert G.spectrum().rank() == np.linalg.matrix_rank(G.dense()) == 16


@pytest.mark.parametrize("depth", [2, 3, 5, 10])
def test_equal_singular_values_give_a_gap_of_exactly_the_depth(depth):
    dims = (7, *(8,) * (depth - 1), 5)
    net = hs.DeepLinear.balanced(dims, (1.2, 1.2, 1.2), rng=depth)
    spectrum = net.hessian(x := white(30, 7), net(x)).ggn.spectrum()
    dominant = np.asarray([s.value for s in spectrum["dominant"]])
    mixed = np.asarray([s.value for s in spectrum["mixed"]])
    np.testing.assert_allclose(np.outer(dominant, 1 / mixed), depth, rtol=1e-12)


def test_two_layers_white_data_add_squared_singular_values():
    rng = np.random.default_rng(2)
    W1, W2 = rng.normal(size=(4, 3)), rng.normal(size=(2, 4))
    x = white(20, 3, scale=0.7)
    G = hs.TwoLayerLinear(W1, W2).hessian(x, rng.normal(size=(20, 2))).ggn
    dense = np.sort(np.linalg.eigvalsh(G.dense()))[::-1]
    np.testing.assert_allclose(G.spectrum().eigenvalues, dense, atol=1e-12 * dense[0])
    top = np.linalg.norm(W1, 2) ** 2 + np.linalg.norm(W2, 2) ** 2
    assert float(G.spectrum().sharpness) == pytest.approx(0.49 * top, rel=1e-12)


def test_close_singular_values_keep_their_digits():
    values = (1.0, 1.0 + 1e-9, 1.0 - 1e-9)
    net = hs.DeepLinear.balanced((3, 3, 3, 3), values, rng=0)
    x = white(12, 3)
    G = net.hessian(x, net(x)).ggn
    exact = np.sort(
        [
            sum(a ** (6 - 2 * k) * b ** (2 * k - 2) for k in (1, 2, 3))
            for a in values
            for b in values
        ]
    )[::-1]
    np.testing.assert_allclose(G.spectrum().eigenvalues[:9], exact, rtol=1e-13)


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("is_white", [True, False])
def test_the_data_alone_predict_the_solution(depth, is_white):
    rng = np.random.default_rng(depth)
    x = white(25, 5, scale=1.4) if is_white else rng.normal(size=(25, 5))
    product = rng.normal(size=(3, 2)) @ rng.normal(size=(2, 5))
    y = x @ product.T
    predicted = hs.solution_spectrum(x, y, depth)
    net = hs.DeepLinear.balanced_from(product, (5, *(6,) * (depth - 1), 3), rng=1)
    assert net.balance() < 1e-14
    np.testing.assert_allclose(net.product, product, atol=1e-13)
    dense = np.linalg.eigvalsh(net.hessian(x, y).dense())[::-1]
    assert len(predicted) == 2**2 + 2 * (5 + 3 - 4)
    np.testing.assert_allclose(
        predicted.eigenvalues, dense[: len(predicted)], rtol=0, atol=1e-12 * dense[0]
    )
    with pytest.raises(ValueError, match="without a network"):
        predicted.spaces[0].vectors()


@pytest.mark.parametrize("depth", [2, 4])
def test_sharpness_follows_the_largest_class(depth):
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1, 2], [12, 5, 3])
    x = white(20, 20, scale=1.5)
    y = np.eye(3)[labels]
    net = hs.DeepLinear.balanced_from(y.T @ np.linalg.pinv(x).T, (20, *(20,) * (depth - 1), 3), rng)
    assert float(net.loss(x, y)) < 1e-25
    top = np.linalg.eigvalsh(net.hessian(x, y).ggn.dense())[-1] if depth == 2 else None
    share = depth * 1.5 ** (2 / depth) * (12 / 20) ** (1 - 1 / depth)
    assert float(hs.solution_spectrum(x, y, depth).sharpness) == pytest.approx(share, rel=1e-12)
    assert float(net.hessian(x, y).spectrum().sharpness) == pytest.approx(share, rel=1e-11)
    assert top is None or top == pytest.approx(share, rel=1e-11)


def test_bounds_hold():
    rng = np.random.default_rng(4)
    for dims in [(3, 5, 2), (2, 4, 4, 3), (1, 3, 3, 3, 1)]:
        net = hs.init.standard(dims, rng)
        x, y = rng.normal(size=(20, dims[0])), rng.normal(size=(20, dims[-1]))
        H, bounds = net.hessian(x, y), net.bounds(x, y)
        values = np.linalg.eigvalsh(H.dense())[::-1]
        low, high = bounds.intervals()
        slack = 1e-12 * np.abs(values).max()
        assert (low - slack <= values).all()
        assert (values <= high + slack).all()
        assert float(bounds.trace) == pytest.approx(values.sum())
        assert np.linalg.eigvalsh(H.ggn.dense())[-1] <= float(bounds.ggn_norm) + slack
        assert np.linalg.norm(H.functional.dense(), 2) <= float(bounds.functional_norm) + slack
        assert bounds.sharpness[0] - slack <= values[0] <= bounds.sharpness[1] + slack


def test_whitening_to_a_rank_keeps_the_directions_in_which_data_are_largest():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 3)) @ np.diag([5.0, 2.0, 1e-3]) @ rng.normal(size=(3, 8))
    white = hs.whiten(x, scale=0.5, rank=2)
    assert np.allclose(white.T @ white / 40, 0.25 * np.eye(2), rtol=0, atol=1e-13)
    # The same span as that of the two leading eigenvectors of x xᵀ, found by another route.
    leading = np.linalg.eigh(x @ x.T)[1][:, -2:]
    assert np.allclose(leading @ (leading.T @ white), white, rtol=0, atol=1e-12)
    for rank in (0, 4, 1.5):
        with pytest.raises(ValueError, match=r"rank must be an integer from 1 to 3"):
            hs.whiten(x, rank=rank)


def test_whitening_refuses_dependent_columns_in_words():
    x = np.random.default_rng(5).normal(size=(10, 3))
    dependent = np.concatenate([x, x[:, :1] + x[:, 1:2]], axis=1)
    with pytest.raises(ValueError, match="4 columns span only 3 dimensions"):
        hs.whiten(dependent)
    with pytest.raises(ValueError, match="scale"):
        hs.whiten(x, scale=0)
    np.testing.assert_allclose(
        (lambda w: w.T @ w / 10)(hs.whiten(x, 3.0)), 9 * np.eye(3), atol=1e-13
    )


@pytest.mark.parametrize(("depth", "error"), [(0, ValueError), (1.5, TypeError)])
def test_solution_spectrum_checks_depth(depth, error):
    with pytest.raises(error, match="depth"):
        hs.solution_spectrum(np.eye(3), np.eye(3), depth)


def test_initialisations_have_the_moments_they_promise():
    dims = (300, 400, 200)
    first, second = hs.init.standard(dims, rng=0).weights
    assert np.abs(first).max() <= 300**-0.5
    assert first.var() == pytest.approx(1 / 900, rel=0.02)
    tangent = hs.init.ntk(dims, rng=0)
    assert tangent.weights[1].var() == pytest.approx(1.0, rel=0.02)
    assert tangent.multipliers == (300**-0.5, 0.05)
    assert hs.init.mup(dims, rng=0).weights[1].var() == pytest.approx(0.5 / 400, rel=0.02)
    layers = hs.init.orthogonal(dims, rng=0).weights
    np.testing.assert_allclose(layers[0].T @ layers[0], np.eye(300), atol=1e-12)
    np.testing.assert_allclose(layers[1] @ layers[1].T, np.eye(200), atol=1e-12)
    again = hs.init.standard(dims, rng=0).weights[1]
    np.testing.assert_array_equal(again, second)


def test_twin_width_is_the_rank_of_the_stack():
    rng = np.random.default_rng(6)
    W1 = rng.normal(size=(50, 2)) @ rng.normal(size=(2, 4))
    W2 = rng.normal(size=(3, 2)) @ W1[:, :2].T
    twin = hs.narrow_twin(W1, W2)
    assert twin.width == np.linalg.matrix_rank(np.concatenate([W1, W2.T], axis=1)) == 2
    np.testing.assert_allclose(twin.basis.T @ twin.basis, np.eye(2), atol=1e-14)
    np.testing.assert_allclose(twin.basis @ twin.W1, W1, atol=1e-12)
    np.testing.assert_allclose(twin.W2 @ twin.basis.T, W2, atol=1e-12)
    assert hs.narrow_twin(np.zeros((5, 2)), np.zeros((1, 5))).width == 1


def test_zero_targets_and_single_precision():
    rng = np.random.default_rng(7)
    none = hs.solution_spectrum(rng.normal(size=(9, 3)), np.zeros((9, 2)), 2)
    assert none.rank() == 0
    x = (rng.normal(size=(10**5, 2)) * [1.0, 0.1]).astype(np.float32)
    white = hs.whiten(x)
    np.testing.assert_allclose(white.T @ white / 10**5, np.eye(2), atol=1e-3)
    W1 = rng.normal(size=(20_000, 3)).astype(np.float32)
    W2 = (3e-3 * rng.normal(size=(2, 20_000))).astype(np.float32)
    assert hs.narrow_twin(W1, W2).width == 5


def test_balanced_from_keeps_the_kind_of_its_product():
    torch = pytest.importorskip("torch")
    product = torch.eye(3, dtype=torch.float32, requires_grad=True)
    net = hs.DeepLinear.balanced_from(product, (3, 4, 3), rng=0)
    assert net.weights[0].dtype == torch.float32
    np.testing.assert_allclose(net.product.numpy(), np.eye(3), atol=1e-6)


@pytest.mark.parametrize("y", [[0, 2, 1], np.asarray([[0], [2], [1]])])
def test_class_numbers_are_not_fitted_as_numbers(y):
    x = np.random.default_rng(0).normal(size=(3, 2))
    with pytest.raises(ValueError, match=r"one-hot rows for classes, such as np.eye\(10\)\[y\]"):
        hs.solution_spectrum(x, y, 2)
    assert hs.solution_spectrum(x, np.asarray(y, float), 2).rank() > 0
    with pytest.raises(ValueError, match=r"y \(n, 3\), one-hot rows for classes"):
        hs.DeepLinear([np.ones((3, 2))]).hessian(x, y)


def test_errors_of_many_outputs_take_no_more_memory_than_the_network():
    net = hs.DeepLinear.balanced((150, 150, 150, 150), np.linspace(0.5, 1.5, 150), rng=0)
    x = hs.whiten(np.random.default_rng(0).normal(size=(200, 150)))
    tracemalloc.start()
    found = net.hessian(x, net(x)).ggn.spectrum()
    assert found.errors.max() < 1e-9 * found.sharpness
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # One number for each pair of an input and an output with another such pair would be 4 GB.
    assert peak < 5e8
