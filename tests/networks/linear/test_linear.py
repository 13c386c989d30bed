"""Linear networks of any size, depth and data against autodiff."""

from itertools import pairwise

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from hessence.networks.linear.range_reduction import RangeReduction, range_size
from tests.linear_oracle import LinearCase, assert_same_spectrum

DIMS = st.lists(st.integers(1, 5), min_size=2, max_size=5).filter(
    lambda dims: sum(a * b for a, b in pairwise(dims)) <= 70
)


def random_case(dims, seed, *, rank=None, zero=None, scale=1.0, samples=7, loss="mse"):
    """Draw weights and data; `rank` limits the inputs, `zero` kills a layer."""
    rng = np.random.default_rng(seed)
    weights = [scale * rng.normal(size=(b, a)) for a, b in pairwise(dims)]
    if zero is not None:
        weights[zero % len(weights)] *= 0
    x = rng.normal(size=(samples, dims[0]))
    if rank is not None:
        x = rng.normal(size=(samples, rank)) @ rng.normal(size=(rank, dims[0]))
    y = rng.normal(size=(samples, dims[-1]))
    if loss == "logistic":
        y = np.sign(y)
    if loss == "cross-entropy":
        y = rng.integers(dims[-1], size=samples)
    return LinearCase(weights, x, y, loss)


def aligned_case(dims, values, seed, *, solved=False, variance=1.0):
    """Build an aligned network from its singular vectors, with a target along the same ones."""
    rng = np.random.default_rng(seed)
    bases = [np.linalg.qr(rng.normal(size=(d, d)))[0] for d in dims]

    def layer(out, inn, s):
        core = np.zeros((out.shape[0], inn.shape[0]))
        np.fill_diagonal(core[: len(s), : len(s)], s)
        return out @ core @ inn.T

    weights = [
        layer(bases[i + 1], bases[i], [v[i] for v in values][: min(dims[i], dims[i + 1])])
        for i in range(len(dims) - 1)
    ]
    spread = variance * np.ones(dims[0]) if np.ndim(variance) == 0 else np.asarray(variance)
    n = 3 * dims[0]
    white = np.linalg.qr(rng.normal(size=(n, dims[0])))[0] * n**0.5
    x = white * np.sqrt(spread) @ bases[0].T
    product = np.linalg.multi_dot(weights[::-1]) if len(weights) > 1 else weights[0]
    target = layer(bases[-1], bases[0], rng.normal(size=min(dims[0], dims[-1])))
    return LinearCase(weights, x, x @ (product if solved else target).T)


def operator(case):
    return hs.DeepLinear(case.weights).hessian(case.x, case.y, case.loss)


@given(DIMS, st.integers(0, 10**6), st.sampled_from([None, 1, 2]), st.sampled_from([None, 0, 1]))
def test_every_network_against_autodiff(dims, seed, rank, zero):
    case = random_case(dims, seed, rank=rank, zero=zero)
    H = operator(case)
    np.testing.assert_allclose(H.dense(), case.hessian, rtol=0, atol=1e-12 * case.norm)
    np.testing.assert_allclose(H.ggn.dense(), case.ggn, rtol=0, atol=1e-12 * case.norm)
    assert_same_spectrum(H.spectrum(), case.hessian, case.norm)
    assert_same_spectrum(H.ggn.spectrum(), case.ggn, case.norm)
    assert_same_spectrum(H.functional.spectrum(), case.hessian - case.ggn, case.norm)


