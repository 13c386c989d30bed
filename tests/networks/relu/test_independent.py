"""Independent cells against dense matrices by autodiff, with the blocks between cells cut out."""

from __future__ import annotations

import warnings

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import hessence as hs
from tests import bounded, extended
from tests.linear_oracle import assert_same_spectrum
from tests.networks.relu.relu_oracle import typical


def cut(case, layer=1):
    """Return H without the blocks between different cells of a layer, and other weights."""
    owners = owners_of(case.net(), case.x, layer)
    return np.where(owners[:, None] == owners, case.hessian, 0)


def owners_of(net, x, layer):
    """Return the cell of a layer that owns each parameter, −1 for all other parameters."""
    owner = np.full(net.dims[layer], -1)
    for c, units in enumerate(net.cells(x)[layer - 1]):
        owner[list(units)] = c
    owners = []
    for name, weight in net._weights.items():
        own = np.full(weight.shape, -1)
        if name in (f"W{layer}", f"b{layer}"):
            own.T[:] = owner
        elif name == f"W{layer + 1}":
            own[:] = owner
        owners.append(own.ravel())
    return np.concatenate(owners)


def compare(case, layer=1):
    """Compare spectrum, distance and bounds with dense matrices."""
    cells = case.net().independent_cells(case.x, case.y, case.loss, layer)
    dense = cut(case, layer)
    assert_same_spectrum(cells.spectrum, dense, case.norm, 1e-13)
    distance = np.linalg.norm(case.hessian - dense, 2)
    assert 0 <= cells.distance - distance <= 1e-11 * case.norm
    values = np.linalg.eigvalsh(case.hessian)[::-1]
    slack = 1e-14 * case.norm
    assert (cells.lower <= values + slack).all()
    assert (values <= cells.upper + slack).all()


@given(
    st.sampled_from([((2, 12, 2), ""), ((1, 8, 1), ""), ((3, 10, 1), "11"), ((2, 9, 3), "01")]),
    st.sampled_from(["mse", "cross-entropy"]), st.integers(1, 6), st.integers(0, 99),
)  # fmt: skip
def test_against_autodiff(shape, loss, n, seed):
    dims, biases = shape
    compare(typical(dims, biases, loss=loss if dims[-1] > 1 else "mse", n=n, seed=seed))


@given(
    st.sampled_from([((2, 9, 8, 2), "101"), ((1, 8, 6, 5, 1), ""), ((2, 7, 6, 5, 3), "1111")]),
    st.sampled_from([0.0, 0.3]), st.integers(1, 4), st.integers(0, 99),
)  # fmt: skip
def test_every_layer_of_deeper_networks(shape, slope, n, seed):
    case = typical(*shape, slope, n=n, seed=seed)
    for layer in range(1, len(shape[0]) - 1):
        compare(case, layer)


@example(190)
@given(st.integers(0, 2**32))
def test_errors_and_bounds_hold_in_odd_units(seed):
    """Against extended precision, where the rounding of all of H may be more than that of H′."""
    _, net, x, y, loss, f = bounded.draw(np.random.default_rng(seed), "ReLU")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hs.KinkWarning)
        whole = bounded.dense(net, x, y, loss, f)
        for layer in range(1, len(net.dims) - 1):
            cells, owners = net.independent_cells(x, y, loss, layer), owners_of(net, x, layer)
            same = owners[:, None] == owners
            inside, outside = (
                extended.eigenvalues(np.where(kept, whole, 0)) for kept in (same, ~same)
            )
            floor = 16 * len(whole) * extended.SPACING * np.abs(whole).max() + 1e-280
            gaps = np.abs(cells.spectrum.eigenvalues - inside)
            assert (gaps <= cells.spectrum.errors + floor).all()
            assert np.abs(outside).max() <= cells.distance + floor
            values = extended.eigenvalues(whole)
            assert (cells.lower <= values + floor).all()
            assert (values <= cells.upper + floor).all()


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


def test_labels_of_a_deeper_network():
    case = typical((2, 9, 8, 2), n=3)
    cells = case.net().independent_cells(case.x, case.y, layer=2)
    assert "twin/other layers" in {space.label for space in cells.spectrum["twin"]}


@pytest.mark.parametrize("layer", [0, 3, "first", 1.0, True])
def test_a_layer_that_is_not_hidden_is_refused(layer):
    case = typical((2, 4, 4, 2))
    with pytest.raises(
        ValueError, match=f"layer must be an integer between 1 and 2, got {layer!r}"
    ):
        case.net().independent_cells(case.x, case.y, layer=layer)


def test_everything_is_dead():
    net = hs.TwoLayerReLU(-np.ones((5, 2)), np.ones((2, 5)))
    cells = net.independent_cells(np.ones((4, 2)), np.ones((4, 2)))
    assert cells.distance == 0
    assert len(cells.spectrum) == 20
