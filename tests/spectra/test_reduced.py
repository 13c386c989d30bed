"""Estimates of operators of which a part is known exactly."""

import numpy as np
import pytest

import hessence as hs
from hessence.spectra.operators import Operator
from hessence.spectra.reduced import Reduced
from hessence.spectra.subspaces import Columns, Subspaces


class Matrix(Operator):
    def __init__(self, matrix):
        self.matrix = matrix

    shape = property(lambda self: self.matrix.shape)
    reference = property(lambda self: self.matrix)

    def times(self, columns):
        return self.matrix @ columns


def case(inside, bulk, flat, seed=0):
    """Return a dense matrix with known eigenvalues beside others, and what is left of it."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([inside, *(np.full(count, value) for value, count in bulk),
                             np.zeros(flat)])  # fmt: skip
    Q, _ = np.linalg.qr(rng.normal(size=(len(values),) * 2))
    H = Matrix((Q * values) @ Q.T)
    ends = np.cumsum([len(inside), *(count for _, count in bulk), flat])
    known = [
        Subspaces((label,), lambda _, Z=Q[:, low:high]: Columns(lambda c: Z @ c), int(high - low),
                  values=np.asarray([value]))
        for low, high, (label, value) in zip(
            ends[:-1], ends[1:],
            [*((f"bulk/{i}", v) for i, (v, _) in enumerate(bulk)), ("flat", 0.0)], strict=True,
        )
    ]  # fmt: skip
    Z = Q[:, : len(inside)]
    rest = Reduced(H, len(inside), lambda c: Z @ c, lambda v: Z.T @ v, tuple(known), "example")
    return H, rest, np.sort(values)[::-1]


INSIDE = np.concatenate([[9.0, 5.0, -7.0], np.linspace(-1, 1, 800)])


@pytest.mark.parametrize("which", ["LA", "SA", "LM", "BE"])
@pytest.mark.parametrize("inside", [INSIDE, INSIDE[:40]])
def test_eigenvalues_are_those_of_the_whole(which, inside):
    H, rest, values = case(inside, [(6.0, 3), (-5.5, 3)], 30)
    found = rest.spectrum(k=7, which=which)
    expected = {
        "LA": values[:7], "SA": values[-7:], "BE": np.r_[values[:4], values[-3:]],
        "LM": np.sort(values[np.argsort(-np.abs(values), kind="stable")[:7]])[::-1],
    }[which]  # fmt: skip
    np.testing.assert_allclose(found.eigenvalues, expected, atol=1e-6)
    assert (abs(found.eigenvalues - expected) <= found.errors + 1e-12).all()
    assert found.verify(H).worst < 1e-6
    Z = found.eigenvectors
    np.testing.assert_allclose(Z.T @ Z, np.eye(7), atol=1e-10)


def test_what_is_known_is_there_with_its_multiplicities():
    _, rest, values = case(INSIDE, [(6.0, 3), (-5.5, 3)], 900 - len(INSIDE) - 6)
    found = rest.spectrum(k=4)
    assert (found.size, found.exact, found.method) == (900, False, "Lanczos, example")
    assert [s.label for s in found.spaces] == ["estimate", "bulk/0", "bulk/0", "bulk/0"]
    assert [(s.label, float(s.value), s.multiplicity) for s in found["bulk"]] == [
        ("bulk/0", 6.0, 3), ("bulk/1", -5.5, 3)]  # fmt: skip
    assert found["flat"][0].multiplicity == 900 - len(INSIDE) - 6
    assert abs(found.trace - values.sum()) < 4 * found.trace_stderr
    assert "known exactly: 6 bulk, 91 flat" in repr(found)
    with pytest.raises(hs.UnknownLabelError):
        found["nonsense"]


def test_all_of_a_small_one_and_its_density():
    _, rest, values = case(INSIDE[:40], [(6.0, 3)], 30)
    found = rest.spectrum(k=None)
    np.testing.assert_allclose(found.eigenvalues, values, atol=1e-12)
    assert found.inertia().flat == 30
    assert found.density.size == 73


def test_a_file_keeps_what_is_known(tmp_path):
    _, rest, _ = case(INSIDE, [(6.0, 3)], 300)
    found = rest.spectrum(k=3)
    found.save(tmp_path / "estimate.json")
    again = hs.load(tmp_path / "estimate.json")
    assert repr(again) == repr(found)
    assert again["flat"][0].multiplicity == 300
    assert again.labels == found.labels


def test_what_does_not_fill_the_space_is_refused():
    _, rest, _ = case(INSIDE[:5], [], 4)
    short = Reduced(rest.whole, 4, rest.embed, rest.project, rest.known, "example")
    with pytest.raises(ValueError, match="order 4 and 4 eigenvalues are known, but there are 9"):
        short.spectrum()