@given(
    DIMS.filter(lambda dims: len(dims) > 2),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 1e-4]), min_size=1, max_size=4),
    st.integers(0, 10**6),
    st.booleans(),
    st.booleans(),
)
def test_aligned_networks_with_repeated_and_missing_singular_values(
    dims, sizes, seed, solved, unequal
):
    rng = np.random.default_rng(seed)
    values = [[s * rng.choice([1.0, 1.0, 0.5, 0.0]) for _ in dims[1:]] for s in sizes[: min(dims)]]
    variance = rng.choice([1.0, 2.0], size=dims[0]) if unequal else 1.5
    case = aligned_case(dims, values, seed, solved=solved, variance=variance)
    # Directions that end in one layer while others begin there are mostly found, but not always:
    # there the products of all layers, by which directions are told apart, vanish. The spectrum
    # then comes from another reduction, and must be right all the same.
    if all(all(chain) or not any(chain) for chain in values):
        assert hs.DeepLinear(case.weights).alignment(case.x, case.y) < 1e-12
    assert_same_spectrum(operator(case).spectrum(), case.hessian, case.norm)
    assert_same_spectrum(operator(case).ggn.spectrum(), case.ggn, case.norm)


@pytest.mark.parametrize(
    ("dims", "values"),
    [
        ((2, 2, 2, 2), [[0.5, 0.25, 0.0], [0.0, 0.5, 0.5]]),
        ((3, 3, 2), [[2.0, 0.0], [0.0, 1.0]]),
        ((3, 3, 4), [[0.25, 0.0], [1.0, 0.0], [0.0, 1.0]]),
    ],
)
def test_directions_are_found_where_the_product_of_all_layers_vanishes(dims, values):
    case = aligned_case(dims, values, seed=1, variance=1.5)
    assert hs.DeepLinear(case.weights).alignment(case.x, case.y) < 1e-12
    assert_same_spectrum(operator(case).spectrum(), case.hessian, case.norm)


@pytest.mark.parametrize("loss", ["mse", "logistic", "cross-entropy"])
@pytest.mark.parametrize(("m", "D", "K"), [(1, 1, 2), (3, 2, 2), (4, 2, 2), (9, 3, 2), (6, 1, 4)])
def test_two_layers_with_any_loss(loss, m, D, K):
    case = random_case((D, m, K), seed=m, loss=loss)
    net = hs.TwoLayerLinear(*case.weights)
    H = net.hessian(case.x, case.y, loss)
    assert float(net.loss(case.x, case.y, loss)) == pytest.approx(case.value, rel=1e-12)
    gradient = net.gradient(case.x, case.y, loss)
    np.testing.assert_allclose(gradient, case.gradient, rtol=0, atol=1e-12 * case.norm)
    assert_same_spectrum(H.spectrum(), case.hessian, case.norm)
    assert_same_spectrum(H.ggn.spectrum(), case.ggn, case.norm)
    assert H.spectrum().verify(H).worst < 1e-12
    assert H.functional.spectrum().verify(H.functional).worst < 1e-12


@pytest.mark.parametrize("loss", ["logistic", "cross-entropy"])
def test_deep_networks_with_other_losses(loss):
    case = random_case((2, 3, 3, 2), seed=1, loss=loss)
    H = operator(case)
    assert_same_spectrum(H.spectrum(), case.hessian, case.norm)
    certificate = H.spectrum().verify(H)
    assert certificate.worst < 1e-12


def test_a_users_own_torch_loss():
    def quartic(prediction, target):
        return ((prediction - target) ** 4).mean() - (prediction**2).sum() / 50

    case = random_case((3, 6, 2), seed=3)
    own = LinearCase(case.weights, case.x, case.y, own=quartic)
    net = hs.TwoLayerLinear(*case.weights)
    assert float(net.loss(case.x, case.y, quartic)) == pytest.approx(own.value)
    H = net.hessian(case.x, case.y, quartic)
    assert_same_spectrum(H.spectrum(), own.hessian, own.norm)
    assert_same_spectrum(H.ggn.spectrum(), own.ggn, own.norm)


def test_torch_class_indices_reach_a_torch_loss_as_integers():
    case = random_case((3, 4, 3), seed=4, loss="cross-entropy")
    net = hs.TwoLayerLinear(*case.weights)
    named = net.hessian(case.x, case.y, "cross-entropy").spectrum()
    own = net.hessian(case.x, case.y, torch.nn.CrossEntropyLoss()).spectrum()
    np.testing.assert_allclose(own.eigenvalues, named.eigenvalues, atol=1e-13)


