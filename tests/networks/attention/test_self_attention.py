"""Self-attention of embedding dimension 1 against autodiff."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from tests import attention_oracle as oracle
from tests.linear_oracle import assert_same_spectrum


def instance(seed, m=4, sequences=3, n=5, *, masked=False, sink=None, bias=False, **options):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, sequences, n))
    mask = None
    if masked:
        mask = rng.random((sequences, n)) < 0.6
        mask[np.arange(sequences), rng.integers(n, size=sequences)] = True
    scores = rng.normal(size=(n, n)) if bias else None
    net = hs.SelfAttention(rng.normal(), *rng.normal(size=(2, m)), score_bias=scores, **options)
    net = net if sink is None else net.with_sink(sink)
    settings = {"mask": mask, "bias": scores, "sink": sink} | options
    return net, x, y, settings


def check(net, x, y, settings, tolerance=1e-12):
    theta = np.asarray(net.parameters())
    dense = oracle.hessian(theta, x, y, **settings)
    norm = max(np.linalg.norm(dense, 2), 1e-300)
    loss = settings.get("loss", "mse")
    H = net.hessian(x, y, loss, mask=settings.get("mask"))
    ggn = oracle.gauss_newton(theta, x, y, **settings)
    np.testing.assert_allclose(H.dense(), dense, rtol=0, atol=tolerance * norm)
    np.testing.assert_allclose(H.ggn.dense(), ggn, rtol=0, atol=tolerance * norm)
    assert_same_spectrum(H.spectrum(), dense, norm, tolerance)
    assert_same_spectrum(H.ggn.spectrum(), ggn, norm, tolerance)
    assert_same_spectrum(H.functional.spectrum(), dense - ggn, norm, tolerance)
    slope = oracle.gradient(theta, x, y, **settings)
    mine = net.gradient(x, y, loss, mask=settings.get("mask"))
    np.testing.assert_allclose(mine, slope, rtol=0, atol=1e-12 * max(np.abs(slope).max(), norm))
    return H, dense, norm


@given(
    st.integers(0, 10**6),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from([None, -2.0, 0.7]),
    st.sampled_from(["softmax", "identity", "sigmoid", "tanh"]),
)
def test_against_autodiff(seed, m, sequences, n, masked, sink, activation):
    check(
        *instance(
            seed,
            m,
            sequences,
            n,
            masked=masked,
            sink=sink,
            bias=seed % 2 == 0,
            activation=activation,
        )
    )


@pytest.mark.parametrize("masked", [False, True])
def test_another_loss(masked):
    net, x, y, settings = instance(21, masked=masked, sink=0.4)
    check(net, x, np.sign(y), settings | {"loss": "logistic"})


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_small_and_saturated_scores(scale):
    net, x, y, settings = instance(1)
    check(hs.SelfAttention(0.7, scale * net.w_q, net.w_k), x, y, settings, tolerance=1e-11)


@pytest.mark.parametrize(
    "weights",
    [
        {"w_v": 0.0},
        {"w_q": np.zeros(4)},
        {"w_q": np.zeros(4), "w_k": np.zeros(4)},
        {"w_k": np.asarray([1.0, -2.0, 0.5, 1.0]), "w_q": np.asarray([1.0, -2.0, 0.5, 1.0])},
        {"w_k": np.asarray([1.0, -2.0, 0.5, 1.0]), "w_q": -np.asarray([1.0, -2.0, 0.5, 1.0])},
    ],
)
def test_degenerate_weights(weights):
    net, x, y, settings = instance(2)
    given_weights = {"w_v": 0.5, "w_q": net.w_q, "w_k": net.w_k} | weights
    check(hs.SelfAttention(**given_weights), x, y, settings)


def test_constant_sequences_have_no_bulk_and_no_curvature_in_the_scores():
    net, _, y, settings = instance(3)
    x = np.ones((3, 5)) * np.asarray([[1.0], [-2.0], [0.5]])
    H, _, _ = check(net, x, y, settings)
    assert H.spectrum().rank() == 1


def test_zero_residual_leaves_the_gauss_newton_part():
    net, x, _, settings = instance(4)
    y = np.asarray(net(x))
    H, dense, norm = check(net, x, y, settings)
    np.testing.assert_allclose(dense, H.ggn.dense(), atol=1e-13 * norm)
    assert float(H.ggn_error()) < 1e-13
    statistics = net.statistics(x, y)
    assert float(statistics.gamma) == 0.0


def test_ggn_error_compares_the_two_sharpnesses():
    net, x, y, _ = instance(5)
    H = net.hessian(x, y)
    top = np.linalg.eigvalsh(H.dense())[-1]
    other = np.linalg.eigvalsh(H.ggn.dense())[-1]
    assert float(H.ggn_error()) == pytest.approx(abs(top - other) / top, rel=1e-10)


@pytest.mark.parametrize("m", [1, 2, 7])
def test_the_query_key_block_alone(m):
    net, x, y, settings = instance(6, m=m)
    dense = oracle.hessian(np.asarray(net.parameters()), x, y, **settings)[1:, 1:]
    H = net.hessian(x, y)
    norm = np.linalg.norm(dense, 2)
    for part in (H, H.ggn, H.functional):
        block = part.block("qk")
        np.testing.assert_allclose(block.dense(), part.dense()[1:, 1:], atol=1e-13 * norm)
        assert_same_spectrum(block.spectrum(), part.dense()[1:, 1:], norm)
    bulk = sorted(float(s.value) for s in H.block("qk").spectrum()["bulk"])
    assert bulk == sorted(float(s.value) for s in H.spectrum()["bulk"])
    with pytest.raises(ValueError, match="name"):
        H.block("vv")


def test_statistics_are_the_papers_moments():
    net, x, y, _ = instance(7, sequences=1)
    s = net.statistics(x[0], y[0])
    A = net.attention(x[0])
    mean = A @ x[0]
    np.testing.assert_allclose(np.sum(A, axis=-1), 1, rtol=1e-14)
    np.testing.assert_allclose(s.m1[0], mean, rtol=1e-13)
    variance = A @ x[0] ** 2 - mean**2
    np.testing.assert_allclose(s.m2[0], variance, atol=1e-12)
    dense = net.hessian(x[0], y[0]).dense()
    assert float(s.alpha) == pytest.approx(dense[0, 0])
    residual = net(x[0]) - y[0]
    gamma = float(net.w_v * residual @ (x[0] * variance) / (5 * 2))
    assert float(s.gamma) == pytest.approx(gamma, rel=1e-10)


def test_scores_of_ten_thousand_do_not_overflow():
    x = np.asarray([100.0, -100.0, 1.0])
    net = hs.SelfAttention(1.0, np.asarray([2.0]), np.asarray([1.0]))
    H = net.hessian(x, x[::-1])
    assert np.isfinite(H.dense()).all()
    np.testing.assert_allclose(net.attention(x), [[1, 0, 0], [0, 1, 0], [1, 0, 0]], atol=1e-15)


def characteristic_roots(net, x, y):
    """Return the outliers from the paper's characteristic polynomial, at 50 digits."""
    s = net.statistics(x, y)
    with mpmath.workdps(50):
        a, b, g, z = (mpmath.mpf(float(v)) for v in (s.alpha, s.beta, s.gamma, s.zeta))
        norm = mpmath.mpf(float(net.w_q @ net.w_q + net.w_k @ net.w_k))
        kappa = mpmath.mpf(float(net.w_q @ net.w_k))
        coefficients = [
            -1,
            a + z * norm,
            (b * b - a * z) * norm + 2 * g * z * kappa + g * g,
            2 * g * (b * b - a * z) * kappa - a * g * g,
        ]
        roots = mpmath.polyroots(coefficients, maxsteps=200, extraprec=200)
        return sorted((float(mpmath.re(r)) for r in roots), reverse=True)


