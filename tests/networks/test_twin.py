"""The one narrow twin, for any loss of a product of two matrices, against dense autodiff."""

import numpy as np
import pytest
import torch

import hessence as hs
from hessence.networks.twin import TwinSubspaces
from hessence.spectra.subspaces import Columns, Subspaces


class Dense:
    """A matrix in the place of an operator."""

    def __init__(self, entries):
        self.reference, self.shape = entries, entries.shape

    def __matmul__(self, columns):
        return self.reference @ columns


def problem(m, D, K, others, seed=0, rank=None):
    """A smooth loss of A B and some other parameters: its Hessian and G, by autodiff."""
    rng = np.random.default_rng(seed)
    B, A, psi = rng.normal(size=(m, D)), rng.normal(size=(K, m)), rng.normal(size=others)
    if rank is not None:
        B, A = rng.normal(size=(m, rank)) @ rng.normal(size=(rank, D)), 0 * A
    x, mix = torch.as_tensor(rng.normal(size=(7, D))), torch.as_tensor(rng.normal(size=(others, K)))

    def of_product(M, psi):
        return torch.log(torch.cosh(x @ M.T + torch.tanh(psi @ mix))).sum() + (psi**4).sum()

    def loss(theta):
        B, A, psi = theta.split([m * D, K * m, others])
        return of_product(A.reshape(K, m) @ B.reshape(m, D), psi)

    theta = torch.as_tensor(np.concatenate([B.ravel(), A.ravel(), psi]))
    hessian = torch.autograd.functional.hessian(loss, theta).numpy()
    M = torch.as_tensor(A @ B).requires_grad_()
    (G,) = torch.autograd.grad(of_product(M, torch.as_tensor(psi)), M)
    return B, A, hessian, G.numpy()


def check(families, hessian, tolerance=1e-13):
    s = hs.Spectrum(families, "narrow twin", operator=Dense(hessian))
    norm = np.abs(np.linalg.eigvalsh(hessian)).max()
    np.testing.assert_allclose(
        s.eigenvalues, np.linalg.eigvalsh(hessian)[::-1], rtol=0, atol=tolerance * norm
    )
    z = s.eigenvectors
    np.testing.assert_allclose(z.T @ z, np.eye(len(z)), atol=1e-13)
    np.testing.assert_allclose(hessian @ z, z * s.eigenvalues, atol=10 * tolerance * norm)
    return s


def place_in(p):
    def place(dB, dA):
        n = len(dB)
        flat = np.concatenate([dB.reshape(n, -1), dA.reshape(n, -1)], axis=1).T
        return np.concatenate([flat, np.zeros((p - len(flat), n))])

    return place


SHAPES = [(9, 3, 2), (9, 1, 1), (4, 3, 3), (2, 3, 4), (12, 2, 5), (1, 1, 1)]


@pytest.mark.parametrize(("m", "D", "K"), SHAPES)
def test_other_parameters_share_the_block_of_the_twin(m, D, K):
    B, A, hessian, G = problem(m, D, K, others=3)
    p = len(hessian)
    twin = TwinSubspaces(B, A, G, place_in(p))

    def embed(columns):
        vectors = twin.inside().isometry(0).embed(columns[: twin.size])
        vectors[p - 3 :] = columns[twin.size :]
        return vectors

    inside = Subspaces(("twin",) * (twin.size + 3), lambda _: Columns(embed))
    s = check([inside, *twin.outside("/layers")], hessian)
    if m > K + D:
        assert {space.label for space in s["bulk"]} == {
            f"bulk/layers/{i}" for i in range(min(K, D))
        }


@pytest.mark.parametrize("rank", [0, 1])
def test_degenerate_factors(rank):
    B, A, hessian, G = problem(8, 3, 2, others=0, rank=rank)
    twin = TwinSubspaces(B, A, G, place_in(len(hessian)))
    check([twin.inside(), *twin.outside()], hessian)


def test_a_batch_of_networks_keeps_all_directions():
    rng = np.random.default_rng(3)
    W1, W2 = rng.normal(size=(4, 6, 2)), rng.normal(size=(4, 1, 6))
    W2[0] = 0.0  # rank-deficient members do no harm
    W1[1] = W2[1].T @ np.ones((1, 2))
    x, y = rng.normal(size=(9, 2)), rng.normal(size=(9, 1))
    H = hs.TwoLayerLinear(W1, W2).hessian(x, y)
    twin = TwinSubspaces(W1, W2, H.gradient, lambda dB, dA: H.chain.join([dB, dA]))
    assert twin.twin.basis.shape == (4, 6, 3)
    assert twin.size == 7
    s = hs.Spectrum([twin.inside(), *twin.outside()], "narrow twin", operator=H)
    dense = H.dense()
    norm = np.abs(dense).max()
    expected = np.linalg.eigvalsh(dense)[:, ::-1]
    np.testing.assert_allclose(s.eigenvalues, expected, rtol=0, atol=1e-13 * norm)
    for space in s.spaces:
        z = space.vectors()
        scaled = np.asarray(space.value)[:, None, None] * z
        np.testing.assert_allclose(H @ z, scaled, rtol=0, atol=1e-12 * norm)


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_units_do_not_decide_the_width(unit):
    rng = np.random.default_rng(0)
    W1, W2 = rng.normal(size=(50, 3)), rng.normal(size=(2, 50))
    twin = hs.narrow_twin(W1 * [1.0, unit, unit**2], W2 * [[1.0], [1 / unit]])
    assert twin.width == 5
    product = (W2 * [[1.0], [1 / unit]]) @ (W1 * [1.0, unit, unit**2])
    scale = np.abs(W2 * [[1.0], [1 / unit]]) @ np.abs(W1 * [1.0, unit, unit**2])
    assert (np.abs(twin.W2 @ twin.W1 - product) <= 1e-14 * scale).all()