@pytest.mark.parametrize("kind", [hs.TwoLayerLinear, lambda *w, **k: hs.DeepLinear(w, **k)])
def test_multipliers_scale_the_function_not_the_weights(kind):
    case = random_case((3, 5, 2), seed=5)
    net = kind(*case.weights, multipliers=(0.5, 3.0))
    scaled = LinearCase(case.weights, case.x, case.y, scale=1.5)
    np.testing.assert_allclose(net(case.x), scaled.outputs(scaled.theta).numpy(), rtol=1e-12)
    assert float(net.loss(case.x, case.y)) == pytest.approx(scaled.value)
    np.testing.assert_allclose(net.gradient(case.x, case.y), scaled.gradient, atol=1e-12)
    assert_same_spectrum(net.hessian(case.x, case.y).spectrum(), scaled.hessian, scaled.norm)
    moments = hs.Moments.from_batches([(case.x[:4], case.y[:4]), (case.x[4:], case.y[4:])])
    np.testing.assert_allclose(
        net.hessian(moments).dense(), scaled.hessian, atol=1e-12 * scaled.norm
    )


@given(DIMS, st.integers(0, 10**6))
def test_invariants_come_from_the_entries(dims, seed):
    case = random_case(dims, seed)
    for part in (operator(case), operator(case).ggn, operator(case).functional):
        dense = part.dense()
        assert float(part.trace()) == pytest.approx(np.trace(dense), abs=1e-11 * case.norm)
        assert float(part.squared_norm()) == pytest.approx((dense**2).sum(), rel=1e-10, abs=1e-20)


def test_flat_directions_inside_the_twin_are_counted_exactly():
    case = random_case((6, 4, 1), seed=6, samples=9)
    spectrum = hs.TwoLayerLinear(*case.weights).hessian(case.x, case.y).spectrum()
    nonzero = np.abs(np.linalg.eigvalsh(case.hessian)) > 1e-12 * case.norm
    assert sum(s.multiplicity for s in spectrum["flat"]) == int((~nonzero).sum())
    assert sum(s.multiplicity for s in spectrum["twin"]) == 2 * 4 + 6 - 1


def test_width_costs_nothing():
    rng = np.random.default_rng(7)
    narrow = rng.normal(size=(5, 3)), rng.normal(size=(2, 5))
    wide = np.zeros((20_000, 3)), np.zeros((2, 20_000))
    wide[0][:5], wide[1][:, :5] = narrow
    x, y = rng.normal(size=(9, 3)), rng.normal(size=(9, 2))
    small = hs.TwoLayerLinear(*narrow).hessian(x, y).spectrum()
    H = hs.TwoLayerLinear(*wide).hessian(x, y)
    large = H.spectrum()
    gradient = (narrow[1] @ narrow[0] @ x.T - y.T) @ x / 9
    sigma = np.linalg.svd(gradient, compute_uv=False)
    expected = np.concatenate([small.eigenvalues, np.repeat([*sigma, *-sigma], 19_995)])
    flat = len(large) - len(expected)
    expected = np.sort(np.concatenate([expected, np.zeros(flat)]))[::-1]
    np.testing.assert_allclose(large.eigenvalues, expected, atol=1e-12)
    assert large.verify(H, samples=2).worst < 1e-12