@pytest.mark.parametrize("seed", range(5))
def test_outliers_are_the_roots_of_the_papers_polynomial(seed):
    net, x, y, _ = instance(seed, m=6)
    spectrum = net.hessian(x, y).spectrum()
    outliers = sorted((float(s.value) for s in spectrum["outlier"]), reverse=True)
    scale = max(map(abs, outliers))
    np.testing.assert_allclose(outliers, characteristic_roots(net, x, y), atol=1e-13 * scale)


def printed_xi(net, x, y):
    """Return ξ as it stands in the paper, with norms where squared norms belong."""
    s = net.statistics(x, y)
    q, k = np.linalg.norm(net.w_q), np.linalg.norm(net.w_k)
    inside = (s.beta**2 - s.alpha * s.zeta) * (q**2 + k**2) + 2 * s.gamma * s.zeta * (
        net.w_q @ net.w_k
    )
    trace = (s.zeta * k + s.zeta * q + s.alpha) ** 2
    return 2 / 3 * np.sqrt(max(3 * (inside + s.gamma**2) + trace, 0.0))


def test_our_bounds_hold_where_the_printed_ones_fail():
    failures = 0
    for seed in range(60):
        net, x, y, _ = instance(seed, m=5)
        H, bounds = net.hessian(x, y), net.bounds(x, y)
        values = np.linalg.eigvalsh(H.dense())
        outliers = [float(s.value) for s in H.spectrum()["outlier"]]
        slack = 1e-12 * np.abs(values).max()
        low, high = bounds.outliers
        assert low - slack <= min(outliers) <= max(outliers) <= high + slack
        assert bounds.sharpness[0] - slack <= max(outliers) <= bounds.sharpness[1] + slack
        ratio = np.abs(values).max() / np.abs(values).min()
        assert float(bounds.condition_number) <= ratio * (1 + 1e-9)
        third = float(H.trace()) / 3
        printed = printed_xi(net, x, y)
        failures += not third + printed / 2 - slack <= max(outliers) <= third + printed + slack
    assert failures > 5


