"""Spectra as users hold them, against NumPy on the dense matrix."""

import json
import os
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from hessence.spectra.subspaces import Subspaces
from tests.oracle import KINDS
from tests.strategies import cases, typical

X, Y = np.asarray([1.0, -1.0, 2.0]), np.asarray([2.0, -1.0, 0.5])


def diagonal(values, multiplicities, labels):
    """Return a spectrum with the given groups, and vectors from the columns of the identity."""
    starts = np.cumsum([0, *multiplicities])

    def block(g):
        def carry(coordinates, copies):
            return coordinates * np.eye(starts[-1])[:, starts[g] : starts[g + 1]] @ copies

        return Subspaces(
            (labels[g],), lambda _: carry, multiplicities[g], matrix=np.asarray([[values[g]]])
        )

    return hs.Spectrum([block(g) for g in range(len(values))], "by hand")


GROUPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, -1.0]) | st.floats(-5, 5),
        st.integers(0, 3),
        st.sampled_from(["outlier", "bulk/x1", "flat"]),
    ),
    min_size=1,
    max_size=6,
).filter(lambda groups: any(count for _, count, _ in groups))


@given(GROUPS)
def test_groups_are_sorted_and_consistent(groups):
    values, counts, labels = zip(*groups, strict=True)
    s = diagonal(values, counts, labels)
    expected = np.sort(np.repeat(values, counts))[::-1]
    np.testing.assert_array_equal(s.eigenvalues, expected)
    np.testing.assert_array_equal(np.repeat(s.values, s.multiplicities), expected)
    assert [(p.value, p.multiplicity) for p in s.spaces] == list(
        zip(s.values, s.multiplicities, strict=True)
    )
    assert len(s) == sum(counts) == len(expected)
    assert s.sharpness == expected[0]
    assert all(space.multiplicity > 0 for space in s.spaces)
    assert sum(space.multiplicity for space in s["bulk"]) == sum(
        count for _, count, label in groups if label == "bulk/x1"
    )


@given(GROUPS)
def test_numbers_against_numpy(groups):
    values, counts, labels = zip(*groups, strict=True)
    s, dense = diagonal(values, counts, labels), np.diag(np.repeat(values, counts))
    size = np.abs(dense).max()
    curved = np.abs(np.diag(dense))[np.abs(np.diag(dense)) > 100 * 2.0**-52 * size]
    np.testing.assert_allclose(s.trace, np.trace(dense), rtol=0, atol=1e-15 * len(dense) * size)
    np.testing.assert_allclose(s.squared_norm, np.linalg.norm(dense) ** 2, rtol=1e-14)
    assert s.norm == size
    assert s.rank() == np.linalg.matrix_rank(dense, tol=100 * 2.0**-52 * size)
    np.testing.assert_allclose(s.logabsdet, np.log(curved).sum(), rtol=0, atol=1e-12)
    if curved.size:
        np.testing.assert_allclose(s.condition_number, curved.max() / curved.min(), rtol=1e-15)
    else:
        assert np.isnan(s.condition_number)


@pytest.mark.parametrize("kind", KINDS)
def test_determinant_rank_and_inertia_of_networks(kind):
    case = typical(kind, m=2)
    s, truth = case.hessian_operator.spectrum(), np.linalg.eigvalsh(case.hessian)
    flat = np.abs(truth) < 1e-13 * case.norm
    assert s.rank() == np.linalg.matrix_rank(case.hessian)
    assert s.inertia() == ((truth[~flat] > 0).sum(), (truth[~flat] < 0).sum(), flat.sum())
    np.testing.assert_allclose(s.logabsdet, np.log(np.abs(truth[~flat])).sum(), rtol=1e-12)
    if not flat.any():
        np.testing.assert_allclose(s.logabsdet, np.linalg.slogdet(case.hessian)[1], rtol=1e-12)
        condition = np.linalg.cond(case.hessian)  # NumPy's own error is ε times it
        np.testing.assert_allclose(s.condition_number, condition, rtol=1e-15 * condition)


