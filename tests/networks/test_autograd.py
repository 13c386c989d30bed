"""Gradients of eigenvalues through PyTorch, against central differences of LAPACK's eigenvalues."""

import numpy as np
import pytest
import torch

from tests.oracle import KINDS, LOSSES, OWN, Case
from tests.strategies import typical

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