def test_a_batch_of_networks_multiplies_at_once():
    rng = np.random.default_rng(8)
    weights = [rng.normal(size=(6, 4, 3)), rng.normal(size=(6, 4, 4)), rng.normal(size=(6, 2, 4))]
    x, y = rng.normal(size=(9, 3)), rng.normal(size=(9, 2))
    batch = hs.DeepLinear(weights)
    H = batch.hessian(x, y)
    columns = rng.normal(size=(6, H.shape[-1], 2))
    vector = rng.normal(size=H.shape[-1])
    for i, net in enumerate(batch):
        one = net.hessian(x, y)
        np.testing.assert_allclose((H @ columns)[i], one @ columns[i], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose((H @ vector)[i], one @ vector, rtol=1e-12, atol=1e-12)
        assert float(H.trace()[i]) == pytest.approx(float(one.trace()))
        assert float(batch.loss(x, y)[i]) == pytest.approx(float(net.loss(x, y)))
    with pytest.raises(ValueError, match=r"net\[0\]"):
        H.spectrum()


def test_top_finds_the_ends_of_what_spectrum_finds():
    case = random_case((4, 8, 8, 3), seed=9)
    H = operator(case)
    values = np.linalg.eigvalsh(case.hessian)
    found = H.top(3, tol=1e-10)
    np.testing.assert_allclose(found.eigenvalues, values[::-1][:3], atol=1e-8 * case.norm)
    low = H.top(2, which="SA", tol=1e-10)
    np.testing.assert_allclose(np.sort(low.eigenvalues), values[:2], atol=1e-8 * case.norm)


def test_no_exact_route_is_said_with_what_to_call():
    rng = np.random.default_rng(10)
    net = hs.init.standard((30, 60, 60, 30), rng=0)
    x, y = rng.normal(size=(50, 30)), rng.normal(size=(50, 30))
    with pytest.raises(ValueError, match=r"H\.top\(k\)"):
        net.hessian(x, y).spectrum()


@pytest.mark.parametrize(
    ("dims", "size"), [((1, 100, 100, 1), 100 + 199 + 100), ((2, 40, 40, 40, 1), 80 + 2 * 118 + 40)]
)
def test_range_reduction_beats_the_parameter_count(dims, size):
    case = random_case(dims, seed=11, scale=0.2)
    spectrum = operator(case).spectrum()
    assert spectrum.method == "range reduction"
    assert sum(s.multiplicity for s in spectrum["range"]) == size
    H = operator(case)
    assert spectrum.verify(H, samples=2).worst < 1e-12


@given(DIMS, st.integers(0, 99), st.none() | st.integers(0, 4))
def test_size_of_the_range_is_known_without_its_bases(dims, seed, zero):
    H = operator(random_case(dims, seed, zero=zero))
    around = H.chain.before, H.chain.after
    assert range_size(*around) == RangeReduction(H.chain, *around).size


def test_torch_arrays_come_back_as_torch():
    case = aligned_case((3, 4, 2), [(1.0, 0.5), (0.7, 2.0)], seed=12)
    weights = [torch.tensor(w) for w in case.weights]
    H = hs.DeepLinear(weights).hessian(torch.tensor(case.x), torch.tensor(case.y))
    for part, dense in ((H, case.hessian), (H.ggn, case.ggn)):
        spectrum = part.spectrum()
        values = np.linalg.eigvalsh(dense)[::-1]
        assert isinstance(spectrum.eigenvalues, torch.Tensor)
        np.testing.assert_allclose(spectrum.eigenvalues.numpy(), values, atol=1e-11 * case.norm)
        assert spectrum.verify(part).worst < 1e-12


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hs.DeepLinear([]), "weights is empty"),
        (lambda: hs.DeepLinear([np.ones(3)]), r"weights\[0\] must have shape"),
        (
            lambda: hs.DeepLinear([np.ones((2, 3)), np.ones((2, 3))]),
            r"weights\[1\] must take the 2",
        ),
        (lambda: hs.TwoLayerLinear(np.ones((2, 3)), np.ones((2, 3))), "W2 must have shape"),
        (lambda: hs.DeepLinear([np.ones((2, 3))], multipliers=(1, 2)), "multipliers must have 1"),
        (lambda: hs.DeepLinear([np.ones((2, 3))], multipliers=(0,)), "multipliers must be finite"),
        (lambda: hs.DeepLinear.balanced((3,), (1.0,)), "dims"),
        (lambda: hs.DeepLinear.balanced((3, 0, 2), (1.0,)), "dims"),
        (lambda: hs.DeepLinear.balanced((3, 2, 4), (1.0,) * 3), "singular_values"),
        (lambda: hs.DeepLinear.balanced((3, 2), (-1.0,)), "singular_values"),
        (lambda: hs.DeepLinear.balanced_from(np.eye(3), (3, 2, 3)), "dims must be at least 3"),
        (lambda: hs.DeepLinear.balanced_from(np.eye(3), (3, 4, 2)), "product must have shape"),
        (lambda: hs.narrow_twin(np.ones((3, 2)), np.ones((2, 2))), "W2"),
        (lambda: hs.narrow_twin(np.ones((3, 2)), np.ones((2, 3)), tol=-1), "tol"),
    ],
)
def test_bad_networks(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("x", "y", "loss", "words"),
    [
        (np.ones((4, 2)), np.ones((4, 2)), "mse", r"x must have shape \(n, 3\) and y \(n, 2\)"),
        (np.ones((4, 3)), np.ones((5, 2)), "mse", "y must have one row"),
        (np.ones((4, 3)), np.asarray([0, 1, 2, 0]), "cross-entropy", "class indices from 0 to 1"),
        (np.ones((4, 3)), np.asarray([0.5, 1, 1, 0]), "cross-entropy", "class indices"),
        (np.ones((4, 3)), np.ones((4, 2)), "none", "loss must be one of"),
        (np.ones((4, 3)), np.ones((4, 2)), lambda f, t: f - t, "single number"),
    ],
)
def test_bad_data(x, y, loss, words):
    net = hs.TwoLayerLinear(np.ones((4, 3)), np.ones((2, 4)))
    with pytest.raises(ValueError, match=words):
        net.hessian(x, y, loss)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        random_case((20, 60, 15), seed=20, scale=0.2, samples=30),
        random_case((12, 20, 30, 20, 6), seed=21, scale=0.25, samples=40),
        random_case((1, 40, 30, 1), seed=22, scale=0.3),
        aligned_case((25, 30, 28), np.linspace(0.2, 2.0, 25)[:, None] * [1.0, 1.1], seed=23),
        aligned_case((20, 22, 24, 18), np.linspace(0.2, 1.5, 18)[:, None] * [1.0, 0.9, 1.2], 24),
    ],
    ids=["two layers", "deep", "one in one out", "aligned two", "aligned three"],
)
def test_large_networks_against_dense_autodiff(case):
    H = operator(case)
    spectrum = H.spectrum()
    values = np.linalg.eigvalsh(case.hessian)[::-1]
    np.testing.assert_allclose(spectrum.eigenvalues, values, rtol=0, atol=1e-11 * case.norm)
    ggn = np.linalg.eigvalsh(case.ggn)[::-1]
    np.testing.assert_allclose(H.ggn.spectrum().eigenvalues, ggn, rtol=0, atol=1e-11 * case.norm)
    assert spectrum.verify(case.hessian).worst < 1e-11


