r"""What rounding does to the derivatives of a loss in the matrix M of a linear predictor.

The gradient is a sum over samples of terms that cancel near a good fit, and what is left there may
be rounding. These are bounds, to first order in ε, from the sizes that the terms have before they
cancel. With :math:`D_{ki} = \sqrt{E[|\varphi''_k|\,x_i^2]}` every entry of the second derivative is
at most :math:`D_{ki} D_{lj}`, so bounds made of D hold whatever the units of inputs and outputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, epsilon, like, to_double, to_numpy
from hessence.data.losses import CrossEntropy, Logistic, PointwiseLoss, sigmoid
from hessence.data.matrix_objectives import MatrixLoss, MatrixQuadratic

STEP = 4
"""A prediction is moved by this many times its error, to see how derivatives change."""


def terms(count: int) -> float:
    """Return how many roundings a sum of `count` terms, made block by block, may accumulate."""
    return min(count, 512 + count / 256) + 8


class DerivativeErrors(NamedTuple):
    """Bounds for the derivatives of a loss in M, of shape (..., K, D)."""

    gradient: Numbers  # for each entry of the gradient
    size: Numbers
    """D: the magnitudes of the terms of the second derivative's entries sum to at most D_ki D_lj"""
    spread: Numbers  # the same for the error of the second derivative

    def second(self, share: float) -> Numbers:
        """Return a bound (..., K, D, K, D) for the second derivative's error, and a share of it."""
        own, off = (a[..., :, :, None, None] * a[..., None, None, :, :] for a in self[1:])
        found: Numbers = share * own + off
        return found


def derivative_errors(objective: Any, M: Array, slack: Numbers) -> DerivativeErrors:
    """Return what rounding may have done to the gradient and to the second derivative at M.

    `slack` (..., K, D) bounds the error of M itself.
    """
    spacing, matrix = epsilon(M), np.abs(to_double(M))
    slack = slack + 2 * spacing * matrix
    if isinstance(objective, MatrixQuadratic):
        data = objective.moments
        units = np.sqrt(np.diagonal(to_double(data.xx)))
        targets = np.sqrt(np.diagonal(to_double(data.yy)))
        share = spacing * (terms(data.n) + matrix.shape[-1])
        terms_of = share * (targets + matrix @ units) + slack @ units
        size = units + 0 * matrix
        return DerivativeErrors(terms_of[..., None] * units, size, np.sqrt(share) * size)
    if isinstance(objective, MatrixLoss):
        return _of_samples(objective, M, matrix, slack)
    # PyTorch has differentiated the loss, and what cancels inside is not known.
    second = to_double(objective.hessian(M).entries)
    size = np.sqrt(np.abs(np.einsum("...kiki->...ki", second)))
    total = np.sum(slack * size, axis=(-2, -1), keepdims=True)
    share = spacing * terms(len(objective.x))
    gradient = size * total + share * np.abs(to_numpy(objective.gradient(M)))
    return DerivativeErrors(gradient, size, np.sqrt(share) * size)


def _of_samples(
    objective: MatrixLoss, M: Array, matrix: Numbers, slack: Numbers
) -> DerivativeErrors:
    x, f = np.abs(to_double(objective.x)), objective.predict(M)
    spacing, count = epsilon(M), len(x)
    share = spacing * (terms(count) + matrix.shape[-1])
    reach = x @ np.swapaxes(slack + matrix.shape[-1] * spacing * matrix, -1, -2)
    if objective.offset is not None:
        reach = reach + share * np.abs(to_numpy(objective.offset))
    (first, off_first), (second, off_second) = moved_derivatives(
        objective.loss, f, objective.y, reach
    )
    if second.ndim > first.ndim:
        # Σ_kl d_kl a_k a_l ≤ Σ_k (Σ_l d_kl) a_k² for a symmetric d.
        second, off_second = second.sum(axis=-1), off_second.sum(axis=-1)
    square = x * x / count
    gradient = np.swapaxes(off_first + share * first, -1, -2) @ x / count
    size, spread = (np.swapaxes(s, -1, -2) @ square for s in (second, off_second))
    return DerivativeErrors(gradient, np.sqrt(size), np.sqrt(spread + share * size))