@pytest.mark.parametrize(
    ("tol", "inertia"), [(None, (2, 1, 2)), (0, (2, 2, 1)), (1e-3, (1, 1, 3)), (1, (0, 0, 5))]
)
def test_tolerance_decides_what_is_flat(tol, inertia):
    s = diagonal([1.0, 1e-4, 0.0, -1e-15, -0.5], [1] * 5, ["bulk"] * 5)
    assert s.inertia(tol) == inertia
    assert s.rank(tol) == inertia[0] + inertia[1]


# Labels and vectors.


def test_a_label_finds_itself_and_its_tails_only():
    s = diagonal([3.0, 2.0, 1.0], [1, 1, 1], ["outlier/+cell", "outlier", "outliers"])
    assert [space.label for space in s["outlier"]] == ["outlier/+cell", "outlier"]
    assert s["bulk"] == s["outlier/-cell"] == ()
    for error in (KeyError, ValueError):
        with pytest.raises(error, match=r'"out"; the labels here are "outlier/.cell", "outlier"'):
            s["out"]
    with pytest.raises(TypeError, match="label"):
        s[0]


@pytest.mark.parametrize("kind", KINDS)
def test_some_vectors_are_the_first_of_all(kind):
    case = typical(kind, m=5)
    for space in case.hessian_operator.spectrum().spaces:
        everything = space.vectors()
        for k in range(space.multiplicity + 1):
            np.testing.assert_allclose(space.vectors(k), everything[:, :k], rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_orthonormal_eigenvectors(kind):
    case = typical(kind, m=6)
    for space in case.hessian_operator.spectrum().spaces:
        z = space.sample(min(2, space.multiplicity), rng=0)
        np.testing.assert_allclose(z.T @ z, np.eye(z.shape[1]), atol=1e-14)
        np.testing.assert_allclose(case.hessian @ z, space.value * z, atol=1e-13 * case.norm)


@pytest.mark.parametrize(
    ("k", "error"), [(-1, ValueError), (3, ValueError), (1.5, TypeError), ("1", TypeError)]
)
@pytest.mark.parametrize("method", ["vectors", "sample"])
def test_k_must_fit_the_space(k, error, method):
    (space,) = diagonal([1.0], [2], ["bulk"]).spaces
    with pytest.raises(error, match="k must"):
        getattr(space, method)(k)


@pytest.mark.parametrize(
    ("tol", "error"), [(-1, ValueError), (np.nan, ValueError), ("1", TypeError)]
)
def test_tol_must_be_a_number_from_zero_on(tol, error):
    s = diagonal([1.0], [2], ["bulk"])
    for method in (s.rank, s.inertia):
        with pytest.raises(error, match="tol must"):
            method(tol)


def test_tol_may_be_any_kind_of_number():
    s = diagonal([1.0, 0.25], [2, 3], ["bulk", "bulk"])
    assert s.rank(np.float32(0.5)) == s.rank(np.asarray(0.5)) == s.rank(0.5) == 2


# Cost.


def test_width_ten_million_costs_nothing_until_expanded():
    m = 10**7
    net = hs.ScalarLinear(np.full(m, 1e-3), np.full(m, 2e-3))
    tracemalloc.start()
    s = net.hessian(X, Y).spectrum()
    facts = s.trace, s.sharpness, s.logabsdet, s.rank(), s.inertia(), s.spaces, repr(s), s.to_dict()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(facts) == 8
    assert len(s) == 2 * m
    assert peak < 10**6


@pytest.mark.parametrize("kind", KINDS)
def test_one_vector_of_a_wide_network_takes_a_few_vectors_of_memory(kind):
    case = typical(kind, m=10**6 if kind.startswith("Scalar") else 10**6 // 2)
    s = case.hessian_operator.spectrum()
    for space in (s["bulk"][0], s["outlier"][0]):
        tracemalloc.start()
        z = space.vectors(1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 6 * z.nbytes
        residual = case.hessian_operator @ z - space.value * z
        assert np.linalg.norm(residual) < 1e-12 * s.norm
        assert np.linalg.norm(z) == pytest.approx(1, abs=1e-12)


# What is printed and stored.


def test_repr_is_a_small_table():
    s = diagonal([2.5, -1.0], [1, 10**7], ["outlier", "bulk"])
    assert repr(s) == (
        "10000001 eigenvalues, by hand\n"
        "  label    value  multiplicity\n"
        "  outlier    2.5             1\n"
        "  bulk        -1      10000000"
    )


def test_repr_of_many_groups_shows_both_ends():
    lines = repr(diagonal(np.arange(40.0), [1] * 40, ["bulk"] * 40)).splitlines()
    assert len(lines) == 15
    assert lines[2].split()[1] == "39"
    assert lines[-1].split()[1] == "0"
    assert "28 more" in "".join(lines)


def test_repr_of_an_empty_sign_has_no_negative_zero():
    net = hs.ScalarLinear([1.0, 1.0], [1.0, 1.0])
    assert "-0\n" not in repr(net.hessian(X, 2 * X).spectrum()) + "\n"


def spectra():
    relu = hs.ScalarReLU(np.ones((2, 3)), [[1.0, 1.0, -1.0], [1.0, 1.0, 1.0]])
    single = [typical(kind).hessian_operator.spectrum() for kind in KINDS]
    small = hs.ScalarLinear(np.float32([0.1, 0.2]), np.float32([0.3, 0.7]))
    tensor = hs.ScalarLinear(torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.7]))
    return [
        *single,
        relu.hessian(X, Y).spectrum(),
        small.hessian(np.float32(X), np.float32(Y)).spectrum(),
        tensor.hessian(torch.tensor(X).float(), torch.tensor(Y).float()).spectrum(),
    ]


@pytest.mark.parametrize("s", spectra(), ids=lambda s: s.method)
def test_round_trip_through_json_and_a_file(s, tmp_path):
    data = json.loads(json.dumps(s.to_dict()))
    assert data == s.to_dict()
    again = hs.Spectrum.from_dict(data)
    s.save(tmp_path / "s.json")
    assert again == s == hs.load(tmp_path / "s.json") == hs.load(str(tmp_path / "s.json"))
    np.testing.assert_array_equal(again.eigenvalues, np.asarray(s.eigenvalues))
    assert str(again.eigenvalues.dtype) == str(s.eigenvalues.dtype).removeprefix("torch.")
    assert (again.method, again.exact) == (s.method, s.exact)
    assert [p.label for p in again.spaces] == [p.label for p in s.spaces]
    assert repr(again) == repr(s)


@given(cases("ScalarLinear", exponents=st.integers(-4, 4)))
def test_every_bit_survives(case):
    s = case.hessian_operator.spectrum()
    again = hs.Spectrum.from_dict(json.loads(json.dumps(s.to_dict())))
    assert again.eigenvalues.tobytes() == s.eigenvalues.tobytes()


def test_a_stored_spectrum_says_that_its_vectors_are_gone():
    s = hs.Spectrum.from_dict(diagonal([1.0], [2], ["bulk"]).to_dict())
    with pytest.raises(ValueError, match="eigenvectors are gone"):
        s.spaces[0].vectors()


def test_a_failing_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "s.json"
    old, new = diagonal([1.0], [2], ["bulk"]), diagonal([2.0], [2], ["bulk"])
    old.save(path)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        new.save(path)
    assert hs.load(path) == old
    assert os.listdir(tmp_path) == ["s.json"]


GOOD = diagonal([1.0, 0.0], [2, 3], ["bulk", "flat"]).to_dict()


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        None,
        {"format": GOOD["format"]},
        {**GOOD, "format": "something else"},
        {**GOOD, "values": [1.0]},
        {**GOOD, "labels": ["bulk"]},
        {**GOOD, "values": "abc"},
        {**GOOD, "dtype": "nonsense"},
    ],
)
def test_data_that_are_no_spectrum(data):
    with pytest.raises(ValueError, match="data is not a"):
        hs.Spectrum.from_dict(data)


