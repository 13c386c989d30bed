"""Independent cells against dense matrices by autodiff, with the blocks between cells cut out."""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from tests.linear_oracle import assert_same_spectrum
from tests.networks.relu.relu_oracle import typical


def cut(case):
    """Return H without the blocks between parameters of different cells."""
    net = case.net()
    owner = np.full(net.dims[1], -1)
    for c, units in enumerate(net.cells(case.x)[0]):
        owner[list(units)] = c
    owners = []
    for name, weight in net._weights.items():
        first = (
            np.broadcast_to(owner.reshape(-1, *[1] * (weight.ndim - 1)), weight.shape)
            if name in ("W1", "b1")
            else None
        )
        second = np.broadcast_to(owner, weight.shape) if name == "W2" else None
        own = next((o for o in (first, second) if o is not None), np.full(weight.shape, -1))
        owners.append(own.ravel())
    owners = np.concatenate(owners)
    return np.where(owners[:, None] == owners, case.hessian, 0)


@given(
    st.sampled_from([((2, 12, 2), ""), ((1, 8, 1), ""), ((3, 10, 1), "11"), ((2, 9, 3), "01")]),
    st.sampled_from(["mse", "cross-entropy"]), st.integers(1, 6), st.integers(0, 99),
)  # fmt: skip
def test_against_autodiff(shape, loss, n, seed):
    dims, biases = shape
    case = typical(dims, biases, loss=loss if dims[-1] > 1 else "mse", n=n, seed=seed)
    cells = case.net().independent_cells(case.x, case.y, case.loss)
    dense = cut(case)
    assert_same_spectrum(cells.spectrum, dense, case.norm, 1e-13)
    distance = np.linalg.norm(case.hessian - dense, 2)
    assert 0 <= cells.distance - distance <= 1e-11 * case.norm
    values = np.linalg.eigvalsh(case.hessian)[::-1]
    slack = 1e-14 * case.norm
    assert (cells.lower <= values + slack).all()
    assert (values <= cells.upper + slack).all()


def test_one_input_has_independent_cells():
    case = typical((1, 20, 1), n=9)
    cells = case.net().independent_cells(case.x, case.y)
    assert cells.distance < 1e-12 * case.norm
    assert "distance" in repr(cells)


def test_labels_and_other_arrays():
    case = typical((2, 20, 2), "01", n=4)
    expected = case.net().independent_cells(case.x, case.y)
    labels = {space.label for space in expected.spectrum["twin"]}
    assert labels == {"twin/output"} | {
        f"twin/cell {c}" for c in range(len(case.net().cells(case.x)[0]))
    }
    for convert in (array_api_strict.asarray, torch.tensor):
        found = case.net(convert).independent_cells(convert(case.x), convert(case.y))
        assert float(found.distance) == pytest.approx(float(expected.distance))


def test_deeper_networks_are_refused():
    case = typical((2, 4, 4, 2))
    with pytest.raises(ValueError, match=r"one hidden layer: .* this network has 2"):
        case.net().independent_cells(case.x, case.y)


def test_everything_is_dead():
    net = hs.TwoLayerReLU(-np.ones((5, 2)), np.ones((2, 5)))
    cells = net.independent_cells(np.ones((4, 2)), np.ones((4, 2)))
    assert cells.distance == 0
    assert len(cells.spectrum) == 20