def moved_derivatives(
    loss: PointwiseLoss, f: Array, y: Array, reach: Numbers
) -> tuple[tuple[Numbers, Numbers], tuple[Numbers, Numbers]]:
    """Return the magnitudes of a loss's first and second derivative, with error bounds.

    Predictions f are moved by a multiple of their errors `reach`, to see how these change.
    """
    if not getattr(loss, "coupled", False):
        # In a residual, the target's rounding is added.
        reach = reach + epsilon(f) * np.abs(to_double(y))
    changes = _changes(loss, f, y, STEP * reach)
    found = []
    for derivative, change in zip((loss.first, loss.second), changes, strict=True):
        size = np.abs(to_double(derivative(f, y)))
        # A derivative of a saturated loss may fall below the smallest number there is.
        off = 8 * epsilon(f) * size + float(api.array_namespace(f).finfo(f.dtype).smallest_normal)
        found.append((size, off + change))
    if not getattr(loss, "coupled", False):
        # Between two points the first derivative may vary as much as the second allows.
        (size, off), (curve, bent) = found
        found[0] = size, off + reach * (curve + bent)
    return found[0], found[1]


def _changes(loss: PointwiseLoss, f: Array, y: Array, far: Numbers) -> tuple[Numbers, Numbers]:
    """Return how much the first and the second derivative change, where f is moved by up to far."""
    if isinstance(loss, CrossEntropy):
        logits, targets = map(to_double, (f, y))
        return _changes_of_cross_entropy(logits, targets, far)
    steps = [far, -far]
    if getattr(loss, "coupled", False):
        steps = [step * own for step in steps for own in np.eye(far.shape[-1])]
    else:
        # The second derivative may change sharply at the minimum, and the prediction be on either
        # side of it; that of the logistic loss is largest where the prediction is zero.
        middles = (y - f, -f) if isinstance(loss, Logistic) else (y - f,)
        steps += [np.clip(to_double(gap), -far, far) for gap in middles]
    changes = []
    for derivative in (loss.first, loss.second):
        gaps = [to_numpy(derivative(f + like(step, f), y) - derivative(f, y)) for step in steps]
        changes.append(np.sum(np.abs(np.asarray(gaps).astype(np.float64)), axis=0))
    return changes[0], changes[1]


def _changes_of_cross_entropy(f: Numbers, y: Numbers, far: Numbers) -> tuple[Numbers, Numbers]:
    r"""Bound the changes wherever f is moved to, and not only at the ends.

    Two classes may be decided at f and at both ends, and not in between. The margin
    :math:`m_k = f_k - \log \sum_{j \neq k} e^{f_j}` grows with :math:`f_k` and falls with the
    others, so it is between two values that are known, and so are :math:`p_k = \sigma(m_k)` and
    what the others have, :math:`1 - p_k = \sigma(-m_k)`. Of the second derivative, the diagonal
    :math:`p_k (1 - p_k)` falls with :math:`|m_k|`, and :math:`p_k p_l \le 1/4`.
    """
    low, here, high = _margins(f, -far), _margins(f, 0 * far), _margins(f, far)
    p = [sigmoid(m) for m in (low, here, high)]
    others = [sigmoid(-m) for m in (high, here, low)]
    # The smaller one of p and 1 − p keeps its digits.
    change = np.where(here > 0, _change(*others), _change(*p))
    nearest, farthest = np.clip(0.0, low, high), np.where(high > -low, high, low)
    own = _change(*(sigmoid(m) * sigmoid(-m) for m in (farthest, here, nearest)))
    least, now, most = (a[..., :, None] * a[..., None, :] for a in p)
    second = _change(least, now, np.minimum(most, 0.25))
    eye = np.eye(f.shape[-1])
    total = np.sum(y, axis=-1)[..., None]
    return total * change, total[..., None] * np.where(eye == 1, own[..., None] * eye, second)


def _change(least: Numbers, here: Numbers, most: Numbers) -> Numbers:
    found: Numbers = np.maximum(np.maximum(most - here, here - least), 0.0)
    return found


def _margins(f: Numbers, far: Numbers) -> Numbers:
    """Return f_k − log Σ_{j≠k} exp f_j, where f_k is moved by far_k and all f_j by −far_j."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        others = (f - far)[..., None, :] + np.where(np.eye(f.shape[-1]) == 1, -np.inf, 0.0)
        top = np.max(others, axis=-1)
        top = np.where(np.isfinite(top), top, 0.0)
        margins = f + far - top - np.log(np.sum(np.exp(others - top[..., None]), axis=-1))
    # Infinite predictions tell nothing.
    found: Numbers = np.where(np.isnan(margins), np.where(far < 0, -np.inf, np.inf), margins)
    return found
