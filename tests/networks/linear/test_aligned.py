"""Networks whose layers share singular vectors, found and taken apart."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from tests.linear_oracle import assert_same_spectrum
from tests.networks.linear.cases import DIMS, aligned_case, operator


@given(
    DIMS.filter(lambda dims: len(dims) > 2),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 1e-4]), min_size=1, max_size=4),
    st.integers(0, 10**6),
    st.booleans(),
    st.booleans(),
)
def test_aligned_networks_with_repeated_and_missing_singular_values(
    dims, sizes, seed, solved, unequal
):
    rng = np.random.default_rng(seed)
    values = [[s * rng.choice([1.0, 1.0, 0.5, 0.0]) for _ in dims[1:]] for s in sizes[: min(dims)]]
    variance = rng.choice([1.0, 2.0], size=dims[0]) if unequal else 1.5
    case = aligned_case(dims, values, seed, solved=solved, variance=variance)
    # Directions that end in one layer while others begin there are mostly found, but not always:
    # there the products of all layers, by which directions are told apart, vanish. The spectrum
    # then comes from another reduction, and must be right all the same.
    if all(all(chain) or not any(chain) for chain in values):
        assert hs.DeepLinear(case.weights).alignment(case.x, case.y) < 1e-12
    assert_same_spectrum(operator(case).spectrum(), case.hessian, case.norm)
    assert_same_spectrum(operator(case).ggn.spectrum(), case.ggn, case.norm)


@pytest.mark.parametrize(
    ("dims", "values"),
    [
        ((2, 2, 2, 2), [[0.5, 0.25, 0.0], [0.0, 0.5, 0.5]]),
        ((3, 3, 2), [[2.0, 0.0], [0.0, 1.0]]),
        ((3, 3, 4), [[0.25, 0.0], [1.0, 0.0], [0.0, 1.0]]),
    ],
)
def test_directions_are_found_where_the_product_of_all_layers_vanishes(dims, values):
    case = aligned_case(dims, values, seed=1, variance=1.5)
    assert hs.DeepLinear(case.weights).alignment(case.x, case.y) < 1e-12
    assert_same_spectrum(operator(case).spectrum(), case.hessian, case.norm)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_gradient_that_is_not_aligned_is_noticed_in_any_precision(dtype):
    rng = np.random.default_rng(32)
    layer = np.diag([2, 1.5, 1, 0.7, 0.3])
    x = hs.whiten(rng.normal(size=(20, 5)))
    y = x @ (np.linalg.matrix_power(layer, 3) - np.linalg.qr(rng.normal(size=(5, 5)))[0]).T
    net = hs.DeepLinear([layer.astype(dtype)] * 3)
    H = net.hessian(x.astype(dtype), y.astype(dtype))
    assert net.alignment(x.astype(dtype), y.astype(dtype)) > 0.1
    dense = hs.DeepLinear([layer] * 3).hessian(x, y).dense()
    tolerance = 100 * np.finfo(dtype).eps * np.linalg.norm(dense, 2)
    values = np.linalg.eigvalsh(dense)[::-1]
    np.testing.assert_allclose(H.spectrum().eigenvalues, values, rtol=0, atol=tolerance)


def test_errors_include_what_nearly_aligned_layers_leave_off_the_diagonals():
    """Where there is no other route, alignment may neglect more than rounding would do.

    The sharpness is that of the Gauss–Newton part, Σ_l S_l S_lᵀ ⊗ P_lᵀ P_l in 50 digits, up to the
    norm of the functional part: with a residual of 1e-12 and layers near I, at most depth · 1e-12.
    """
    depth, width, rng = 251, 4, np.random.default_rng(3)
    off = [400 * np.finfo(float).eps * (a + a.T) for a in rng.normal(size=(2, width, width))]
    weights = [np.eye(width) + off[2 * layer // depth] for layer in range(depth)]
    x, product = 2 * np.eye(width), np.eye(width)
    for weight in weights:
        product = weight @ product
    found = hs.DeepLinear(weights).hessian(x, x @ product.T * (1 + 1e-12)).spectrum()
    assert found.method == "aligned pairs"
    with mpmath.workdps(50):
        exact = [np.vectorize(mpmath.mpf, otypes=[object])(weight) for weight in weights]
        before, after = [np.eye(width, dtype=int)], [np.eye(width, dtype=int)]
        for low, high in zip(exact[:-1], exact[:0:-1], strict=True):
            before.append(low @ before[-1])
            after.insert(0, after[0] @ high)
        dual = sum(np.kron(s @ s.T, p.T @ p) for p, s in zip(before, after, strict=True))
        truth = float(max(mpmath.eigsy(mpmath.matrix(dual.tolist()), eigvals_only=True)))
    assert abs(found.sharpness - truth) <= found.errors[0] + 1.01e-12 * depth
