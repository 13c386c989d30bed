"""What can be asked of a spectrum can be asked of an estimate, or it says why not."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import hessence as hs

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(30, 4)), RNG.normal(size=(30, 3))
H = hs.TwoLayerLinear(RNG.normal(size=(6, 4)), RNG.normal(size=(3, 6))).hessian(X, Y)
EXACT, ESTIMATE, SOME = H.spectrum(), (1.0 * H).spectrum(None), (1.0 * H).spectrum(3)
PROPERTIES = """
    eigenvalues eigenvectors errors values multiplicities spaces labels sharpness trace
    trace_stderr squared_norm norm logabsdet condition_number density exact method reason message
    outcome converged products size
"""


def test_both_can_be_asked_the_same():
    for result in (EXACT, ESTIMATE):
        for name in PROPERTIES.split():
            assert getattr(result, name) is not None
        assert result.rank() == sum(result.inertia()[:2])
        assert result.verify(H).worst < 1e-12


def test_numbers_agree():
    truth = np.linalg.eigvalsh(H.dense())[::-1]
    for result in (EXACT, ESTIMATE):
        assert (np.abs(result.eigenvalues - truth) <= result.errors).all()
        np.testing.assert_allclose(result.squared_norm, (truth**2).sum(), rtol=1e-12)
        np.testing.assert_allclose(result.sharpness, truth[0], rtol=1e-12)
        np.testing.assert_allclose(result.trace, truth.sum(), rtol=1e-12)
    assert EXACT.inertia(1e-9) == ESTIMATE.inertia(1e-9)
    for name in ("logabsdet", "condition_number"):
        curved = EXACT.eigenvalues[np.abs(EXACT.eigenvalues) > 1e-9]
        expected = {
            "logabsdet": np.log(np.abs(curved)).sum(),
            "condition_number": np.abs(curved).max() / np.abs(curved).min(),
        }[name]
        np.testing.assert_allclose(getattr(EXACT, name), expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["squared_norm", "logabsdet", "condition_number"])
def test_a_part_of_the_spectrum_says_what_it_does_not_tell(name):
    with pytest.raises(ValueError, match=r"3 of 42 eigenvalues do not tell .*k=None"):
        getattr(SOME, name)


def test_a_part_of_the_spectrum_has_no_rank():
    for question in (SOME.rank, SOME.inertia):
        with pytest.raises(ValueError, match="do not tell the inertia"):
            question()


def test_spaces_of_an_estimate():
    assert SOME.labels == ("estimate",)
    for i, space in enumerate(SOME.spaces):
        assert space.multiplicity == 1
        np.testing.assert_array_equal(space.vectors(), SOME.eigenvectors[:, i : i + 1])
        np.testing.assert_allclose(H @ space.vectors(), space.value * space.vectors(), atol=1e-10)
    with pytest.raises(ValueError, match='no labels such as "outlier"'):
        SOME["outlier"]
    loaded = hs.Estimate.from_dict(SOME.to_dict())
    with pytest.raises(ValueError, match="eigenvectors are gone"):
        loaded.spaces[0].vectors()


def test_tables(monkeypatch):
    frames = SimpleNamespace(DataFrame=dict)
    monkeypatch.setitem(sys.modules, "pandas", frames)
    for result in (EXACT, SOME):
        table = result.to_frame()
        assert list(table) == ["label", "value", "multiplicity", "error"]
        np.testing.assert_array_equal(table["value"], result.values)
        assert {len(column) for column in table.values()} == {len(result.spaces)}
        assert (np.asarray(table["error"]) > 0).all()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="to_frame needs pandas: pip install pandas"):
        EXACT.to_frame()


def test_html():
    shown = EXACT._repr_html_()
    assert shown.startswith("<table><caption>42 eigenvalues, ")
    assert shown.count("<tr>") == 1 + 12 + 1
    assert f"… {len(EXACT.spaces) - 12} more …" in shown
    assert SOME._repr_html_().count("<tr>") == 1 + 3
    net = hs.ScalarLinear(RNG.normal(size=(2, 3)), RNG.normal(size=(2, 3)))
    batch = net.hessian(X[:, 0], Y[:, 0]).spectrum()
    assert batch._repr_html_().startswith("<pre>6 eigenvalues of each of (2,) networks")
    with pytest.raises(ValueError, match="a table belongs to one network"):
        batch._columns(slice(None))
