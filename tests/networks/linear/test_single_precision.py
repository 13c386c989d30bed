"""Errors of linear networks in single precision, where whole predictions may be rounding."""

import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import hessence as hs
from hessence.data.losses import CrossEntropy, Logistic
from hessence.data.rounding import STEP, moved_derivatives
from tests.linear_exact import Families, exact_parts


def assert_errors_hold(family, seed, loss):
    families = Families(seed)
    families.loss = loss or families.loss
    net, x, y, loss, _ = families.case(family)
    weights, x, y = [w.astype(np.float32) for w in net.weights], x.astype("f"), y.astype("f")
    H = hs.DeepLinear(weights).hessian(x, y, loss)
    wide = hs.DeepLinear([w.astype(float) for w in weights])
    parts = exact_parts(wide, x.astype(float), y.astype(float), loss)
    for part, matrix in zip(("hessian", "ggn", "functional"), parts, strict=True):
        found = (H if part == "hessian" else getattr(H, part)).spectrum()
        values = np.linalg.eigvalsh(matrix)[::-1]
        norm = np.abs(values).max()
        if 0 < norm < 1e-28 or norm > 1e37:
            continue  # Numbers vanish or overflow on the way.
        gaps = np.abs(found.eigenvalues.astype(float) - values) - 1e-14 * norm
        assert (gaps <= found.errors).all(), (part, found.method, gaps.max(), found.errors.max())


@pytest.mark.parametrize("family", ["units", "cancelling", "degenerate"])
@given(st.integers(0, 2**32 - 1))
@example(1348)
@example(1372)
def test_errors_hold_where_cross_entropy_is_decided_by_rounding(family, seed):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        assert_errors_hold(family, seed, "cross-entropy")


@pytest.mark.parametrize("loss", [CrossEntropy(), Logistic()])
@given(st.integers(0, 2**32 - 1))
def test_derivatives_change_by_no_more_than_said_wherever_predictions_are(loss, seed):
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(1, 5))
    f = rng.normal(size=(3, classes)) * 10.0 ** rng.integers(-3, 4)
    y = np.eye(classes)[rng.integers(classes, size=3)]
    if isinstance(loss, Logistic):
        y = np.sign(rng.normal(size=f.shape))
    reach = np.abs(rng.normal(size=f.shape)) * 10.0 ** rng.integers(-9, 4)
    (_, first), (_, second) = moved_derivatives(loss, f, y, reach)
    # Anywhere in the box, and close to its corners and to where classes are alike.
    places = rng.uniform(-1, 1, size=(200, *f.shape))
    places = np.concatenate([places, np.sign(places), rng.integers(-1, 2, size=places.shape)])
    alike = np.clip((rng.normal(size=(200, 3, 1)) - f) / (STEP * reach), -1, 1)
    there = f + STEP * reach * np.concatenate([places, alike])
    # What it is compared with is a difference, of numbers whose exponents were rounded.
    rounding = 16 * 2.3e-16 * (1 + np.abs(there).max())
    for derivative, bound in ((loss.first, first), (loss.second, second)):
        here, moved = derivative(f, y), derivative(there, y + 0 * there)
        gap = np.abs(moved - here) - rounding * (np.abs(moved) + np.abs(here))
        assert (gap <= bound).all()