@pytest.mark.parametrize("which", ["LA", "SA", "LM", "BE"])
@pytest.mark.parametrize("residual", [0.0, 0.3, 5.0])
def test_the_top_of_wide_networks_through_their_twin(which, residual):
    rng = np.random.default_rng(25)
    W1, W2 = rng.normal(size=(40, 3)) / 6, rng.normal(size=(2, 40)) / 6
    x = rng.normal(size=(30, 3))
    y = x @ (W2 @ W1).T + residual * rng.normal(size=(30, 2))
    H = hs.TwoLayerLinear(W1, W2).hessian(x, y)
    values = np.linalg.eigvalsh(H.dense())[::-1]
    order = {"LA": -values, "SA": values, "LM": -np.abs(values)}
    if which == "BE":
        expected = np.concatenate([values[:2], values[-2:]])
    else:
        expected = np.sort(values[np.argsort(order[which], stable=True)[:4]])[::-1]
    found = H.top(4, which, tol=1e-10)
    norm = np.abs(values).max()
    np.testing.assert_allclose(np.abs(found.eigenvalues), np.abs(expected), atol=1e-8 * norm)
    defect = H @ found.eigenvectors - found.eigenvalues * found.eigenvectors
    assert np.linalg.norm(defect, axis=0).max() < 1e-8 * norm
    started = H.top(4, which, tol=1e-10, v0=found.eigenvectors[:, 0])
    np.testing.assert_allclose(np.abs(started.eigenvalues), np.abs(expected), atol=1e-8 * norm)


