"""Householder frames against the properties that define them, checked with dense algebra."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hessence.spectra.frames import Complement, Frame, span


def dense(frame, reference):
    """Return the whole orthogonal matrix, column by column."""
    span = frame.span(np.eye(frame.rank))
    return np.concatenate([span, frame.complement(np.eye(frame.order - frame.rank))], axis=-1)


SPECIAL = {
    "one": [[3.0], [4.0], [0.0]],
    "negative": [[-3.0], [4.0], [0.0]],
    "first axis": [[1.0], [0.0], [0.0]],
    "minus the first axis": [[-1.0], [0.0], [0.0]],
    "zero": [[0.0], [0.0], [0.0]],
    "repeated": [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]],
    "zero between": [[1.0, 0.0, 1.0], [2.0, 0.0, 0.0], [3.0, 0.0, 1.0], [1.0, 0.0, 0.0]],
    "more vectors than dimensions": [[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]],
    "almost dependent": [[1.0, 1.0], [1.0, 1.0 + 1e-15], [1.0, 1.0]],
    "one dimension": [[-2.0]],
}


@pytest.mark.parametrize("scale", [1.0, 1e150, 1e-150])
@pytest.mark.parametrize("name", SPECIAL)
def test_orthogonal_and_spanning(name, scale):
    assert_frame(scale * np.asarray(SPECIAL[name]), scale)


@given(
    hnp.arrays(float, st.tuples(st.integers(1, 6), st.integers(1, 4)), elements=st.floats(-1, 1)),
    st.integers(-498, 498),
)
def test_any_vectors_at_any_scale(vectors, exponent):
    scale = 2.0**exponent
    assert_frame(scale * vectors, scale)


def assert_frame(vectors, scale):
    frame = Frame(vectors)
    q = dense(frame, vectors)
    np.testing.assert_allclose(q.T @ q, np.eye(len(q)), rtol=0, atol=2e-15)
    # The vectors lie in the span, and their coordinates there bring them back.
    outside = q[:, frame.rank :].T @ (vectors / scale)
    np.testing.assert_allclose(outside, 0, rtol=0, atol=4e-15)
    back = frame.span(frame.coordinates(vectors))
    np.testing.assert_allclose(back / scale, vectors / scale, rtol=0, atol=1e-14)


@given(hnp.arrays(float, st.integers(1, 6), elements=st.floats(-1, 1)))
def test_first_column_is_the_direction_itself(vector):
    length = math.hypot(*vector)
    first = Frame(vector[:, None]).span(np.ones((1, 1)))[:, 0]
    np.testing.assert_allclose(length * first, vector, rtol=0, atol=1e-15 * length)


def test_batches_and_torch_equal_one_at_a_time():
    vectors = np.random.default_rng(0).normal(size=(5, 4, 2))
    spans = Frame(vectors).span(np.eye(2))
    tensors = Frame(torch.tensor(vectors)).span(torch.eye(2, dtype=torch.float64))
    for i in range(5):
        np.testing.assert_allclose(spans[i], Frame(vectors[i]).span(np.eye(2)), atol=1e-15)
        np.testing.assert_allclose(tensors[i], spans[i], atol=1e-15)


@pytest.mark.parametrize(("m", "r"), [(1, 1), (5, 1), (5, 4), (40, 7), (6, 6)])
def test_complement_of_orthonormal_columns(m, r):
    rng = np.random.default_rng(m * r)
    for basis in (np.linalg.qr(rng.normal(size=(m, r)))[0], np.eye(m)[:, :r], -np.eye(m)[:, -r:]):
        z = Complement(basis)(np.eye(m - r))
        whole = np.concatenate([basis, z], axis=1)
        np.testing.assert_allclose(whole.T @ whole, np.eye(m), atol=1e-14)


def test_span_counts_each_column_at_its_own_length():
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(20, 3)) @ rng.normal(size=(3, 5)) * 10.0 ** np.arange(-150, 150, 60)
    for full in (False, True):
        basis, rank = span(columns, full=full)
        assert rank == 3
        assert basis.shape == (20, 20 if full else 5)
        np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-13)
        rest = columns - basis[:, :3] @ (basis[:, :3].T @ columns)
        assert (np.abs(rest) <= 1e-14 * np.abs(columns).max(axis=0)).all()
    assert span(columns * 0)[1] == 0
    assert span(columns, tol=0.0)[1] == 5


@pytest.mark.parametrize("module", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("gap", [1.0, 1e-3, 1e-6, 1e-12, 0.0])
@pytest.mark.parametrize("exponent", [0, 60, 170])
def test_span_of_a_tall_matrix_in_any_units(exponent, gap, module):
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(2000, 6))
    columns[:, -1] = columns[:, 0] + gap * columns[:, -1]
    scaled = columns * 10.0 ** rng.uniform(-exponent, exponent, size=6)
    basis, rank = span(module(scaled))
    basis = np.asarray(basis)[:, :rank]
    assert rank == (6 if gap else 5)
    assert np.abs(basis.T @ basis - np.eye(rank)).max() < 1e-14
    lost = columns - basis @ (basis.T @ columns)
    assert np.abs(lost).max() < 1e-14 * np.linalg.norm(columns, axis=0).max()
    assert np.allclose(span(columns)[0].T @ span(columns)[0], np.eye(6), atol=1e-14)
