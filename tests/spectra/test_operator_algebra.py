"""Sums, multiples and restrictions of operators, against dense matrices."""

import array_api_strict
import numpy as np
import pytest
import torch

import hessence as hs

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 3)), RNG.normal(size=(20, 2))
W1, W2 = RNG.normal(size=(5, 3)), RNG.normal(size=(2, 5))


def network(kind=np.asarray):
    return hs.TwoLayerLinear(kind(W1), kind(W2)).hessian(kind(X), kind(Y))


def model(seed=0):
    torch.manual_seed(seed)
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    net = torch.nn.Sequential(*layers).double()
    data = torch.as_tensor(X), torch.as_tensor(Y)
    return hs.hessian(net, data, torch.nn.MSELoss()), hs.ggn(net, data, torch.nn.MSELoss())


@pytest.fixture(params=["network", "model"])
def operators(request):
    if request.param == "model":
        return model()
    H = network()
    return H, H.ggn


def test_sums_and_multiples(operators):
    H, G = operators
    A, B = (np.asarray(part.dense()) for part in operators)
    for combined, expected in [
        (H + 2 * G, A + 2 * B),
        (H - G, A - B),
        (-H, -A),
        (H * 0.5, A / 2),
        (H / 2, A / 2),
        (np.float64(3) * H, 3 * A),
        (np.asarray(3.0) * H, 3 * A),
        ((H + G) - (G - H) + 0 * G, 2 * A),
        (-(H - 2 * G).T, 2 * B - A),
        (H.T, A),
    ]:
        np.testing.assert_allclose(combined.dense(), expected, atol=1e-13 * np.abs(A).max())
        assert combined.shape == H.shape
        assert combined.dtype == H.dtype


def test_an_operator_met_twice_is_multiplied_once(operators):
    H, G = operators
    assert [factor for factor, _ in (H + 2 * G + 3 * H).terms] == [4.0, 2.0]
    assert repr(H - G).startswith(f"1 · {type(H).__name__} + -1 · {type(G).__name__} of shape")


def test_rows_from_the_left(operators):
    H, _ = operators
    A, v = np.asarray(H.dense()), RNG.normal(size=(H.shape[0], 2))
    kind = torch.as_tensor if isinstance(H.dense(), torch.Tensor) else np.asarray
    np.testing.assert_allclose(kind(v[:, 0]) @ H @ kind(v[:, 1]), v[:, 0] @ A @ v[:, 1])
    np.testing.assert_allclose(kind(v.T) @ H, v.T @ A, atol=1e-13)


def test_restrictions(operators):
    H, G = operators
    A = np.asarray((H - G).dense())
    some, mask = [4, 0, 7], np.arange(H.shape[0]) % 3 == 0
    for indices, places in [(some, some), (slice(2, 9, 2), [2, 4, 6, 8]), (mask, mask), (-1, [-1])]:
        expected = A[places][:, places]
        found = (H - G).restrict(indices)
        np.testing.assert_allclose(found.dense(), expected, atol=1e-13)
        twice = (H.restrict(indices) - G.restrict(indices)).restrict([0])
        np.testing.assert_allclose(twice.dense(), expected[:1, :1], atol=1e-13)


@pytest.mark.parametrize("indices", [[0, 0], [99], [[0, 1]], [], [0.5], [True]])
def test_restrictions_that_choose_nothing_or_too_much(indices):
    with pytest.raises(ValueError, match="indices must"):
        network().restrict(indices)


def test_what_does_not_add_up():
    H = network()
    with pytest.raises(ValueError, match=r"one shape: \(25, 25\), \(2, 2\)"):
        H + H.restrict([0, 1])
    with pytest.raises(TypeError, match="one kind"):
        H + network(torch.as_tensor)
    with pytest.raises(ValueError, match="finite number, got nan"):
        H * float("nan")
    for other in (1.0, "H", np.eye(25)):
        with pytest.raises(TypeError):
            H + other
    with pytest.raises(TypeError):
        H * np.ones(25)


