"""Arrays of other libraries go in and come out, batches too, and PyTorch's gradients flow."""

import array_api_strict
import numpy as np
import pytest
import torch

import hessence as hs
from tests.networks.linear.cases import aligned_case, random_case


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


def test_gradients_where_all_is_flat():
    """Far from the targets, Huber's loss is straight, and its Gauss–Newton part zero."""
    layers = [torch.full(shape, 9.0, requires_grad=True) for shape in ((3, 2), (3, 3), (2, 3))]
    H = hs.DeepLinear(layers).hessian(torch.ones(2, 2), torch.zeros(2, 2), "huber")
    eigenvalues = H.ggn.spectrum().eigenvalues
    assert (eigenvalues == 0).all()
    for gradient in torch.autograd.grad(eigenvalues.sum(), layers, allow_unused=True):
        assert gradient is None or (gradient == 0).all()


def test_gradients_on_white_data_raise_no_warning():
    layers = [torch.full(shape, 0.5, requires_grad=True) for shape in ((1, 2), (2, 1))]
    H = hs.TwoLayerLinear(*layers).hessian(torch.eye(2), torch.ones(2, 2))
    assert H.spectrum().eigenvalues.requires_grad