def test_no_bulk_no_bound_on_the_condition_number():
    net, x, y, _ = instance(8, m=1)
    assert np.isnan(net.bounds(x, y).condition_number)
    net, x, _, _ = instance(8, m=3)
    assert np.isnan(net.bounds(x, net(x)).condition_number)


def test_many_networks_in_one_call():
    rng = np.random.default_rng(9)
    w_v, (w_q, w_k) = rng.normal(size=6), rng.normal(size=(2, 6, 4))
    sinks = rng.normal(size=6)
    x, y = rng.normal(size=(2, 3, 5))
    many = hs.SelfAttention(w_v, w_q, w_k).with_sink(sinks)
    spectrum, bounds = many.hessian(x, y).spectrum(), many.bounds(x, y)
    for i in range(6):
        one = hs.SelfAttention(w_v[i], w_q[i], w_k[i]).with_sink(sinks[i])
        alone = one.hessian(x, y).spectrum()
        np.testing.assert_allclose(spectrum.eigenvalues[i], alone.eigenvalues, atol=1e-13)
        np.testing.assert_allclose(many[i](x), one(x), rtol=1e-14)
        np.testing.assert_allclose(bounds.xi[i], one.bounds(x, y).xi, rtol=1e-12)
        vectors = spectrum["outlier"][0].vectors()
        assert vectors.shape == (6, 9, 1)


def test_masked_tokens_do_not_matter():
    net, x, y, settings = instance(10, masked=True)
    mask = settings["mask"]
    garbage = np.where(mask, x, 1e6), np.where(mask, y, -1e6)
    a = net.hessian(x, y, mask=mask).spectrum().eigenvalues
    b = net.hessian(*garbage, mask=mask).spectrum().eigenvalues
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


class Cube:
    """A user's own activation of single scores."""

    def value(self, scores):
        return scores**3

    def first(self, scores):
        return 3 * scores**2

    def second(self, scores):
        return 6 * scores


def test_a_users_own_activation(monkeypatch):
    monkeypatch.setitem(oracle.ACTIVATIONS, "cube", lambda s: s**3)
    net, x, y, settings = instance(11, activation=Cube())
    check(net, x, y, settings | {"activation": "cube"})


@pytest.mark.parametrize("kind", ["torch", "strict"])
def test_other_arrays_come_back_as_they_went_in(kind):
    strict = pytest.importorskip("array_api_strict")
    convert = torch.tensor if kind == "torch" else strict.asarray
    net, x, y, _ = instance(12)
    weights = (convert(np.asarray(w)) for w in (net.w_v, net.w_q, net.w_k))
    other = hs.SelfAttention(*weights).with_sink(0.3)
    spectrum = other.hessian(convert(x), convert(y)).spectrum()
    assert isinstance(spectrum.eigenvalues, type(convert(x)))
    reference = net.with_sink(0.3).hessian(x, y).spectrum()
    np.testing.assert_allclose(np.asarray(spectrum.eigenvalues), reference.eigenvalues, atol=1e-13)