def test_the_spectrum_of_a_sum(operators):
    H, G = operators
    combined = H - 2 * G
    truth = np.linalg.eigvalsh(np.asarray(combined.dense()))[::-1]
    s = combined.spectrum(4)
    assert not s.exact
    assert "no theorem" in s.reason
    assert (np.abs(np.asarray(s.eigenvalues) - truth[:4]) <= np.asarray(s.errors) + 1e-13).all()
    assert abs(float(s.trace) - truth.sum()) <= float(s.trace_stderr) + 1e-12
    np.testing.assert_allclose(combined.top(2).eigenvalues, truth[:2], atol=1e-6)
    assert abs(float(combined.trace()) - truth.sum()) <= 4 * combined.trace().stderr
    assert s.verify(combined).residual < 1e-12
    np.testing.assert_allclose(combined.to_scipy() @ np.ones(H.shape[0]),
                               np.asarray(combined.dense()).sum(axis=1), atol=1e-12)  # fmt: skip


@pytest.mark.parametrize("factor", [2.0, -1.0, -0.25, 0.0])
def test_a_multiple_of_a_hessian_has_an_exact_spectrum(factor):
    x, y = X[:, 0], Y[:, 0]
    scalar = hs.ScalarReLU(W1[:, 0], W1[:, 1]).hessian(x, y)
    affine = hs.ScalarAffine(W1[:, 0], W1[:, 1], W1[:, 2]).hessian(x, y)
    deep = hs.DeepLinear.balanced([3, 4, 3, 2], [2.0, 1.0], rng=0).hessian(X, Y)
    for H in (scalar, affine, network(), network().ggn, deep):
        s, truth = (factor * H).spectrum(), np.linalg.eigvalsh(factor * H.dense())[::-1]
        assert s.exact
        assert s.method == H.spectrum().method
        np.testing.assert_allclose(s.eigenvalues, truth, atol=1e-13 * H.spectrum().norm)
        assert s.verify(factor * H).worst < 1e-12
        for label in H.spectrum().labels if factor else ():
            values = sorted(factor * space.value for space in H.spectrum()[label])
            np.testing.assert_allclose(sorted(space.value for space in s[label]), values)


def test_an_exact_spectrum_says_that_it_takes_no_k():
    H = network()
    for operator in (H, H.ggn, hs.ScalarLinear(W1[0], W1[1]).hessian(X[:, 0], Y[:, 0])):
        for given in ({"k": 3}, {"which": "BE"}):
            with pytest.raises(ValueError, match=r"takes no k .* H.top\(k\)"):
                operator.spectrum(**given)


def test_a_large_sum_goes_through_lanczos():
    H = hs.TwoLayerLinear(RNG.normal(size=(200, 3)), RNG.normal(size=(2, 200))).hessian(X, Y)
    combined = H + H.ggn
    s = combined.spectrum(3, which="BE", rng=1)
    assert s.method == "Lanczos"
    truth = np.linalg.eigvalsh(combined.dense())
    np.testing.assert_allclose(s.eigenvalues, truth[[-1, -2, 0]], atol=1e-5 * truth[-1])
    assert abs(float(s.trace) - truth.sum()) <= 5 * float(s.trace_stderr)


def test_batches_of_networks_add_too():
    net = hs.ScalarLinear(RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4)))
    H = net.hessian(X[:, 0], Y[:, 0])
    combined = H - 3 * H.ggn
    np.testing.assert_allclose(combined.dense(), H.dense() - 3 * H.ggn.dense(), atol=1e-13)
    block = combined.restrict([1, 6])
    np.testing.assert_allclose(block.dense(), combined.dense()[:, [1, 6]][:, :, [1, 6]], atol=1e-13)
    with pytest.raises(ValueError, match="H is a batch"):
        combined.spectrum()


def test_the_array_api_suffices():
    H = network(array_api_strict.asarray)
    combined = (H - 2 * H.ggn).restrict([3, 1])
    assert type(combined.dense()) is type(H.dense())
    plain = network()
    expected = (plain.dense() - 2 * plain.ggn.dense())[[3, 1]][:, [3, 1]]
    np.testing.assert_allclose(np.asarray(combined.dense()), expected, atol=1e-13)


def test_an_operator_says_who_knows_what_it_does_not():
    A = network() - network().ggn
    with pytest.raises(AttributeError, match=r"ask for H\.spectrum\(\)\.sharpness"):
        _ = A.sharpness
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = A.nonsense


def test_an_error_inside_of_a_property_is_shown():
    class Broken(hs.Operator):
        shape = (2, 2)
        reference = np.zeros(1)

        def times(self, columns):
            return columns

        @property
        def part(self):
            return self.shape.nonsense

    with pytest.raises(AttributeError, match="'tuple' object has no attribute 'nonsense'"):
        _ = Broken().part
