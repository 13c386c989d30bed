"""The ReLU network: cells without data or units, zeros of x and of v."""

import warnings

import numpy as np
import pytest

import hessence as hs
from tests.oracle import LOSSES, Case, assert_spectrum
from tests.strategies import typical

W = np.asarray([1.0, -2.0, 0.5, 3.0])
V = np.asarray([1.0, -1.0, 2.0, -0.5])
X, Y = np.asarray([1.0, -1.0, 2.0, -0.5]), np.asarray([0.53, 1.07, -1.11, 0.27])
CORNERS = {
    "both cells": (W, V, X, Y),
    "no data on the left": (W, V, np.abs(X), Y),
    "no data on the right": (W, V, -np.abs(X), Y),
    "no units on the left": (W, np.abs(V), X, Y),
    "no units on the right": (W, -np.abs(V), X, Y),
    "nothing meets": (W, -np.abs(V), np.abs(X), Y),
    "one unit in a cell": (W, np.asarray([1.0, -1.0, -2.0, -0.5]), X, Y),
    "one unit in each": (W[:2], V[:2], X, Y),
    "one unit": (W[:1], V[:1], X, Y),
    "zeros in x": (W, V, X * [1, 0, 0, 1], Y),
    "only zeros": (W, V, 0 * X, Y),
    "kink": (W, V * [1, 0, 1, 1], X, Y),
    "kinks only": (W, 0 * V, X, Y),
    "a kink and a zero in x": (W, V * [0, 1, 1, 1], X * [0, 1, 1, 1], Y),
    "w = v in both cells": (V, V, X, Y),
    "w = −v in both cells": (-V, V, X, Y),
    "no outer weights": (0 * W, V, X, Y),
}


@pytest.mark.filterwarnings("ignore::hessence.KinkWarning")
@pytest.mark.parametrize("name", CORNERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_corners(name, loss):
    w, v, x, y = CORNERS[name]
    case = Case("ScalarReLU", {"w": w, "v": v}, x, np.sign(y) if loss == "logistic" else y, loss)
    H = case.hessian_operator
    for part, dense in [(H, case.hessian), (H.ggn, case.ggn)]:
        assert_spectrum(part.spectrum(), dense, case.tolerance)
    assert_spectrum(H.functional.spectrum(), case.hessian - case.ggn, case.tolerance)
    np.testing.assert_allclose(case.net.gradient(*case.data), case.gradient, rtol=0, atol=1e-13)
    np.testing.assert_allclose(case.net(x), case.predictions[:, 0], rtol=1e-14)


def labels(w, v, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hs.KinkWarning)
        s = hs.ScalarReLU(w, v).hessian(x, Y).spectrum()
    return {space.label: 0 for space in s.spaces} | {
        label: sum(space.multiplicity for space in s[label])
        for label in {p.label for p in s.spaces}
    }


def test_labels_carry_the_cell():
    units = {"outlier/+cell": 2, "bulk/+cell": 2, "outlier/-cell": 2, "bulk/-cell": 2}
    assert labels(W, V, X) == units
    assert labels(W, np.asarray([1.0, 1.0, 1.0, -1.0]), X) == {
        "outlier/+cell": 2,
        "bulk/+cell": 4,
        "outlier/-cell": 2,
    }
    assert labels(W, V, np.abs(X)) == {"outlier/+cell": 2, "bulk/+cell": 2, "flat/-cell": 4}
    assert labels(W, V * [1, 0, 1, 1], X)["flat/kink"] == 2


def test_vectors_vanish_outside_their_cell():
    s = hs.ScalarReLU(W, V).hessian(X, Y).spectrum()
    for space in s.spaces:
        other = V < 0 if space.label.endswith("+cell") else V > 0
        assert np.all(space.vectors()[np.tile(other, 2)] == 0)


@pytest.mark.parametrize(("v", "count"), [(V, 0), (V * [0, 1, 1, 1], 1), (V * [0, 0, 1, 1], 2)])
def test_one_warning_for_each_hessian_with_kinks(v, count):
    net = hs.ScalarReLU(W, v)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        H = net.hessian(X, Y)
        assert len(caught) == (count > 0)
        H.spectrum(), H.ggn.spectrum(), net(X), net.gradient(X, Y), net.loss(X, Y)
        assert len(caught) == (count > 0)
        net.hessian(X, Y)
    assert len(caught) == 2 * (count > 0)
    for warning in caught:
        assert warning.category is hs.KinkWarning
        assert str(count) in str(warning.message)
        assert warning.filename == __file__


def test_sharpness_is_the_larger_cell():
    case = typical("ScalarReLU", m=6)
    s = case.hessian_operator.spectrum()
    cells = [max(p.value for p in s[f"outlier/{sign}cell"]) for sign in "+-"]
    assert s.sharpness == max(cells) == pytest.approx(np.linalg.eigvalsh(case.hessian)[-1])


def test_each_cell_is_a_linear_network_on_its_share_of_the_data():
    s = hs.ScalarReLU(W, V).hessian(X, Y).spectrum()
    for sign, cell, data in [("+", V > 0, X > 0), ("-", V < 0, X <= 0)]:
        linear = hs.ScalarLinear(W[cell], V[cell]).hessian(X[data], Y[data]).spectrum()
        values = np.concatenate(
            [np.full(p.multiplicity, p.value) for p in s.spaces if p.label.endswith(f"{sign}cell")]
        )
        np.testing.assert_allclose(
            np.sort(values)[::-1], data.mean() * linear.eigenvalues, rtol=1e-14
        )


@pytest.mark.filterwarnings("ignore::hessence.KinkWarning")
def test_networks_of_a_batch_may_differ_in_their_cells():
    v = np.stack([V, np.abs(V), V * [0, 1, 1, 1], 0 * V])
    batch = hs.ScalarReLU(np.stack([W] * 4), v)
    s = batch.hessian(X, Y).spectrum()
    for i in range(4):
        one = batch[i].hessian(X, Y).spectrum()
        np.testing.assert_allclose(s.eigenvalues[i], one.eigenvalues, rtol=1e-14, atol=1e-15)
        assert s.sharpness[i] == pytest.approx(one.sharpness, rel=1e-14)
        assert s.rank()[i] == one.rank()
    with pytest.raises(ValueError, match="pick one network"):
        s.spaces[0].vectors()


def test_inner_products_are_summed_once(monkeypatch):
    monkeypatch.delattr("hessence.networks.scalar.network.gram")
    net = hs.ScalarReLU(w=[1.0, 2.0, 3.0], v=[1.0, -1.0, 2.0])
    assert net.hessian([1.0, -1.0], [0.0, 1.0]).numbers is net._gram