@pytest.mark.parametrize("sign", [None, 1.0, -1.0])
def test_gradients_flow_through_the_sharpness(sign):
    net, x, y, _ = instance(13, m=3)
    if sign is not None:
        net = hs.SelfAttention(net.w_v, net.w_q, sign * net.w_q)
    theta = torch.tensor(np.asarray(net.parameters()), requires_grad=True)
    data = torch.tensor(x), torch.tensor(y)
    base = hs.SelfAttention(*(torch.tensor(np.asarray(w)) for w in (net.w_v, net.w_q, net.w_k)))
    sharpness = base.with_parameters(theta).hessian(*data).spectrum().sharpness
    (slope,) = torch.autograd.grad(sharpness, theta)
    for i in range(7):
        step = np.zeros(7)
        step[i] = 1e-5
        plus, minus = (
            float(
                net.with_parameters(net.parameters() + s * step).hessian(x, y).spectrum().sharpness
            )
            for s in (1, -1)
        )
        assert float(slope[i]) == pytest.approx((plus - minus) / 2e-5, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"w_q": np.ones((2, 3))}, ValueError, "w_k must have the shape of w_q"),
        ({"w_v": np.ones(2)}, ValueError, "w_v must have shape"),
        ({"w_q": 1.0, "w_k": 1.0}, ValueError, "w_q must have shape"),
        ({"score_bias": np.ones((2, 3))}, ValueError, "score_bias must be square"),
        ({"activation": "relu"}, ValueError, "activation must be one of"),
        ({"activation": 3}, TypeError, "activation must be a name"),
        ({"w_v": np.nan}, ValueError, "w_v contains NaN"),
        ({"x": np.ones((2, 2, 2))}, ValueError, "x must have shape"),
        ({"y": np.ones(4)}, ValueError, "y must have the shape of x"),
        ({"mask": np.ones(3)}, TypeError, "mask must hold booleans"),
        ({"mask": np.ones(4, bool)}, ValueError, "mask must have the shape of x"),
        ({"mask": np.zeros(3, bool)}, ValueError, "mask must leave at least one token"),
        ({"score_bias": np.ones((4, 4))}, ValueError, "x must have the 4 tokens"),
        ({"sink": np.ones(5)}, ValueError, "sink must be a number"),
    ],
)
def test_bad_input(changes, error, words):
    weights = {"w_v": 1.0, "w_q": np.ones(3), "w_k": np.ones(3)}
    data = {"x": np.ones(3), "y": np.ones(3)}
    options = {k: v for k, v in changes.items() if k not in ("x", "y", "mask")}
    data |= {k: v for k, v in changes.items() if k in ("x", "y", "mask")}
    with pytest.raises(error, match=words):
        hs.SelfAttention(**(weights | options)).hessian(**data)


def test_what_a_mask_hides_may_be_anything():
    net, *_ = instance(14)
    loss = net.loss([1.0, 2.0, 1e200], [1.0, 2.0, 0.0], mask=[True, True, False])
    assert float(loss) == pytest.approx(float(net.loss([1.0, 2.0], [1.0, 2.0])))


def test_numbers_take_the_type_of_the_arrays_beside_them():
    q = torch.ones(2, dtype=torch.float64)
    assert float(hs.SelfAttention(0.1, q, q).w_v) == 0.1
    single = np.ones(2, dtype=np.float32)
    assert hs.SelfAttention(1.0, single, single).with_sink(0.5).w_q.dtype == np.float32


def test_many_networks_with_sinks_of_their_own_are_taken_some_at_a_time():
    rng = np.random.default_rng(15)
    w_v, (w_q, w_k), sinks = (
        rng.normal(size=400),
        rng.normal(size=(2, 400, 2)),
        rng.normal(size=400),
    )
    x, y = rng.normal(size=(2, 10, 10))
    values = hs.SelfAttention(w_v, w_q, w_k).with_sink(sinks).hessian(x, y).spectrum().sharpness
    one = hs.SelfAttention(w_v[377], w_q[377], w_k[377]).with_sink(sinks[377])
    assert float(values[377]) == pytest.approx(float(one.hessian(x, y).spectrum().sharpness))


@pytest.mark.parametrize("part", ["ggn", "functional"])
def test_eigenvalues_take_no_basis(part, monkeypatch):
    monkeypatch.delattr("hessence.networks.scalar.products.Frame")
    H = hs.SelfAttention(1.0, [1.0, 2.0, 0.5], [0.5, -1.0, 1.0]).hessian([1.0, 2.0], [0.0, 1.0])
    own = getattr(H, part)
    eigenvalues = np.linalg.eigvalsh(own.dense())[::-1]
    np.testing.assert_allclose(own.spectrum().eigenvalues, eigenvalues, atol=1e-14)
