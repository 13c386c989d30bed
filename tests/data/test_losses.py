"""Pointwise losses and their derivatives against arithmetic with many digits."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hessence.data.losses import CrossEntropy, Huber, Logistic, Squared, as_loss
from tests.oracle import OWN

ALL = {**{name: as_loss(name) for name in ("mse", "logistic", "huber")}, **OWN}


# Each loss as a function of the residual, or of the margin, for mpmath to differentiate.
EXACT = {
    "mse": lambda r: r**2 / 2,
    "logistic": lambda margin: mpmath.log1p(mpmath.exp(-margin)),
    "huber": lambda r: r**2 / 2 if abs(r) <= 1 else abs(r) - mpmath.mpf(1) / 2,
    "own": lambda r: mpmath.log1p(r**2),
}


@pytest.mark.parametrize("name", ALL)
@given(st.floats(-30, 30), st.floats(-30, 30))
@example(0.0, 0.99999)  # the second derivative of our own loss nearly vanishes here
def test_value_and_derivatives_in_many_digits(name, prediction, target):
    """To full relative accuracy, given the residual.

    The residual is rounded once, for us and for the truth alike: where a derivative has a root,
    that one rounding may be seen to any relative size.
    """
    label = 1.0 if target > 0 else -1.0
    target = label if name == "logistic" else target
    point = label * prediction if name == "logistic" else prediction - target
    assume(name != "huber" or abs(point) != 1)  # where it has no second derivative
    sign = label if name == "logistic" else 1  # d margin / d prediction
    pair = np.asarray([prediction]), np.asarray([target])
    for order, mine in enumerate((ALL[name].value, ALL[name].first, ALL[name].second)):
        with mpmath.workdps(350):  # differences are absolute, and residuals may be 1e-300
            exact = sign**order * mpmath.diff(EXACT[name], mpmath.mpf(point), order)
        np.testing.assert_allclose(mine(*pair), [float(exact)], rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("margin", [0.0, 1.0, 30.0, 700.0, 1e5, 1e300])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("label", [1.0, -1.0])
def test_logistic_far_out(margin, sign, label):
    """No overflow, and tails to full relative accuracy."""
    f, y = mpmath.mpf(sign * margin), mpmath.mpf(label)
    tail = mpmath.exp(-abs(f))
    value = mpmath.log1p(tail) + max(-y * f, 0)
    first = -y * (tail if y * f > 0 else 1) / (1 + tail)
    second = tail / (1 + tail) ** 2
    pair = np.asarray([sign * margin]), np.asarray([label])
    loss = Logistic()
    for mine, exact in zip(
        (loss.value, loss.first, loss.second), (value, first, second), strict=True
    ):
        np.testing.assert_allclose(mine(*pair), [float(exact)], rtol=1e-13, atol=1e-320)


@pytest.mark.parametrize("margin", [0.0, 1.0, -5.0, 20.0, 40.0, -60.0, 300.0])
@pytest.mark.parametrize("target", [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]])
def test_cross_entropy_keeps_its_digits_where_a_probability_is_close_to_one(margin, target):
    logits, y = np.asarray([margin, 0.5, -1.0]), np.asarray(target)
    with mpmath.workdps(350):
        grown = [mpmath.exp(mpmath.mpf(value)) for value in logits]
        p = [each / mpmath.fsum(grown) for each in grown]
        targets = [mpmath.mpf(value) for value in target]
        total = mpmath.fsum(targets)
        second = [[total * a * ((i == j) - b) for j, b in enumerate(p)] for i, a in enumerate(p)]
        exact = np.asarray(second).astype(float)
    np.testing.assert_allclose(CrossEntropy().second(logits, y), exact, rtol=1e-13, atol=0)


def test_huber_with_another_threshold():
    f = torch.linspace(-5, 5, 41, dtype=torch.float64) + 0.01
    theirs = torch.nn.functional.huber_loss(f, 0 * f, reduction="none", delta=2.5)
    np.testing.assert_allclose(Huber(2.5).value(f.numpy(), 0 * f.numpy()), theirs, rtol=1e-15)


@pytest.mark.parametrize("threshold", [0.0, -1.0, np.inf, np.nan])
def test_huber_refuses(threshold):
    with pytest.raises(ValueError, match="threshold must"):
        Huber(threshold)


@pytest.mark.parametrize("labels", [[0.0, 1.0], [2.0, 1.0], [0.5, -1.0]])
@pytest.mark.parametrize("method", ["value", "first", "second"])
def test_logistic_wants_signs(labels, method):
    with pytest.raises(ValueError, match="y must hold labels"):
        getattr(Logistic(), method)(np.zeros(2), np.asarray(labels))


class Half:
    def value(self, prediction, target):
        return prediction

    def first(self, prediction, target):
        return prediction


@pytest.mark.parametrize(
    ("loss", "error"),
    [
        ("mae", ValueError),
        ("MSE", ValueError),
        (None, TypeError),
        (Half(), TypeError),
        (Squared, TypeError),
    ],
)
def test_what_is_no_loss(loss, error):
    with pytest.raises(error, match="loss must be"):
        as_loss(loss)
