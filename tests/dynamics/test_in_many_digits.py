"""Trajectories against steps on the weights in 40 digits, corners and long runs included."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hessence as hs

DIGITS = 40


def stepped(net, x, y, steps, *, lr, momentum=0.0, weight_decay=0.0, sam=0.0, batches=None):
    """Return losses and weights (v, w) of a scalar network at every point, in many digits."""
    relu = isinstance(net, hs.ScalarReLU)

    def predicted(theta, s):
        m = len(theta) // 2
        return mpmath.fsum(
            theta[m + j] * (max(theta[j] * s, mpmath.mpf(0)) if relu else theta[j] * s)
            for j in range(m)
        )

    def gradient(theta, samples):
        m, total = len(theta) // 2, [mpmath.mpf(0)] * len(theta)
        for i in samples:
            residual = (predicted(theta, x[i]) - y[i]) / len(samples)
            for j in range(m):
                if not relu or theta[j] * x[i] > 0:
                    total[j] += residual * theta[m + j] * x[i]
                    total[m + j] += residual * theta[j] * x[i]
        return total

    with mpmath.workdps(DIGITS):
        x, y = (list(map(mpmath.mpf, map(float, a))) for a in (x, y))
        theta = list(map(mpmath.mpf, map(float, [*net.v, *net.w])))
        velocity, losses, points = [mpmath.mpf(0)] * len(theta), [], []
        for step in range(steps + 1):
            residuals = [predicted(theta, s) - t for s, t in zip(x, y, strict=True)]
            losses.append(float(mpmath.fsum(r * r for r in residuals) / (2 * len(x))))
            points.append(np.asarray(theta, dtype=float))
            samples = range(len(x)) if batches is None else batches[step % len(batches)]
            slope = gradient(theta, samples)
            length = mpmath.sqrt(mpmath.fsum(g * g for g in slope))
            if sam and length:
                ahead = [t + sam * g / length for t, g in zip(theta, slope, strict=True)]
                slope = gradient(ahead, samples)
            both = zip(velocity, slope, theta, strict=True)
            velocity = [momentum * b + g + weight_decay * t for b, g, t in both]
            theta = [t - lr * b for t, b in zip(theta, velocity, strict=True)]
    return np.asarray(losses), points


def assert_same(t, losses, points, tolerance):
    """Compare residuals, whose rounding is that of the predictions, and weights."""
    assert t.diverged is None
    largest = np.sqrt(losses.max()) + max(np.dot(theta, theta) for theta in points)
    np.testing.assert_allclose(
        np.sqrt(t.loss), np.sqrt(losses), rtol=tolerance, atol=tolerance * largest
    )
    for step, theta in enumerate(points):
        gap = np.abs(np.asarray(t[step].parameters()) - theta).max()
        assert gap <= tolerance * max(np.abs(theta).max(), 1e-300)


@pytest.mark.parametrize("kind", [hs.ScalarLinear, hs.ScalarReLU])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("gap", [0.0, 2.0**-40])
def test_equal_weights_and_targets_of_the_other_sign(kind, sign, gap):
    """w − v is zero or tiny while its multiple grows by 5 · 10³⁰ and more."""
    v = np.asarray([0.5, -0.25, 0.75])
    net = kind(sign * v * (1 + gap * np.asarray([1.0, -1.0, 2.0])), v)
    x = np.asarray([1.0, -1.5, 0.5])
    y = -sign * np.abs(x) if kind is hs.ScalarReLU else -sign * 2 * x
    t = hs.gradient_descent(net, x, y, lr=0.25, steps=150)
    assert_same(t, *stepped(net, x, y, 150, lr=0.25), tolerance=1e-12)
    if gap == 0 and kind is hs.ScalarLinear:
        long = hs.gradient_descent(net, x, y, lr=0.25, steps=4000)
        assert long.diverged is None
        assert float(long.loss[-1]) == pytest.approx(2 * float(np.mean(x * x)), rel=1e-14)
        assert np.abs(np.asarray(long[4000].parameters())).max() < 1e-100


NUMBERS = st.sampled_from([0.5, -0.5, 0.25, 1.0, -0.75]) | st.floats(-1, 1)


@given(st.data())
def test_any_scalar_network(data):
    kind = data.draw(st.sampled_from([hs.ScalarLinear, hs.ScalarReLU]))
    m = data.draw(st.integers(1, 3))
    v = np.asarray(data.draw(st.lists(NUMBERS, min_size=m, max_size=m)))
    w = np.asarray(data.draw(st.lists(NUMBERS, min_size=m, max_size=m)))
    relation = data.draw(st.sampled_from(["free", "equal", "opposite", "near"]))
    near = 1 + 2.0**-30 * w
    w = {"free": w, "equal": v, "opposite": -v, "near": v * near}[relation]
    x, y = (np.asarray(data.draw(st.lists(NUMBERS, min_size=2, max_size=2))) for _ in range(2))
    rule = {
        "lr": data.draw(st.sampled_from([0.05, 0.3])),
        "momentum": data.draw(st.sampled_from([0.0, 0.5])),
        "weight_decay": data.draw(st.sampled_from([0.0, 0.25])),
        "sam": data.draw(st.sampled_from([0.0, 0.0, 0.125])),
        "batches": data.draw(st.sampled_from([None, [[0], [1]], [[1, 0], [1], [1, 1]]])),
    }
    net = kind(w, v)
    t = hs.gradient_descent(net, x, y, steps=20, **rule)
    assert_same(t, *stepped(net, x, y, 20, **rule), tolerance=1e-11)
