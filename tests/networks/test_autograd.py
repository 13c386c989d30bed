"""Gradients of eigenvalues through PyTorch, against differences and perturbation theory."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from tests import attention_oracle
from tests.oracle import KINDS, LOSSES, OWN, Case
from tests.strategies import cases, typical

STEP = 1e-5
DIAGONAL = np.kron(np.eye(2), [[1.0], [-2.0]])
W = np.asarray([1.0, -2.0, 0.5])


def differences(case, name):
    """Return the derivatives of all eigenvalues, (entries of the weight, eigenvalues)."""
    rows = []
    for index in np.ndindex(case.weights[name].shape):
        moved = []
        for sign in (1, -1):
            weights = {key: weight.copy() for key, weight in case.weights.items()}
            weights[name][index] += sign * STEP
            dense = Case(case.kind, weights, case.x, case.y, case.loss).hessian
            moved.append(np.linalg.eigvalsh(dense)[::-1])
        rows.append((moved[0] - moved[1]) / (2 * STEP))
    return np.asarray(rows)


def simple(values):
    """Return the indices of eigenvalues that no other one is close to."""
    gap = 1e-2 * np.abs(values).max()
    return [i for i, t in enumerate(values) if (np.abs(values - t) > gap).sum() == len(values) - 1]


def assert_gradients(case, only=None, method=None):
    tensors = {k: torch.tensor(w, requires_grad=True) for k, w in case.weights.items()}
    x, y = torch.tensor(case.x), torch.tensor(case.y)
    s = type(case.net)(**tensors).hessian(x, y, OWN.get(case.loss, case.loss)).spectrum()
    assert method is None or s.method == method
    indices = simple(s.eigenvalues.detach().numpy()) if only is None else only
    assert indices
    for name, tensor in tensors.items():
        numeric = differences(case, name)
        for i in indices:
            (exact,) = torch.autograd.grad(s.eigenvalues[i], tensor, retain_graph=True)
            np.testing.assert_allclose(exact.numpy().ravel(), numeric[:, i], rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_simple_eigenvalue(kind, loss):
    assert_gradients(typical(kind, loss, m=2, seed=13))


@pytest.mark.parametrize("loss", LOSSES)
def test_decorrelated_inputs(loss):
    assert_gradients(
        typical("DecoupledInputs", loss, m=2, x=DIAGONAL, seed=13), method="closed form"
    )


@pytest.mark.parametrize("y", [0.0, 3.0])
def test_affine_where_the_theorem_holds(y):
    x = np.asarray([1.0, -1.0])
    weights = {
        "w": np.asarray([1.0, 0.5, 0.25]),
        "v": np.asarray([1.0, 2.0, 2.0]),
        "b": np.asarray([2.0, 1.0, -2.0]),
    }
    beta = weights["w"] @ weights["v"], weights["w"] @ weights["b"]
    case = Case("ScalarAffine", weights, x, y * (beta[0] * x + beta[1]))
    assert_gradients(case, method="closed form")


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("kind", ["ScalarLinear", "ScalarReLU"])
def test_largest_eigenvalue_at_w_equal_to_plus_or_minus_v(kind, sign):
    x, y = np.asarray([1.0, -1.0, 2.0]), np.asarray([0.5, 1.0, -1.0])
    assert_gradients(Case(kind, {"w": sign * W, "v": W}, x, y), only=[0])


@pytest.mark.parametrize("kind", ["DecoupledInputs", "DecoupledOutputs"])
def test_rows_at_w_equal_to_plus_and_minus_v(kind):
    plain = typical(kind)
    weights = {"V": np.stack([W, W]), "W": np.stack([W, -W])}
    assert_gradients(Case(kind, weights, plain.x, plain.y), only=[0])


def test_affine_twin_at_parallel_weights():
    plain = typical("ScalarAffine")
    assert_gradients(
        Case("ScalarAffine", {"w": W, "v": W, "b": -2 * W}, plain.x, plain.y), only=[0]
    )


def test_bulk_trace_and_norm():
    """The derivative of the bulk is that of δ; of trace and squared norm, that of the matrix."""
    case = typical("ScalarLinear", m=4)
    tensors = {k: torch.tensor(w, requires_grad=True) for k, w in case.weights.items()}
    x, y = torch.tensor(case.x), torch.tensor(case.y)
    H = type(case.net)(**tensors).hessian(x, y)
    s, dense = H.spectrum(), H.dense()
    residual = (tensors["w"] @ tensors["v"]) * x - y
    pairs = [
        (s["bulk"][0].value, torch.abs((residual * x).mean())),
        (s.trace, torch.trace(dense)),
        (s.squared_norm, (dense**2).sum()),
    ]
    for mine, plain in pairs:
        for tensor in tensors.values():
            (exact,) = torch.autograd.grad(mine, tensor, retain_graph=True)
            (expected,) = torch.autograd.grad(plain, tensor, retain_graph=True)
            torch.testing.assert_close(exact, expected, rtol=1e-12, atol=1e-12)


def test_a_batch_of_gradients():
    case = typical("ScalarLinear")
    w = torch.tensor(np.stack([case.weights["w"], 2 * case.weights["w"]]), requires_grad=True)
    v = torch.tensor(np.stack([case.weights["v"]] * 2))
    x, y = torch.tensor(case.x), torch.tensor(case.y)
    sharpness = type(case.net)(w, v).hessian(x, y).spectrum().sharpness
    (gradient,) = torch.autograd.grad(sharpness.sum(), w)
    for i in range(2):
        weights = {"w": w[i].detach().numpy().copy(), "v": case.weights["v"]}
        numeric = differences(Case("ScalarLinear", weights, case.x, case.y), "w")[:, 0]
        np.testing.assert_allclose(gradient[i], numeric, rtol=1e-6, atol=2e-7)


# Perturbation theory: the derivative of a simple eigenvalue with eigenvector z is zᵀ dH z, with H
# from autodiff of the loss.


def assert_perturbed(make, cost, theta):
    """Compare the gradients of all simple eigenvalues, at any point, however degenerate."""
    theta = theta.clone().requires_grad_()
    values = make(theta).spectrum().eigenvalues
    (first,) = torch.autograd.grad(cost(theta), theta, create_graph=True)
    rows = [torch.autograd.grad(g, theta, create_graph=True)[0] for g in first]
    dense = torch.stack(rows)
    exact, vectors = torch.linalg.eigh(dense.detach())
    size = float(exact.abs().max())
    for i in range(len(exact)):
        gaps = (exact - exact[i]).abs()
        gaps[i] = size
        if float(gaps.min()) < 1e-3 * size or size == 0:
            continue
        z = vectors[:, i]
        moved = z @ dense @ z
        expected = torch.zeros_like(theta)
        if moved.requires_grad:
            found = torch.autograd.grad(moved, theta, retain_graph=True, allow_unused=True)[0]
            expected = expected if found is None else found
        (mine,) = torch.autograd.grad(values.flip(0)[i], theta, retain_graph=True)
        scale = max(float(expected.abs().max()), size) * size / float(gaps.min())
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-11 * scale)


@given(st.data())
def test_any_scalar_network(data):
    case = data.draw(cases(data.draw(st.sampled_from(list(KINDS))), data.draw(LOSS)))
    if case.kind == "ScalarReLU" and (case.weights["v"] == 0).any():
        case.weights["v"][case.weights["v"] == 0] = 0.5

    def make(theta):
        order, shape = KINDS[case.kind].order, np.shape(next(iter(case.weights.values())))
        pieces = dict(zip(order, torch.reshape(theta, (len(order), *shape)), strict=True))
        loss = OWN.get(case.loss, case.loss)
        return (
            KINDS[case.kind]
            .make(**pieces)
            .hessian(torch.tensor(case.x), torch.tensor(case.y), loss)
        )

    assert_perturbed(make, lambda theta: case.cost(case.outputs(theta)), case.theta)


LOSS = st.sampled_from(["mse", "mse", "logistic", "own"])
SHORT = st.sampled_from([0.0, 1.0, -1.0, 0.5])


@given(st.data())
def test_any_attention(data):
    """w_Q = ±w_K, zero weights and a perfect fit among them."""
    w_v, a, b = (data.draw(SHORT) for _ in range(3))
    q = np.asarray([a, b])
    k = data.draw(st.sampled_from([q, -q, 0 * q, q[::-1], 0.5 * q + 0.25]))
    x = np.asarray([[1.0, -0.5, 2.0], [0.5, 1.5, -1.0]])
    net = hs.SelfAttention(w_v, q, k)
    y = np.asarray(net(x)) if data.draw(st.booleans()) else x[:, ::-1].copy()
    theta = torch.tensor(np.asarray(net.parameters()))

    def make(theta):
        parts = hs.SelfAttention(theta[0], theta[1:3], theta[3:])
        return parts.hessian(torch.tensor(x), torch.tensor(y))

    def cost(theta):
        return attention_oracle.cost(attention_oracle.outputs(theta, x, None), y, None, "mse")

    assert_perturbed(make, cost, theta)


@pytest.mark.parametrize("dims", [(2, 3, 1), (2, 3, 2), (2, 2, 2, 2)])
def test_linear_networks_at_a_perfect_fit(dims):
    """The Gauss–Newton part has the same eigenvalues there, and other derivatives."""
    rng = np.random.default_rng(0)
    net = hs.DeepLinear([rng.normal(size=(b, a)) for a, b in itertools.pairwise(dims)])
    x = rng.normal(size=(6, dims[0]))
    y = np.asarray(net(x))

    def layers(theta):
        found, start = [], 0
        for a, b in itertools.pairwise(dims):
            found.append(theta[start : start + a * b].reshape(b, a))
            start += a * b
        return found

    def cost(theta):
        f = torch.tensor(x)
        for w in layers(theta):
            f = f @ w.T
        return ((f - torch.tensor(y)) ** 2).sum() / (2 * len(x))

    assert_perturbed(
        lambda theta: hs.DeepLinear(layers(theta)).hessian(torch.tensor(x), torch.tensor(y)),
        cost,
        torch.tensor(np.asarray(net.parameters())),
    )


@pytest.mark.parametrize("part", ["hessian", "ggn", "functional"])
@pytest.mark.parametrize("seen", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_that_are_always_zero(kind, seen, part):
    """Nothing depends on what reads them: its derivatives are 0, as those of the dense matrix."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    rows = {"DecoupledInputs": (2, 3), "DecoupledOutputs": (2, 3)}.get(kind, (3,))
    weights = {name: draw(*rows).requires_grad_() for name in KINDS[kind].order}
    x, y = seen * draw(5), draw(5)
    if kind == "DecoupledInputs":
        x = torch.stack([x, 0 * x], dim=1)
    if kind == "DecoupledOutputs":
        y = draw(5, 2)
    H = getattr(hs, kind)(**weights).hessian(x, y)
    H = H if part == "hessian" else getattr(H, part)
    values, squares = H.spectrum().eigenvalues, (H.dense() ** 2).sum()
    tensors = list(weights.values())
    found = torch.autograd.grad(
        (values**2).sum(), tensors, retain_graph=True, materialize_grads=True
    )
    exact = torch.autograd.grad(squares, tensors, retain_graph=True, materialize_grads=True)
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-12)
    for value in values:
        given = torch.autograd.grad(value, tensors, retain_graph=True, materialize_grads=True)
        assert all(bool(torch.isfinite(each).all()) for each in given)


