"""Networks with data for property tests, the degenerate corners among them."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.oracle import KINDS, Case

SIMPLE = st.sampled_from([0.0, 0.0, 1.0, -1.0, 0.5, -2.0])
GENERAL = st.floats(0.01, 3.0) | st.floats(-3.0, -0.01)
NUMBERS = SIMPLE | GENERAL


def at_least(examples):
    """Return a decorator for a test that needs more examples than others; a hunt draws its own."""
    return settings(max_examples=max(examples, settings().max_examples))


def shapes(kind, m, n, d):
    """Return the shapes of a weight, of x and of y."""
    return {
        "DecoupledInputs": ((d, m), (n, d), (n,)),
        "DecoupledOutputs": ((d, m), (n,), (n, d)),
    }.get(kind, ((m,), (n,), (n,)))


@st.composite
def cases(draw, kind, loss="mse", exponents=None):
    """Draw a case; `exponents` are powers of ten that scale the weights, x and y."""
    m, n, d = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    weight_shape, x_shape, y_shape = shapes(kind, m, n, d)

    def array(shape):
        scale = 1.0 if exponents is None else 10.0 ** draw(exponents)
        return scale * draw(hnp.arrays(float, shape, elements=NUMBERS))

    weights = {name: array(weight_shape) for name in KINDS[kind].order}
    first, *_, last = KINDS[kind].order
    relation = draw(st.sampled_from(["free", "free", "equal", "opposite", "near", "zero"]))
    weights[last] = {
        "free": weights[last],
        "equal": weights[first].copy(),
        "opposite": -weights[first],
        "near": weights[first] * (1 + 1e-9 * weights[last]),
        "zero": 0 * weights[first],
    }[relation]
    x, y = array(x_shape), array(y_shape)
    if loss == "logistic":
        return Case(kind, weights, x, np.where(y < 0, -1.0, 1.0), loss)
    case = Case(kind, weights, x, y, loss)
    if draw(st.sampled_from([False, False, True])):
        case = Case(kind, weights, x, case.predictions.reshape(y_shape), loss)
    return case


def typical(kind, loss="mse", seed=0, m=3, n=5, d=2, x=None):
    """Return a case with nothing special about it."""
    rng = np.random.default_rng([seed, *map(ord, kind)])
    weight_shape, x_shape, y_shape = shapes(kind, m, n, d)
    weights = {name: rng.normal(size=weight_shape) for name in KINDS[kind].order}
    x = rng.normal(size=x_shape) if x is None else x
    y = rng.normal(size=(*np.shape(x)[:1], *y_shape[1:]))
    return Case(kind, weights, x, np.sign(y) if loss == "logistic" else y, loss)


# Dyadic numbers of few bits: all moments, and all products of moments, are floating-point numbers.

FEW_BITS = st.integers(-4, 4).map(lambda i: i / 2)
POWERS = st.sampled_from([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0])


@st.composite
def dyadic_cases(draw, kind):
    """Draw a case with exact moments, often very close to the solution or to a third of it."""
    m, d, n = draw(st.integers(1, 3)), draw(st.integers(1, 2)), 4
    weight_shape, x_shape, y_shape = shapes(kind, m, n, d)

    def array(shape, elements=FEW_BITS):
        return draw(hnp.arrays(float, shape, elements=elements))

    first, last = KINDS[kind].order
    weights = {first: array(weight_shape), last: array(weight_shape)}
    relation = draw(st.sampled_from(["free", "free", "equal", "opposite", "near"]))
    if relation in ("equal", "opposite"):
        weights[last] = weights[first] * (1 if relation == "equal" else -1)
    if relation == "near":
        weights[last] = weights[first] + 2.0**-12 * weights[last]
    if kind == "ScalarReLU":
        weights[first] = np.where(weights[first] == 0, 1.0, weights[first])
    x = array(x_shape, POWERS)
    if kind == "DecoupledInputs":
        x = x * (np.arange(n)[:, None] % d == np.arange(d))
    y = array(y_shape)
    multiple = draw(st.sampled_from([0.0, 1.0, 1.0, 3.0]))
    if multiple:
        fitted = Case(kind, weights, x, y).predictions.reshape(y_shape)
        y = multiple * fitted + 2.0 ** (-24 if relation == "near" else -36) * y
    return Case(kind, weights, x, y)


@st.composite
def theorem_cases(draw, smallest=22):
    """Draw a ScalarAffine case that meets the assumptions of the papers' theorem exactly."""
    a, b, c, d = draw(st.lists(st.integers(-4, 4), min_size=4, max_size=4).filter(any))
    v, bias = np.asarray([a, b, c, d], float), np.asarray([-b, a, -d, c], float)
    apart = np.asarray([c, -d, -a, b], float)  # orthogonal to both
    nudge = draw(hnp.arrays(float, 4, elements=FEW_BITS))
    w = draw(st.sampled_from([0.0, 1.0])) * apart + 2.0 ** -draw(st.integers(0, smallest)) * nudge
    x, mask = np.asarray([1.0, -1.0, 1.0, -1.0]), np.asarray([1.0, 1.0, -1.0, -1.0])
    return Case("ScalarAffine", {"w": w, "v": v, "b": bias}, x, draw(FEW_BITS) * mask)
