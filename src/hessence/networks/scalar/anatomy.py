"""What sharpness is made of, and the phases of learning that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, as_scalar, epsilon, nonzero, to_numpy
from hessence.networks.scalar.gram import Gram, outlier_pair


@dataclass(frozen=True)
class Anatomy:
    r"""The sharpness of a scalar linear network, as a sum of four terms.

    The larger outlier is (T + R)/2 with

    .. math:: R^2 = (\sigma^2\|w\|^2 - \sigma^2\|v\|^2)^2
              + 4\sigma^4(\|w\|^2\|v\|^2 - \langle w, v\rangle^2)
              + 4(2\sigma^2\langle w, v\rangle - E[yx])^2

    (Singh & Hofmann, Section 1). Each square's share of R/2 is that square over 2R, so that the
    four terms below add up to the sharpness.

    Attributes
    ----------
    trace : array
        T/2: half the trace, the overall size of the weights.
    norm_imbalance : array
        What the gap between the two layers' norms adds.
    non_collinearity : array
        What the angle between w and v adds.
    distance_from_target : array
        What the distance of twice the prediction from the target adds.
    sharpness : array
        The largest eigenvalue, as the spectrum reports it.

    Examples
    --------
    >>> import hessence as hs
    >>> anatomy = hs.ScalarLinear(w=[1.0, 2.0], v=[0.5, 0.25]).anatomy([1.0, -1.0], [1.0, -1.0])
    >>> float(anatomy.sharpness), float(sum(anatomy.terms().values()).round(12))
    (5.3125, 5.3125)
    >>> max(anatomy.terms(), key=anatomy.terms().get)
    'trace'
    """

    trace: Array
    norm_imbalance: Array
    non_collinearity: Array
    distance_from_target: Array
    sharpness: Array

    def terms(self) -> dict[str, Array]:
        """Return the four terms by name."""
        names = ("trace", "norm_imbalance", "non_collinearity", "distance_from_target")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class CellwiseAnatomy:
    """The anatomy of a ReLU network: one for each cell, and which of them dictates the sharpness.

    Attributes
    ----------
    cells : mapping
        The anatomy of ``"+"`` and of ``"-"``.
    dictating : str, or array of str over a batch
        The cell with the larger sharpness.
    sharpness : array
        The largest eigenvalue.

    Examples
    --------
    >>> import hessence as hs
    >>> net = hs.ScalarReLU(w=[1.0, 2.0, -1.0], v=[0.5, 0.25, -1.0])
    >>> anatomy = net.anatomy([1.0, -1.0, 2.0], [1.0, -1.5, 1.75])
    >>> anatomy.dictating, float(anatomy.cells["-"].sharpness.round(12))
    ('+', 0.5)
    """

    cells: Mapping[str, Anatomy]
    dictating: Any
    sharpness: Array


def dissect(w: Array, v: Array, numbers: Gram, objective: Any) -> Anatomy:
    """Split the larger outlier into its four terms."""
    xp = api.array_namespace(w)
    variance = objective.variance
    gradient = objective.gradient(numbers.inner)
    sharpness, other = outlier_pair(numbers, gradient, objective.hessian(numbers.inner))
    radius = sharpness - other
    imbalance = variance * xp.vecdot(w + v, w - v)
    # The Gram determinant of w and v is a quarter of that of w + v and w − v; projecting one on the
    # other keeps it from cancelling, and from turning negative.
    total, difference = w + v, w - v
    along = xp.vecdot(total, difference) / nonzero(numbers.plus)
    across = difference - along[..., None] * total
    distance = 2 * (gradient + variance * numbers.inner)
    # No term is larger than the radius, so that dividing first keeps the squares within range.
    full = nonzero(radius)
    area = (variance * numbers.plus / full) * (variance * xp.vecdot(across, across))
    return Anatomy(
        trace=variance * numbers.norm / 2,
        norm_imbalance=(imbalance / full) * imbalance / 2,
        non_collinearity=area / 2,
        distance_from_target=(distance / full) * distance / 2,
        sharpness=as_scalar(sharpness),
    )


def phase_of(inner: Array, objective: Any) -> Any:
    """Return the phase of learning for one product, or an array of phases for a batch."""
    covariance = to_numpy(objective.covariance)
    fitted = to_numpy(objective.variance * inner)
    # Mirror data whose solution is negative.
    sign = np.sign(covariance)
    progress, target = np.broadcast_arrays(sign * fitted, sign * covariance)
    slack = 4 * epsilon(inner) * target
    phases = np.full(target.shape, "divergent", dtype=object)
    phases[progress - target <= slack] = "late"
    phases[3 * progress <= target] = "early"
    phases[target == 0] = None
    return phases.item() if phases.ndim == 0 else phases