@pytest.mark.parametrize("dims", [(3, 6, 2), (3, 2, 2), (3, 9, 2), (3, 4, 4, 2)])
@pytest.mark.parametrize("part", ["hessian", "ggn"])
def test_gradients_flow_through_the_sharpness(dims, part):
    case = random_case(dims, seed=30)
    rng = np.random.default_rng(31)
    ways = [rng.normal(size=w.shape) for w in case.weights]

    def sharpness(weights, x, y):
        H = hs.DeepLinear(weights).hessian(x, y)
        return (H if part == "hessian" else H.ggn).spectrum().sharpness

    layers = [torch.tensor(w, requires_grad=True) for w in case.weights]
    gradients = torch.autograd.grad(
        sharpness(layers, torch.tensor(case.x), torch.tensor(case.y)), layers
    )
    along = sum(float((g.numpy() * d).sum()) for g, d in zip(gradients, ways, strict=True))
    ends = [
        float(sharpness([w + s * 1e-5 * d for w, d in zip(case.weights, ways, strict=True)], *xy))
        for s in (1, -1)
        for xy in [(case.x, case.y)]
    ]
    assert along == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_gradient_that_is_not_aligned_is_noticed_in_any_precision(dtype):
    rng = np.random.default_rng(32)
    layer = np.diag([2, 1.5, 1, 0.7, 0.3])
    x = hs.whiten(rng.normal(size=(20, 5)))
    y = x @ (np.linalg.matrix_power(layer, 3) - np.linalg.qr(rng.normal(size=(5, 5)))[0]).T
    net = hs.DeepLinear([layer.astype(dtype)] * 3)
    H = net.hessian(x.astype(dtype), y.astype(dtype))
    assert net.alignment(x.astype(dtype), y.astype(dtype)) > 0.1
    dense = hs.DeepLinear([layer] * 3).hessian(x, y).dense()
    tolerance = 100 * np.finfo(dtype).eps * np.linalg.norm(dense, 2)
    values = np.linalg.eigvalsh(dense)[::-1]
    np.testing.assert_allclose(H.spectrum().eigenvalues, values, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("weight", "data"), [(1.0, 1e-90), (1e40, 1.0), (1e-30, 1e20), (1e25, 1e-60)]
)
def test_scales_far_from_one(weight, data):
    rng = np.random.default_rng(33)
    net = hs.DeepLinear([weight * rng.normal(size=(3, 3)) for _ in range(3)])
    x, y = data * rng.normal(size=(2, 5, 3))
    H = net.hessian(x, y)
    dense = H.dense()
    values = np.linalg.eigvalsh(dense)[::-1]
    np.testing.assert_allclose(H.spectrum().eigenvalues, values, atol=1e-12 * np.abs(values).max())


def test_one_layer_is_a_network_too():
    rng = np.random.default_rng(34)
    x, y = rng.normal(size=(9, 3)), rng.normal(size=(9, 2))
    H = hs.DeepLinear([rng.normal(size=(2, 3))]).hessian(x, y)
    top = np.linalg.eigvalsh(x.T @ x / 9)[-1]
    assert float(H.top(1).eigenvalues[0]) == pytest.approx(top)
    assert float(H.spectrum().sharpness) == pytest.approx(top)


@pytest.mark.parametrize("loss", ["mse", "logistic", "cross-entropy"])
def test_invariants_of_a_batch(loss):
    rng = np.random.default_rng(35)
    W1, W2 = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 2, 4))
    x = rng.normal(size=(6, 3))
    y = rng.integers(2, size=6) if loss == "cross-entropy" else np.sign(rng.normal(size=(6, 2)))
    H = hs.TwoLayerLinear(W1, W2).hessian(x, y, loss)
    dense = H.dense()
    np.testing.assert_allclose(H.squared_norm(), (dense**2).sum(axis=(1, 2)), rtol=1e-11)
    np.testing.assert_allclose(H.trace(), np.trace(dense, axis1=1, axis2=2), rtol=1e-11)


