"""Balanced networks on white data: every pair of modes splits in two; two layers in closed form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from hessence.networks.linear._balanced import BalancedBlocks, balanced
from hessence.networks.linear._jacobi import small_eigenvalues
from hessence.networks.linear._modes import find_modes
from hessence.networks.linear._pair_blocks import neglected
from tests.linear_oracle import assert_same_spectrum
from tests.networks.linear.cases import aligned_case, operator

EPSILON = np.finfo(float).eps


def balanced_case(dims, singular, seed, tilt=None):
    """Each singular value in all layers, times what `tilt` says."""
    tilt = np.ones(len(dims) - 1) if tilt is None else tilt
    return aligned_case(dims, [list(s * tilt) for s in singular], seed, variance=1.7)


@given(
    st.integers(1, 5).flatmap(
        lambda depth: st.lists(st.integers(1, 3), min_size=depth + 1, max_size=depth + 1)
    ),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 1.37, 1e-4]), min_size=1, max_size=3),
    st.integers(0, 10**6),
)
def test_every_eigenvalue_and_vector_of_a_balanced_network(dims, singular, seed):
    case = balanced_case(dims, singular[: min(dims)], seed)
    H = operator(case)
    assert_same_spectrum(H.spectrum(), case.hessian, case.norm)
    assert_same_spectrum(H.functional.spectrum(), case.hessian - case.ggn, case.norm)
    s = H.spectrum()
    gaps = np.abs(s.eigenvalues - np.linalg.eigvalsh(case.hessian)[::-1])
    assert (gaps <= s.errors + 20 * EPSILON * case.norm).all()


@pytest.mark.parametrize("depth", [2, 3, 4, 5])
def test_the_split_is_what_solves_balanced_networks(depth, monkeypatch):
    case = balanced_case((5,) * (depth + 1), [0.4, 0.9, 1.1, 1.3, 2.0], seed=depth)
    solved = []
    original = BalancedBlocks.eigenvalues

    def counted(self, i, j):
        solved.extend(zip(i, j, strict=True))
        return original(self, i, j)

    monkeypatch.setattr(BalancedBlocks, "eigenvalues", counted)
    s = operator(case).spectrum()
    assert s.method == "aligned pairs"
    assert len(solved) == 10
    assert_same_spectrum(s, case.hessian, case.norm)


@pytest.mark.parametrize(("m", "D", "K"), [(4, 4, 4), (3, 5, 4), (6, 4, 3), (2, 2, 5)])
def test_two_balanced_layers_need_no_twin(m, D, K):
    case = balanced_case((D, m, K), [1.5, 0.8], seed=m)
    s = hs.TwoLayerLinear(*case.weights).hessian(case.x, case.y).spectrum()
    assert s.method == "aligned pairs"
    assert_same_spectrum(s, case.hessian, case.norm)
    labels = {space.label.partition("/")[0] for space in s.spaces}
    assert labels >= {"dominant", "bulk"}
    coloured = case.x * np.linspace(1, 2, D)
    other = hs.TwoLayerLinear(*case.weights).hessian(coloured, case.y).spectrum()
    assert other.method == "narrow twin"


@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(-17, -6))
def test_errors_hold_for_layers_that_are_almost_balanced(seed, depth, power):
    """Recognised or not: what is neglected is in the errors."""
    rng = np.random.default_rng(seed)
    tilt = 1 + 10.0**power * rng.normal(size=depth)
    case = balanced_case((3,) * (depth + 1), [0.6, 1.0, 1.8], seed, tilt)
    s = operator(case).spectrum()
    gaps = np.abs(s.eigenvalues - np.linalg.eigvalsh(case.hessian)[::-1])
    assert (gaps <= s.errors + 20 * EPSILON * case.norm).all()
    assert s.errors.max() < 1e-11 * case.norm


def test_how_far_from_balanced_is_told():
    case = balanced_case((3, 3, 3, 3), [0.6, 1.0, 1.8], seed=4)
    modes = find_modes(operator(case))
    nearby = balanced(modes, EPSILON)
    moved = modes.singular + np.asarray([[0.0], [1e-15], [0.0]])
    further = balanced(modes.__class__(**{**vars(modes), "singular": moved}), EPSILON)
    assert neglected(modes, EPSILON) <= neglected(nearby, EPSILON) < neglected(further, EPSILON)
    for tilt in ([1.0, 1.0 + 1e-9, 1.0], [1.0, 1.0, 2.0]):
        off = find_modes(
            operator(balanced_case((3, 3, 3, 3), [0.6, 1.0, 1.8], 4, np.asarray(tilt)))
        )
        assert off.aligned
        assert balanced(off, EPSILON) is None


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(-140, 140))
def test_rotations_against_lapack(seed, size, power):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(size, size, 40)) * 10.0 ** rng.integers(-9, 10, size=(size, size, 40))
    a[..., :5] = np.round(rng.normal(size=(size, size, 5)))
    a = 10.0**power * (a + a.swapaxes(0, 1))
    mine = np.sort(small_eigenvalues(a), axis=0).T
    theirs = np.linalg.eigvalsh(np.moveaxis(a, -1, 0))
    norm = np.abs(theirs).max(axis=1, keepdims=True)
    assert (np.abs(mine - theirs) <= 40 * EPSILON * norm).all()
    assert not small_eigenvalues(np.zeros((size, size, 3))).any()
