"""Many networks in one call: the same as one at a time."""

import array_api_strict
import numpy as np
import pytest
import torch

import hessence as hs
from tests.oracle import KINDS, LOSSES, OWN
from tests.strategies import shapes, typical

pytestmark = pytest.mark.filterwarnings("ignore::hessence.KinkWarning")


def batch_of(kind, lead, m=3, seed=0):
    rng = np.random.default_rng(seed)
    weight_shape, *_ = shapes(kind, m, 5, 2)
    weights = {name: rng.normal(size=(*lead, *weight_shape)) for name in KINDS[kind].order}
    first, *_, last = weights
    # Some of them degenerate.
    weights[last][0] = weights[first][0]
    weights[last][1] = -weights[first][1]
    weights[last][2] = 0.0
    return KINDS[kind].make(**weights)


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("lead", [(5,), (3, 2)])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_one_at_a_time(kind, loss, lead, m):
    case = typical(kind, loss, m=m)
    net, data = batch_of(kind, lead, m), (case.x, case.y, OWN.get(loss, loss))
    assert net.batch_shape == lead
    H = net.hessian(*data)
    s = H.spectrum()
    for index in np.ndindex(lead):
        one = net[index]
        spectrum = one.hessian(*data).spectrum()
        close = {"rtol": 1e-13, "atol": 1e-14 * spectrum.norm}
        np.testing.assert_allclose(s.eigenvalues[index], spectrum.eigenvalues, **close)
        np.testing.assert_allclose(s.sharpness[index], spectrum.sharpness, **close)
        np.testing.assert_allclose(net.gradient(*data)[index], one.gradient(*data), atol=1e-13)
        np.testing.assert_allclose(net.loss(*data)[index], one.loss(*data), rtol=1e-13)
        np.testing.assert_allclose(net(case.x)[index], one(case.x), rtol=1e-13, atol=1e-14)
        np.testing.assert_array_equal(net.parameters()[index], one.parameters())


@pytest.mark.parametrize("part", ["hessian", "ggn", "functional"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ScalarReLU"])
def test_vectors_of_a_batch(kind, part):
    case = typical(kind, m=4)
    H = batch_of(kind, (5,), m=4).hessian(case.x, case.y)
    H = H if part == "hessian" else getattr(H, part)
    dense = H.dense()
    parts = [(space.vectors(), space.value) for space in H.spectrum().spaces]
    vectors = np.concatenate([z for z, _ in parts], axis=-1)
    values = np.concatenate([value[:, None] * np.ones(z.shape[-1]) for z, value in parts], axis=-1)
    gram = np.swapaxes(vectors, -1, -2) @ vectors
    np.testing.assert_allclose(gram, np.zeros_like(gram) + np.eye(gram.shape[-1]), atol=1e-13)
    residual = dense @ vectors - vectors * values[:, None, :]
    assert np.abs(residual).max() < 1e-12 * np.abs(dense).max()


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_thousand_networks_of_width_sixteen(kind):
    case = typical(kind, m=16)
    net = batch_of(kind, (10**5,), m=16 if kind.startswith("Scalar") else 8)
    s = net.hessian(case.x, case.y).spectrum()
    assert s.eigenvalues.shape == (10**5, len(s))
    assert len(s.sharpness) == len(s.trace) == len(s.rank()) == 10**5
    for i in (0, 4321, 10**5 - 1):
        one = net[i].hessian(case.x, case.y).spectrum()
        np.testing.assert_allclose(
            s.eigenvalues[i], one.eigenvalues, rtol=1e-12, atol=1e-13 * one.norm
        )


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_tensors_and_slices(kind):
    case = typical(kind)
    net = batch_of(kind, (4,))
    tensors = type(net)(**{name: torch.tensor(getattr(net, name)) for name in case.weights})
    theirs = tensors.hessian(torch.tensor(case.x), torch.tensor(case.y)).spectrum()
    mine = net.hessian(case.x, case.y).spectrum()
    np.testing.assert_allclose(theirs.eigenvalues, mine.eigenvalues, rtol=1e-12, atol=1e-13)
    assert net[1:3].batch_shape == (2,)
    np.testing.assert_array_equal(net[1:3].parameters(), net.parameters()[1:3])


def test_batches_in_any_array_library():
    """The standard, unlike NumPy, wants every dimension of an array named in an index."""
    rng = np.random.default_rng(0)
    w, v = rng.normal(size=(2, 3, 4))
    x, y = rng.normal(size=(2, 7))
    tokens = rng.normal(size=(5, 3))
    strict = array_api_strict.asarray
    for make, inputs, targets in (
        (lambda a: hs.ScalarLinear(a(w), a(v)), x, y),
        (lambda a: hs.ScalarReLU(a(w), a(v)), x, y),
        (lambda a: hs.SelfAttention(a(w[:, 0]), a(w), a(v)).with_sink(a(v[:, 0])), tokens, -tokens),
    ):
        plain, own = make(np.asarray), make(strict)
        data = strict(inputs), strict(targets)
        for index in (0, slice(1, None), (2,), (2, ...)):
            np.testing.assert_array_equal(own[index].parameters(), plain[index].parameters())
        method = "anatomy" if hasattr(plain, "anatomy") else "bounds"
        theirs, ours = getattr(plain, method)(inputs, targets), getattr(own, method)(*data)
        assert repr(ours).count("Array") > 0
        for field in ("sharpness", "condition_number"):
            if hasattr(theirs, field):
                np.testing.assert_array_equal(getattr(ours, field), getattr(theirs, field))
        np.testing.assert_array_equal(
            own.hessian(*data).ggn_error(), plain.hessian(inputs, targets).ggn_error()
        )
