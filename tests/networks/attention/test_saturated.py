"""Attention that is as good as decided: what is left of its derivatives keeps all digits."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs

DIGITS, STEP = 600, mpmath.mpf(10) ** -150


def dense_hessian(cost, theta):
    """Return central second differences in so many digits that nothing is lost in them."""
    with mpmath.workdps(DIGITS):
        theta = [mpmath.mpf(float(t)) for t in theta]
        p = len(theta)
        found = np.empty((p, p))

        def at(*moves):
            moved = list(theta)
            for i, sign in moves:
                moved[i] += sign * STEP
            return cost(moved)

        for i in range(p):
            for j in range(i + 1):
                corners = [s * t * at((i, s), (j, t)) for s in (1, -1) for t in (1, -1)]
                found[i, j] = found[j, i] = float(mpmath.fsum(corners) / (4 * STEP**2))
    return found


def attended(scores, tokens):
    weights = [mpmath.exp(s - max(scores)) for s in scores]
    return [
        mpmath.fsum(w * t for w, t in zip(weights, row, strict=True)) / mpmath.fsum(weights)
        for row in tokens
    ]


def assert_right(net, x, y, cost):
    truth = dense_hessian(cost, net.parameters())
    values = np.linalg.eigvalsh(truth)[::-1]
    H = net.hessian(x, y)
    tolerance = 1e-13 * np.abs(values).max()
    np.testing.assert_allclose(H.spectrum().eigenvalues, values, rtol=0, atol=tolerance)
    np.testing.assert_allclose(H.dense(), truth, rtol=0, atol=tolerance)


MARGINS = st.sampled_from([1.0, 10.0, 20.0, 38.0, 100.0])


@given(MARGINS, st.sampled_from([1.0, -0.75, 2.0]), st.floats(-1, 1))
def test_one_dimension(margin, w_v, target):
    x = np.asarray([2.0, 1.0, -1.0])
    net = hs.SelfAttention(w_v, [margin / 4, 0.5], [1.0, 0.25])
    y = target * x

    def cost(theta):
        t = (theta[1] * theta[3] + theta[2] * theta[4]) / mpmath.sqrt(2)
        tokens, total = [mpmath.mpf(a) for a in x], 0
        for query, goal in zip(tokens, y, strict=True):
            (h,) = attended([query * t * key for key in tokens], [tokens])
            total += (theta[0] * h - mpmath.mpf(float(goal))) ** 2 / 6
        return total

    assert_right(net, x, y, cost)


@pytest.mark.parametrize("margin", [10.0, 30.0, 60.0, 200.0])
def test_what_is_left_of_the_moments(margin):
    """Seen from the token that has all attention, the variance is e^(−margin), not rounding."""
    x = np.asarray([1.0, 0.0])
    net = hs.SelfAttention(1.0, [margin], [1.0])
    s = net.statistics(x, np.zeros(2))
    share = 1 / (1 + mpmath.exp(margin))
    exact = [share * (1 - share), share * (1 - share) * (2 * share - 1)]
    for mine, truth in zip((s.m2, s.m3), exact, strict=True):
        assert float(mine[0, 0]) == pytest.approx(float(truth), rel=1e-14)
    attention = hs.MatrixAttention([[1.0]], [[margin]], [[1.0]])
    block = hs.SelfAttention(1.0, [margin], [1.0]).hessian(x, np.zeros(2)).functional.dense()
    other = attention.hessian(x[:, None], np.zeros((2, 1))).functional.dense()
    np.testing.assert_allclose(other, block, rtol=1e-13)
    gamma = 0.5 * (1 - share) * share * (1 - share)  # w_V δᵀ(x ⊙ m₂)/n, the second query is 0
    assert block[1, 2] == pytest.approx(float(gamma + _curved(margin, share)), rel=1e-12)


def _curved(margin, share):
    """Return ζ w_Q w_K with ζ = w_V δ x² m₃/n."""
    third = share * (1 - share) * (2 * share - 1)
    return margin * 0.5 * (1 - share) * third
