"""Errors that spectra of attention report are bounds, at a perfect fit and beside it."""

import mpmath
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs
from tests.networks.attention.test_saturated import DIGITS, STEP, attended, dense_hessian


def assert_bounded(spectrum, dense):
    """LAPACK's own rounding of the exact matrix comes on top."""
    gaps = np.abs(np.asarray(spectrum.eigenvalues) - np.linalg.eigvalsh(dense)[::-1])
    assert (gaps <= np.asarray(spectrum.errors) + 1e-15 * np.abs(dense).max()).all()


@given(
    st.sampled_from([1.0, -0.5, 1e4, 1e-4, 1e9]),
    st.sampled_from([0.5, 3.0, 30.0]),
    st.booleans(),
    st.sampled_from(["one", "matrix"]),
)
def test_against_many_digits(w_v, score, fit, kind):
    """At a fit what is left of the residual is rounding, and the functional part with it."""
    x = np.asarray([1.25, -0.75])
    net = hs.SelfAttention(w_v, [score], [1.0])
    y = np.asarray(net(x)) if fit else np.asarray([1.0, 2.0])

    def cost(theta):
        tokens, total = [mpmath.mpf(a) for a in x], 0
        for query, goal in zip(tokens, y, strict=True):
            (h,) = attended([query * theta[1] * theta[2] * key for key in tokens], [tokens])
            total += (theta[0] * h - mpmath.mpf(float(goal))) ** 2 / 4
        return total

    dense = dense_hessian(cost, net.parameters())
    if kind == "matrix":
        net = hs.MatrixAttention([[w_v]], [[score]], [[1.0]])
        x, y = x[:, None], y[:, None]
    assert_bounded(net.hessian(x, y).spectrum(), dense)


@given(st.sampled_from([1.0, -0.5, 1e4, 1e-4, 1e9]), st.sampled_from([0.5, 3.0, 30.0]))
def test_the_block_of_queries_and_keys_knows_the_rounding_of_its_bulk(w_v, score):
    """At a fit, γ = ∂ℓ/∂⟨w_Q, w_K⟩ is rounding; here it is differentiated in many digits."""
    x = np.asarray([1.25, -0.75])
    net = hs.SelfAttention(w_v, [score, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0])
    y = np.asarray(net(x))

    def cost(t):
        tokens, total = [mpmath.mpf(a) for a in x], 0
        for query, goal in zip(tokens, y, strict=True):
            (h,) = attended([query * t * key / 2 for key in tokens], [tokens])
            total += (mpmath.mpf(w_v) * h - mpmath.mpf(float(goal))) ** 2 / 4
        return total

    with mpmath.workdps(DIGITS):
        t = mpmath.mpf(score)
        gamma = abs(float((cost(t + STEP) - cost(t - STEP)) / (2 * STEP)))
    spectrum = net.hessian(x, y).block("qk").spectrum()
    for family in spectrum.families[1:]:
        gap = abs(abs(float(family.eigenvalues[0])) - gamma)
        assert gap <= float(family.bounds(spectrum.norm)[0])
