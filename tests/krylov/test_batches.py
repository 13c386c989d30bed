"""Batches of operators in lock-step: what each would give on its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hessence as hs
from hessence.krylov.eigenpairs import eigenpairs
from tests.krylov.market import KINDS, ORDER, SPECTRA, ends, matrix, numbers


def stack(names, rng):
    return np.stack([matrix(SPECTRA[name](ORDER, rng), rng) for name in names])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["LA", "SA", "LM", "BE"])
def test_a_batch_equals_one_by_one(which, kind):
    rng = np.random.default_rng(0)
    H = stack(SPECTRA, rng).reshape(3, 4, ORDER, ORDER)
    pairs = eigenpairs(KINDS[kind](H), k=4, which=which)
    assert tuple(pairs.eigenvalues.shape) == (3, 4, 4)
    assert tuple(pairs.eigenvectors.shape) == (3, 4, ORDER, 4)
    assert tuple(pairs.resolved.shape) == (3, 4, 4)
    assert pairs.converged
    for index in np.ndindex(3, 4):
        values, errors = numbers(pairs.eigenvalues[index]), numbers(pairs.errors[index])
        exact = ends(np.linalg.eigvalsh(H[index]), 4, which)
        norm = np.linalg.norm(H[index], 2)
        if which == "LM":
            values, exact, errors = np.sort(np.abs(values)), np.sort(np.abs(exact)), errors.max()
        assert (np.abs(values - exact) <= errors + 1e-6 * norm).all()
        vectors, values = numbers(pairs.eigenvectors[index]), numbers(pairs.eigenvalues[index])
        residuals = np.linalg.norm(H[index] @ vectors - vectors * values, axis=0)
        assert (residuals <= numbers(pairs.errors[index]) * (1 + 1e-6)).all()


def test_small_batches_are_solved_densely():
    rng = np.random.default_rng(1)
    H = rng.normal(size=(5, 8, 8))
    H = H + np.swapaxes(H, -1, -2)
    pairs = eigenpairs(H, k=8)
    np.testing.assert_allclose(pairs.eigenvalues, np.linalg.eigvalsh(H)[..., ::-1], atol=1e-13)


def test_two_hundred_networks_cost_the_products_of_the_slowest():
    rng = np.random.default_rng(2)
    net = hs.ScalarLinear(rng.normal(size=(200, 50)), rng.normal(size=(200, 50)))
    H = net.hessian(rng.normal(size=20), rng.normal(size=20))
    pairs = eigenpairs(H, k=3)
    np.testing.assert_allclose(pairs.eigenvalues, H.spectrum().eigenvalues[:, :3], rtol=1e-9)
    assert pairs.products < 20


def test_a_batch_starts_from_a_batch_of_vectors():
    rng = np.random.default_rng(3)
    H = stack(["decaying", "negative_dominant", "outliers_on_a_bulk"], rng)
    cold = eigenpairs(H, k=3)
    warm = eigenpairs(H, k=3, v0=cold.eigenvectors)
    np.testing.assert_allclose(warm.eigenvalues, cold.eigenvalues, atol=1e-9)
    assert warm.products == 3
    assert eigenpairs(H, k=1, v0=cold.eigenvectors[..., 0]).products == 1


def test_a_batch_of_torch_operators_keeps_its_graph_out():
    w = torch.randn(4, 40, dtype=torch.float64, requires_grad=True)
    H = hs.ScalarLinear(w, w.detach().flip(0)).hessian(torch.ones(3).double(), torch.zeros(3))
    pairs = eigenpairs(H, k=2)
    assert not pairs.eigenvalues.requires_grad
    assert not pairs.eigenvectors.requires_grad
