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

from hessence._common.arrays import Array, Numbers, epsilon, like, to_numpy
from hessence.data.losses import PointwiseLoss
from hessence.data.matrix_objectives import MatrixLoss, MatrixQuadratic

STEP = 4
"""How many times its own error a prediction is moved, to see what that does to derivatives."""


def terms(count: int) -> float:
    """Return how many roundings a sum of so many terms may accumulate.

    Sums are made in blocks (of some hundred terms, then of the blocks), and not one by one.
    """
    return min(count, 512 + count / 256) + 8


class DerivativeErrors(NamedTuple):
    """Bounds for the derivatives of a loss in M, of shape (..., K, D).

    Attributes
    ----------
    gradient : array
        For each entry of the gradient.
    size : array
        D: no entry of the second derivative exceeds D_ki D_lj, nor does the sum of the magnitudes
        of its terms.
    spread : array
        The same for the error of the second derivative.
    """

    gradient: Numbers
    size: Numbers
    spread: Numbers

    def second(self, share: float) -> Numbers:
        """Return a bound (..., K, D, K, D) for the second derivative's error, and a share of it."""
        own, off = (a[..., :, :, None, None] * a[..., None, None, :, :] for a in self[1:])
        found: Numbers = share * own + off
        return found


def derivative_errors(objective: Any, M: Array, slack: Numbers) -> DerivativeErrors:
    """Return what rounding may have done to the gradient and to the second derivative at M.

    `slack` (..., K, D) bounds the error of M itself.
    """
    spacing, matrix = epsilon(M), np.abs(to_numpy(M).astype(np.float64))
    slack = slack + 2 * spacing * matrix
    if isinstance(objective, MatrixQuadratic):
        data = objective.moments
        units = np.sqrt(np.diagonal(to_numpy(data.xx).astype(np.float64)))
        targets = np.sqrt(np.diagonal(to_numpy(data.yy).astype(np.float64)))
        share = spacing * (terms(data.n) + matrix.shape[-1])
        terms_of = share * (targets + matrix @ units) + slack @ units
        size = units + 0 * matrix
        return DerivativeErrors(terms_of[..., None] * units, size, np.sqrt(share) * size)
    if isinstance(objective, MatrixLoss):
        return _of_samples(objective, M, matrix, slack)
    # PyTorch has differentiated the loss, and what cancels inside is not known.
    second = to_numpy(objective.hessian(M).entries).astype(np.float64)
    size = np.sqrt(np.abs(np.einsum("...kiki->...ki", second)))
    total = np.sum(slack * size, axis=(-2, -1), keepdims=True)
    share = spacing * terms(len(objective.x))
    gradient = size * total + share * np.abs(to_numpy(objective.gradient(M)))
    return DerivativeErrors(gradient, size, np.sqrt(share) * size)


def _of_samples(
    objective: MatrixLoss, M: Array, matrix: Numbers, slack: Numbers
) -> DerivativeErrors:
    x, f = np.abs(to_numpy(objective.x).astype(np.float64)), objective.predict(M)
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

    Predictions f are moved by a multiple of their errors `reach`, to see what that does.
    """
    coupled = bool(getattr(loss, "coupled", False))
    if not coupled:
        # Of a residual, that of the target comes on top.
        reach = reach + epsilon(f) * np.abs(to_numpy(y).astype(np.float64))
    steps = [STEP * reach, -STEP * reach]
    if coupled:
        steps = [step * own for step in steps for own in np.eye(reach.shape[-1])]
    else:
        # A loss may bend sharply where it is least, and the prediction be on either side of that.
        gap = to_numpy(y - f).astype(np.float64)
        steps.append(np.clip(gap, -STEP * reach, STEP * reach))
    found = []
    for derivative in (loss.first, loss.second):
        here = derivative(f, y)
        size = np.abs(to_numpy(here).astype(np.float64))
        # A derivative of a saturated loss may fall below the smallest number there is.
        off = 8 * epsilon(f) * size + float(api.array_namespace(f).finfo(f.dtype).smallest_normal)
        for step in steps:
            there = derivative(f + like(step, f), y)
            off = off + np.abs(to_numpy(there - here).astype(np.float64))
        found.append((size, off))
    if not coupled:
        # Between two points the first derivative may go up and down as far as the second lets it.
        (size, off), (curve, bent) = found
        found[0] = size, off + reach * (curve + bent)
    return found[0], found[1]