def test_a_file_that_is_no_spectrum(tmp_path):
    path, other = tmp_path / "s.json", "holds no result"
    for content, message in [("{", "path"), ("[]", other), ('{"format": "mine"}', other)]:
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            hs.load(path)
    with pytest.raises(FileNotFoundError):
        hs.load(tmp_path / "missing.json")


def test_spectra_are_equal_by_what_they_hold():
    s = diagonal([1.0, 0.0], [2, 3], ["bulk", "flat"])
    assert s == diagonal([1.0, 0.0], [2, 3], ["bulk", "flat"])
    assert s != diagonal([1.0, 0.5], [2, 3], ["bulk", "flat"])
    assert s != diagonal([1.0, 0.0], [2, 2], ["bulk", "flat"])
    assert s != diagonal([1.0, 0.0], [2, 3], ["bulk", "bulk"])
    assert s != "a spectrum"


def test_a_batch_sorts_every_network_for_itself():
    net = typical("ScalarLinear").net
    flipped = hs.ScalarLinear(np.stack([net.w, net.w]), np.stack([net.v, -net.v]))
    s = flipped.hessian(X, Y).spectrum()
    for i in range(2):
        one = flipped[i].hessian(X, Y).spectrum()
        np.testing.assert_allclose(s.eigenvalues[i], one.eigenvalues, rtol=1e-14)
        np.testing.assert_allclose(s.values[i], one.values, rtol=1e-14)
        np.testing.assert_array_equal(s.multiplicities[i], one.multiplicities)
        for name in ("trace", "squared_norm", "sharpness", "norm", "logabsdet", "condition_number"):
            np.testing.assert_allclose(getattr(s, name)[i], getattr(one, name), rtol=1e-13)
        assert tuple(part[i] for part in s.inertia()) == one.inertia()


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("ScalarLinear", {"outlier", "bulk"}),
        ("DecoupledInputs", {"outlier", "bulk/x0", "bulk/x1", "bulk/x2"}),
        ("DecoupledOutputs", {f"{word}/y{k}" for word in ("outlier", "bulk") for k in range(3)}),
        ("ScalarAffine", {"outlier/twin", "bulk", "flat"}),
    ],
)
def test_labels_of_networks(kind, labels):
    s = typical(kind, m=4, d=3).hessian_operator.spectrum()
    assert {space.label for space in s.spaces} == labels


