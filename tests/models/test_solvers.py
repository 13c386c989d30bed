"""The solvers on operators of models: what breaks other libraries of this field."""

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh
from torch import nn

import hessence as hs
from tests.models.market import Problem, numbers, problem


def tanh_mlp():
    layers = [nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 2)]
    return Problem(nn.Sequential(*layers), numbers(11, 3), numbers(11, 2), nn.MSELoss())


def relu_mlp():
    layers = [nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3)]
    y = torch.randint(3, (11,))
    return Problem(nn.Sequential(*layers), numbers(11, 3), y, nn.CrossEntropyLoss())


def layer_norm():
    layers = [nn.Linear(3, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4)]
    nn.init.normal_(layers[1].weight)
    return Problem(nn.Sequential(*layers), numbers(11, 3), numbers(11, 4), nn.MSELoss())


def gpt():
    return problem("gpt")


def large(make):
    """A model that is too large for the dense route to be taken by itself."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        case = make()
    case.model.double()
    assert sum(p.numel() for p in case.model.parameters()) > 100
    return case


def values(H):
    return torch.linalg.eigvalsh(H.dense()).flip(0).numpy()


@pytest.mark.parametrize("which", ["LA", "SA", "LM", "BE"])
@pytest.mark.parametrize("make", [gpt, layer_norm, relu_mlp])
def test_eigenvalues(make, which):
    case = large(make)
    H = hs.hessian(case.model, case.data, case.loss)
    every = values(H)
    expected = {
        "LA": every[:4], "SA": every[-4:], "BE": np.concatenate([every[:2], every[-2:]]),
        "LM": np.sort(every[np.argsort(-np.abs(every))[:4]])[::-1],
    }[which]  # fmt: skip
    pairs = hs.eigenpairs(H, k=4, which=which, tol=1e-9)
    np.testing.assert_allclose(pairs.eigenvalues.numpy(), expected, atol=1e-8)
    assert pairs.converged
    assert pairs.method == "Lanczos"


def upside_down():
    """A loss that is to be maximised: largest in magnitude are the negative eigenvalues."""
    case = large(tanh_mlp)
    return hs.hessian(case.model, case.data, lambda f, y: -(f - y).pow(2).mean())


def test_the_largest_magnitude_is_negative():
    H = upside_down()
    every = values(H)
    assert -every[-2] > 1.1 * every[0] > 0
    pairs = hs.eigenpairs(H, k=2, which="LM", tol=1e-9)
    assert pairs.method == "Lanczos"
    np.testing.assert_allclose(pairs.eigenvalues.numpy(), every[-2:], atol=1e-8)
    pairs = hs.eigenpairs(H, k=2, which="LA", tol=1e-9)
    np.testing.assert_allclose(pairs.eigenvalues.numpy(), every[:2], atol=1e-8)


def test_a_negative_trace():
    H = upside_down()
    expected = values(H).sum()
    assert expected < 0
    found = hs.trace(H, products=60)
    assert abs(float(found.value) - expected) < 5 * float(found.stderr) + 1e-9
    assert float(found.stderr) < 0.2 * abs(expected)


class ScalarLinear(nn.Module):
    """f(x) = <w, v> x, whose spectrum is known in closed form, with multiplicities."""

    def __init__(self, w, v):
        super().__init__()
        self.w, self.v = nn.Parameter(torch.tensor(w)), nn.Parameter(torch.tensor(v))

    def forward(self, x):
        return (self.w @ self.v) * x


def test_exact_multiplicities():
    rng = np.random.default_rng(0)
    w, v, x = rng.normal(size=150), rng.normal(size=150), rng.normal(size=20)
    y = -x
    exact = hs.ScalarLinear(w, v).hessian(x, y).spectrum()
    assert max(exact.multiplicities) == 149
    H = hs.hessian(ScalarLinear(w, v), (torch.tensor(x), torch.tensor(y)))
    np.testing.assert_allclose(values(H), exact.eigenvalues, atol=1e-12)
    for which, part in (("LA", slice(10)), ("SA", slice(-10, None))):
        pairs = hs.eigenpairs(H, k=10, which=which, tol=1e-10)
        np.testing.assert_allclose(pairs.eigenvalues.numpy(), exact.eigenvalues[part], atol=1e-7)
        assert pairs.method == "Lanczos"


def test_the_density_has_no_copies_of_the_largest():
    """Nodes beyond the order of the matrix would be ghosts: 54 parameters, 54 steps."""
    case = problem("tanh_mlp")
    H = hs.hessian(case.model, case.data, case.loss)
    density = hs.density(H, probes=8, steps=54)
    every = values(H)
    assert every[0] - every[1] > 1e-2
    near = np.abs(np.asarray(density.nodes) - every[0]) < 1e-3
    assert (near.sum(axis=1) == 1).all()
    nodes, weights = (np.asarray(a).ravel() for a in (density.nodes, density.weights))
    assert abs(nodes.max() - every[0]) < 1e-8
    mean = (weights * nodes).sum() / weights.sum()
    assert abs(mean - every.mean()) < 5 * every.std() / np.sqrt(8 * len(every))


@pytest.mark.parametrize("make", [tanh_mlp, gpt])
def test_the_same_seed_twice(make):
    case = large(make)
    answers = []
    for _ in range(2):
        H = hs.hessian(case.model, case.data, case.loss)
        pairs = hs.eigenpairs(H, k=3, rng=4)
        found = pairs.eigenvalues, pairs.eigenvectors, hs.trace(H, products=9, rng=4).value
        density = hs.density(H, probes=2, steps=8, rng=4)
        answers.append([np.asarray(a) for a in (*found, density.nodes, density.weights)])
        torch.rand(5)
    for first, second in zip(*answers, strict=True):
        np.testing.assert_array_equal(first, second)


def test_scipys_solver_agrees():
    case = problem("gpt")
    H = hs.hessian(case.model, case.data, case.loss)
    start = numbers(H.shape[0]).numpy()
    theirs = eigsh(H.to_scipy(), k=3, which="LA", v0=start, return_eigenvectors=False)
    ours = hs.eigenpairs(H, k=3, tol=1e-10).eigenvalues.numpy()
    np.testing.assert_allclose(np.sort(theirs), np.sort(ours), atol=1e-8)
