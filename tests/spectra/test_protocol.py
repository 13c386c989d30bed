"""What can be asked of a spectrum can be asked of an estimate, or it says why not."""

import pickle
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
    for question in ("rank", "inertia"):
        with pytest.raises(ValueError, match=f"do not tell the {question}"):
            getattr(SOME, question)()


def test_spaces_of_an_estimate():
    assert SOME.labels == ("estimate",)
    for i, space in enumerate(SOME.spaces):
        assert space.multiplicity == 1
        np.testing.assert_array_equal(space.vectors(), SOME.eigenvectors[:, i : i + 1])
        np.testing.assert_allclose(H @ space.vectors(), space.value * space.vectors(), atol=1e-10)
    with pytest.raises(ValueError, match='no labels such as "outlier"'):
        SOME["outlier"]
    for result in (SOME, EXACT):
        with pytest.raises(TypeError, match=r"^a spectrum is indexed by label, got int\.$"):
            result[0]
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


def test_results_and_operators_are_arrays_of_what_they_hold():
    for result in (EXACT, SOME):
        np.testing.assert_array_equal(np.asarray(result), result.eigenvalues)
        assert list(result) == result.eigenvalues.tolist()
        assert np.asarray(result, dtype=np.float32).dtype == np.float32
    np.testing.assert_array_equal(np.asarray(H), H.dense())
    np.testing.assert_allclose(np.asarray(2 * H.restrict([0, 5])), 2 * H.dense()[:6:5, :6:5])
    with pytest.raises(TypeError, match="not iterable"):
        list(H)


RESULTS = {
    "spectrum": lambda: EXACT,
    "batch": lambda: hs.ScalarLinear(X[:2], X[2:4]).hessian(X[:, 0], Y[:, 0]).spectrum(),
    "estimate": lambda: SOME,
    "certificate": lambda: EXACT.verify(H),
    "eigenpairs": lambda: H.top(2),
    "density": lambda: hs.density(H, probes=2, steps=4),
    "trace": lambda: (1.0 * H).trace(),
    "trajectory": lambda: hs.gradient_descent(
        hs.ScalarLinear(X[0], X[1]), X[:, 0], Y[:, 0], lr=0.01, steps=3
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_pickles_prints_and_compares_after_a_file(name, tmp_path):
    result = RESULTS[name]()
    assert pickle.loads(pickle.dumps(result)) == result
    result.save(tmp_path / "result.json")
    assert hs.load(tmp_path / "result.json") == result
    assert " object at " not in repr(result)
    assert result != EXACT.spaces[0]


@pytest.mark.parametrize(
    "operator",
    [
        H, H.ggn, 2 * H - H.ggn, H.restrict([0, 3]),
        hs.ScalarReLU(X[0], Y[0, [0, 1, 2, 0]]).hessian(X[:, 0], Y[:, 0]),
        hs.ScalarAffine(*X[:3]).hessian(X[:, 0], Y[:, 0], "huber"),
        hs.SelfAttention(1.0, X[0], X[1]).hessian(X[:2], X[2:4]),
    ],
)  # fmt: skip
def test_operators_pickle_with_their_error_bounds(operator):
    copy = pickle.loads(pickle.dumps(operator))
    np.testing.assert_array_equal(copy.dense(), operator.dense())
    assert repr(copy) == repr(operator)
    assert copy.rounding() == operator.rounding()


def test_the_trace_is_a_number_or_becomes_one():
    assert float((1.0 * H).trace()) == pytest.approx(float(H.trace()), rel=1e-12)


def test_spaces_pickle_without_their_vectors():
    space = pickle.loads(pickle.dumps(EXACT.spaces[0]))
    assert space == EXACT.spaces[0]
    with pytest.raises(ValueError, match="compute it again"):
        space.vectors()