@pytest.mark.parametrize("kind", KINDS)
def test_logistic_loss_of_predictions_that_are_zero(kind):
    """At w = 0, where training may start, and of samples at zero."""
    case = typical(kind, "logistic", m=2)
    last = next(name for name in ("w", "W") if name in case.weights)
    rows = slice(None) if case.weights[last].ndim == 1 else 0
    case.weights[last][rows] = 0.0
    H = case.net.hessian(case.x, case.y, "logistic")
    assert (np.asarray(case.net(case.x)) == 0).any() or case.weights[last].ndim == 2
    indices = simple(np.linalg.eigvalsh(H.dense())[::-1])
    assert_gradients(case, only=indices[:1] or [0])


@pytest.mark.parametrize("part", ["hessian", "ggn", "functional"])
@pytest.mark.parametrize("dims", [(2, 2), (2, 3, 1), (2, 2, 2, 2)])
def test_a_loss_that_is_linear_at_the_predictions(dims, part):
    draw = torch.Generator().manual_seed(0)
    shapes = list(itertools.pairwise(dims))
    weights = [
        torch.randn(b, a, generator=draw, dtype=torch.float64).requires_grad_() for a, b in shapes
    ]
    x = torch.randn(4, dims[0], generator=draw, dtype=torch.float64)
    y = torch.full((4, dims[-1]), 1e3, dtype=torch.float64)
    # All residuals are beyond the threshold, so that the second derivative of the loss is zero.
    H = hs.DeepLinear(weights).hessian(x, y, "huber")
    found = (H if part == "hessian" else getattr(H, part)).spectrum().eigenvalues.max()
    found.backward()
    gradients = [weight.grad for weight in weights]
    assert all(gradient is not None for gradient in gradients)
    if part == "ggn" or len(dims) == 2:
        assert float(found.detach()) == 0.0
        assert not any(bool(gradient.any()) for gradient in gradients)
