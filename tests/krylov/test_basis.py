"""The basis under any order of growth, rotation, restart and search: HQ = QT + FC throughout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hessence.krylov._basis import Basis
from hessence.krylov._copies import hiding_places, search_for_copies
from hessence.krylov._operand import Operand
from hessence.krylov.request import preference
from tests.krylov.market import KINDS, SPECTRA, matrix
from tests.strategies import at_least

N = 24


def basis_of(H, kind="numpy", seed=0):
    H = KINDS[kind](H)
    return Basis(Operand(H, tuple(H.shape[:-2]), N, H), np.random.default_rng(seed))


def require_relation(basis, H, tolerance=1e-13):
    rows = np.asarray(basis._vectors[..., : basis.total, :])
    Q = np.swapaxes(rows[..., : basis.count, :], -1, -2)
    F = np.swapaxes(rows[..., basis.count :, :], -1, -2)
    images = H @ Q / np.where(basis.scale == 0, 1, basis.scale)[..., None, None]
    np.testing.assert_allclose(images, Q @ basis.inside + F @ basis.outside, atol=tolerance)
    eye = np.broadcast_to(np.eye(basis.total), (*rows.shape[:-2], basis.total, basis.total))
    np.testing.assert_allclose(rows @ np.swapaxes(rows, -1, -2), eye, atol=tolerance)


STEPS = st.sampled_from(["expand", "block", "random", "rotate", "restart", "aside"])


@at_least(60)
@given(
    names=st.lists(st.sampled_from(sorted(SPECTRA)), min_size=1, max_size=3),
    width=st.integers(1, 3),
    steps=st.lists(STEPS, max_size=25),
)
def test_the_relation_is_kept(names, width, steps):
    rng = np.random.default_rng(0)
    H = np.stack([matrix(SPECTRA[name](N, rng), rng) for name in names])
    H = H / np.maximum(np.linalg.norm(H, 2, axis=(-2, -1)), 1e-300)[:, None, None]
    basis = basis_of(H)
    basis.add_random(width)
    basis.expand(width)
    for step in steps:
        if step == "random":
            basis.add_random()
        elif step == "restart":
            _, coordinates = basis.ritz()
            basis.restart(coordinates[..., ::2])
        elif not basis.pending:
            continue
        elif step == "expand":
            basis.expand()
        elif step == "block":
            basis.expand(basis.pending)
        elif step == "rotate":
            turn = np.linalg.qr(rng.normal(size=(len(names), basis.pending, basis.pending)))[0]
            basis.rotate(turn)
        elif step == "aside":
            aside = basis.set_aside()
            basis.add_random()
            if basis.pending:
                basis.expand()
            basis.take_back(*aside)
        require_relation(basis, H)
    assert basis.total <= N


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_basis_is_the_whole_matrix(kind):
    rng = np.random.default_rng(1)
    H = matrix(SPECTRA["degenerate"](N, rng), rng)
    basis = basis_of(H, kind)
    basis.add_random(5)
    while basis.pending:
        basis.expand(min(3, basis.pending))
    assert basis.count == basis.products == N
    values = basis.ritz()[0] * basis.scale
    np.testing.assert_allclose(values, np.linalg.eigvalsh(H), atol=1e-13)


def test_residuals_are_true_without_a_product():
    rng = np.random.default_rng(2)
    H = matrix(SPECTRA["negative_trace"](N, rng), rng)
    basis = basis_of(H)
    basis.add_random()
    for _ in range(7):
        basis.expand()
    values, coordinates = basis.ritz()
    inside, couplings = basis.residuals(values, coordinates)
    vectors = basis.lift_rows(coordinates).T
    true = np.linalg.norm(H @ vectors / basis.scale - vectors * values, axis=0)
    np.testing.assert_allclose(
        np.hypot(inside, np.linalg.norm(couplings, axis=0)), true, atol=1e-14
    )


def test_preference_orders():
    values = np.asarray([[-3.0, -1.0, 0.0, 2.0], [-1.0, 0.0, 5.0, 6.0]])
    assert preference(values, "LA").tolist() == [[3, 2, 1, 0]] * 2
    assert preference(values, "SA").tolist() == [[0, 1, 2, 3]] * 2
    assert preference(values, "BE").tolist() == [[3, 0, 2, 1]] * 2
    assert preference(values, "LM").tolist() == [[0, 3, 1, 2], [3, 2, 0, 1]]


def test_hiding_places_of_each_end():
    margin = np.asarray(0.5)
    nan = np.nan
    for which, wanted, expected in [
        ("LA", [5.0, 3.0, 1.0], [[1.5, 3.0], [nan, nan]]),
        ("SA", [-5.0, -3.0, 1.0], [[nan, nan], [-0.5, 3.0]]),
        ("LM", [-5.0, 3.0, 1.0], [[1.5, 3.0], [1.5, 5.0]]),
        ("BE", [5.0, -4.0, 3.0, -2.0], [[3.5, 5.0], [2.5, 4.0]]),
        ("LA", [2.0, 2.0], [[nan, nan], [nan, nan]]),
    ]:
        np.testing.assert_array_equal(hiding_places(np.asarray(wanted), which, margin), expected)


@pytest.mark.parametrize(("copies", "found"), [(1, False), (2, True)])
def test_a_search_tells_a_copy_from_none(copies, found):
    values = np.concatenate([[1.0] * copies, [0.5], np.linspace(-0.2, 0.2, N - 1 - copies)])
    H = np.diag(values)
    basis = basis_of(H)
    basis.add(np.eye(N)[:, [0, copies]])
    basis.expand(2)
    places = hiding_places(np.asarray([1.0, 0.5]) / basis.scale, "LA", np.asarray(1e-6))
    sure = search_for_copies(basis, places, confidence=0.99, products=12, complement=N - 2)
    assert (sure is None) is found
    assert found or sure >= 0.99
    require_relation(basis, H)


def test_zero_and_torch_start_without_a_scale():
    H = torch.zeros(N, N, dtype=torch.float64)
    basis = basis_of(H, "torch")
    basis.add_random()
    basis.expand()
    basis.expand()
    assert basis.scale == 0
    assert (basis.ritz()[0] == 0).all()