def test_closed_forms_have_no_size_limit():
    net = hs.DeepLinear.balanced((90, 100, 80), np.linspace(0.5, 1.5, 80), rng=0)
    x = hs.whiten(np.random.default_rng(36).normal(size=(100, 90)))
    spectrum = net.hessian(x, net(x)).ggn.spectrum()
    assert spectrum.method.startswith("closed form")
    assert spectrum.rank() == 90 * 80
    deep = hs.init.standard((90, 100, 100, 80), rng=0)
    with pytest.raises(ValueError, match=r"H\.ggn\.top\(k\)"):
        deep.hessian(x, deep(x)).ggn.spectrum()


@pytest.mark.parametrize("which", ["LA", "LM"])
def test_a_long_batch_agrees_with_its_members(which):
    rng = np.random.default_rng(40)
    nets = [hs.init.standard((10, 40, 10), rng) for _ in range(40)]
    batch = hs.DeepLinear([np.stack(w) for w in zip(*(n.weights for n in nets), strict=True)])
    x = rng.normal(size=(60, 10))
    y = x @ rng.normal(size=(10, 10))
    found = batch.hessian(x, y).top(1, which, tol=1e-8)
    assert found.converged
    for i, net in enumerate(nets):
        H = net.hessian(x, y)
        values = H.spectrum().eigenvalues
        best = values[0] if which == "LA" else values[np.argmax(np.abs(values))]
        assert float(found.eigenvalues[i, 0]) == pytest.approx(float(best), rel=1e-7)
        z = found.eigenvectors[i]
        assert np.linalg.norm(H @ z - found.eigenvalues[i] * z) < 1e-6


@pytest.mark.parametrize("dims", [(3, 7, 2), (3, 4, 4, 2)])
def test_every_route_keeps_to_the_array_standard(dims):
    case = random_case(dims, seed=41)
    arrays = [array_api_strict.asarray(a) for a in (*case.weights, case.x, case.y)]
    H = hs.DeepLinear(arrays[:-2]).hessian(*arrays[-2:])
    parts = (H, case.hessian), (H.ggn, case.ggn), (H.functional, case.hessian - case.ggn)
    for part, dense in parts:
        spectrum = part.spectrum()
        assert isinstance(spectrum.eigenvalues, type(arrays[0]))
        values = np.linalg.eigvalsh(dense)[::-1]
        np.testing.assert_allclose(
            np.asarray(spectrum.eigenvalues), values, rtol=0, atol=1e-13 * case.norm
        )
        assert spectrum.verify(part).worst < 1e-12


@pytest.mark.parametrize("dims", [(3, 6, 2), (3, 1, 2), (3, 1, 4, 2), (2, 2, 2, 2)])
def test_gradients_flow_through_white_data_bottlenecks_and_balance(dims):
    rng = np.random.default_rng(42)
    net = hs.DeepLinear.balanced(dims, np.linspace(0.8, 1.3, min(dims)), rng=42)
    x = hs.whiten(rng.normal(size=(9, dims[0])))
    y = rng.normal(size=(9, dims[-1]))
    ways = [rng.normal(size=w.shape) for w in net.weights]

    def power(weights, x, y):
        # The third moment of the spectrum is smooth where eigenvalues cross.
        s = hs.DeepLinear(weights).hessian(x, y).ggn.spectrum()
        return (s.eigenvalues**3).sum()

    layers = [torch.tensor(w, requires_grad=True) for w in net.weights]
    gradients = torch.autograd.grad(power(layers, torch.tensor(x), torch.tensor(y)), layers)
    along = sum(float((g.numpy() * d).sum()) for g, d in zip(gradients, ways, strict=True))
    ends = [
        float(power([w + s * 1e-5 * d for w, d in zip(net.weights, ways, strict=True)], x, y))
        for s in (1, -1)
    ]
    assert along == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)