def test_pickles_keep_values_and_labels():
    import copy
    import pickle

    net = hs.ScalarLinear([1.0, 2.0, 0.5], [0.5, 1.0, 1.0])
    spectrum = net.hessian([1.0, -1.0], [2.0, -1.0]).spectrum()
    for twin in (pickle.loads(pickle.dumps(spectrum)), copy.deepcopy(spectrum)):
        assert twin == spectrum
        with pytest.raises(ValueError, match="compute it again"):
            twin.spaces[0].vectors()


@pytest.mark.parametrize(
    "changes",
    [
        {"values": [float("nan")]},
        {"multiplicities": [-1]},
        {"dtype": "object"},
        {"values": [1, 2]},
        {"errors": []},
    ],
)
def test_damaged_data_are_refused(changes):
    whole = {
        "format": "hessence.spectrum/1",
        "method": "closed form",
        "exact": True,
        "dtype": "float64",
        "labels": ["bulk"],
        "values": [1.0],
        "multiplicities": [2],
        "errors": [1e-16],
    }
    assert len(hs.Spectrum.from_dict(whole)) == 2
    with pytest.raises(ValueError, match="data is not"):
        hs.Spectrum.from_dict(whole | changes)


def test_an_exact_spectrum_has_what_an_estimate_has():
    rng = np.random.default_rng(0)
    w, v, x = rng.normal(size=4), rng.normal(size=4), rng.normal(size=9)
    H = hs.ScalarReLU(w, v).hessian(x, np.abs(x))
    s = H.spectrum()
    truth = np.linalg.eigvalsh(H.dense())[::-1]
    assert s.size == len(truth)
    assert s.converged
    assert s.products == 0
    assert (np.abs(s.eigenvalues - truth) <= s.errors).all()
    assert s.errors.max() < 1e-12 * np.abs(truth).max()
    assert abs(s.trace - truth.sum()) <= s.trace_stderr
    z = s.eigenvectors
    np.testing.assert_allclose(z.T @ z, np.eye(8), atol=1e-13)
    np.testing.assert_allclose(z * s.eigenvalues @ z.T, H.dense(), atol=1e-13)


def test_all_eigenvectors_of_a_wide_network_are_refused():
    s = hs.ScalarLinear(np.ones(10**7), np.ones(10**7)).hessian([1.0], [2.0]).spectrum()
    with pytest.raises(ValueError, match=r"all 20000000 eigenvectors .*spaces\[0\]\.vectors"):
        _ = s.eigenvectors
