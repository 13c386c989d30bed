"""Arrays that nothing can be written to, as JAX has them."""

from __future__ import annotations

import array_api_compat as api
import array_api_strict
import numpy as np
import pytest

import hessence as hs
from tests.krylov.market import SPECTRA, matrix

VALUES = np.concatenate([[5.0, 5.0, 3.0], np.linspace(-1, 1, 117)])
H = matrix(VALUES, np.random.default_rng(0))


@pytest.fixture
def kind(request, monkeypatch):
    """Return the function that makes arrays of an immutable kind."""
    if request.param == "JAX":
        return pytest.importorskip("jax.numpy").asarray
    strict = type(array_api_strict.asarray(0.0))

    def refuse(array, key, value):
        raise TypeError("immutable")

    monkeypatch.setattr(strict, "__setitem__", refuse)
    writeable = api.is_writeable_array
    monkeypatch.setattr(
        api, "is_writeable_array", lambda a: not isinstance(a, strict) and writeable(a)
    )
    return array_api_strict.asarray


class Bare:
    """An operator with no more than it needs, and the array that its vectors are like."""

    def __init__(self, matrix):
        self._matrix, self.shape, self.reference = matrix, matrix.shape, matrix[0, :1]

    def __matmul__(self, other):
        return self._matrix @ other


KINDS = pytest.mark.parametrize("kind", ["frozen", "JAX"], indirect=True)


@KINDS
@pytest.mark.parametrize("operator", [lambda a: a, Bare])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_written_to(kind, operator, dtype):
    array = kind(H.astype(dtype))
    eps = float(api.array_namespace(array).finfo(array.dtype).eps)
    subject = operator(array)
    # A small basis is restarted, and several vectors start it.
    start = kind(np.random.default_rng(1).normal(size=(120, 2)).astype(dtype))
    for options in ({}, {"v0": start, "ncv": 8, "max_products": 2000}):
        pairs = hs.eigenpairs(subject, 3, **options)
        assert type(pairs.eigenvectors) is type(array)
        np.testing.assert_allclose(np.asarray(pairs.eigenvalues), [5, 5, 3], rtol=1e-4)
        image = np.asarray(array @ pairs.eigenvectors - pairs.eigenvectors * pairs.eigenvalues)
        assert (np.linalg.norm(image, axis=0) <= np.asarray(pairs.errors) + 100 * eps).all()
    expected = hs.density(H.astype(dtype), probes=3, steps=12)
    found = hs.density(subject, probes=3, steps=12)
    np.testing.assert_allclose(found.values, expected.values, atol=1e4 * eps)
    assert hs.trace(subject, 40).value == pytest.approx(hs.trace(H, 40).value, abs=1e3 * eps)


@KINDS
def test_chains_that_end_early_and_batches(kind):
    H = matrix(SPECTRA["low_rank"](80, np.random.default_rng(0)), np.random.default_rng(0))
    # Of two invariant spaces the first probes see one, and their recurrences end before others'.
    found = hs.density(kind(H), probes=3, steps=20)
    np.testing.assert_allclose(found.ends, (-1.0, 3.0), rtol=1e-5)
    pairs = hs.eigenpairs(kind(np.stack([H, 2 * H])), 2)
    np.testing.assert_allclose(np.asarray(pairs.eigenvalues), [[3, 2], [6, 4]], rtol=1e-5)


@KINDS
def test_an_operator_that_keeps_its_kind_to_itself_is_told_how_to_say_it(kind):
    subject = Bare(kind(H))
    del subject.reference
    subject.__class__ = type("Foreign", (Bare,), {"__matmul__": lambda self, v: self._matrix[:, 0]})
    with pytest.raises(TypeError, match=r"let H\.reference be one"):
        hs.eigenpairs(subject, 2)
