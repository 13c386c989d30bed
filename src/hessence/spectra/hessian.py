"""The Hessian of a solvable network: an operator whose whole spectrum a theorem gives."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import fields, replace
from typing import Any, Literal, Self

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, as_scalar, epsilon, like, nonzero, to_double, to_numpy
from hessence.spectra.operators import Operator
from hessence.spectra.spectrum import Spectrum

Part = Literal["hessian", "ggn", "functional"]
"""A Hessian, or one of the two parts that it is the sum of."""

UPWARD = 100
"""A bound of rounding is raised by this many ε of itself, for its own rounding."""


class Hessian(Operator):
    """The Hessian of a loss, split as H = ggn + functional.

    The Gauss–Newton part is the Hessian of the linearised network; the functional part is the
    residual times the network's second derivative, and vanishes at zero residual. A subclass is
    a dataclass with a field ``part``, one of the three.
    """

    @abstractmethod
    def exact_spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors."""

    def spectrum(self, *arguments: Any, **options: Any) -> Spectrum:
        """Return all eigenvalues and eigenvectors; there are no arguments."""
        if arguments or options:
            raise ValueError(
                "this spectrum is exact and whole, and takes no k or other arguments: ask for "
                "H.spectrum(), or for H.top(k) if a few eigenvalues will do."
            )
        return self.exact_spectrum()

    @abstractmethod
    def trace(self) -> Array:
        """Return the sum of the diagonal, from the entries and not from eigenvalues."""

    @abstractmethod
    def squared_norm(self) -> Array:
        """Return the sum of all squared entries, from the entries and not from eigenvalues."""

    @property
    def ggn(self) -> Self:
        """The Gauss–Newton part."""
        return self._only("ggn", "gradient")

    @property
    def functional(self) -> Self:
        """The functional part."""
        return self._only("functional", "loss_hessian")

    def _only(self, part: Part, without: str) -> Self:
        """Return one part; a derivative of the loss that does not enter it becomes zero."""
        zero = {f.name: 0 * getattr(self, f.name) for f in fields(self) if f.name == without}  # type: ignore[arg-type]
        return replace(self, part=part, **zero)  # type: ignore[type-var]

    def ggn_error(self) -> Array:
        """Return how far the Gauss–Newton part's largest eigenvalue is off, relative to H's.

        Zero where the residual vanishes; NaN where the largest eigenvalue of H is zero and that of
        the Gauss–Newton part is not.
        """
        xp = api.array_namespace(self.reference)
        mine, theirs = self.spectrum().sharpness, self.ggn.spectrum().sharpness
        gap = xp.abs(mine - theirs)
        missing = xp.where(gap == 0, 0 * gap, float("nan") + 0 * gap)
        return as_scalar(xp.where(mine == 0, missing, gap / xp.abs(nonzero(mine))))


def positive_norm(operator: Operator) -> Any:
    """Return an upper bound (...,) for the norm of an operator without negative entries.

    It is at most the largest (A d)_i / d_i for any positive vector d (Collatz), and close to it if
    d is close to the leading eigenvector. The operator whose products add up the terms of a
    Hessian's products, all with positive signs, bounds the rounding of that Hessian. The bound is
    raised a little for its own rounding.
    """
    reference, bound = operator.reference, np.asarray(np.inf)
    d = like(np.ones((*operator.shape[:-1], 1)), reference)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(4):
            image = to_double(operator.times(d))
            ratio = image / to_numpy(d)
            # Where a product overflows, nothing is known.
            bound = np.minimum(bound, np.where(np.isnan(ratio), np.inf, ratio).max(axis=(-2, -1)))
            top = image.max(axis=(-2, -1), keepdims=True)
            closer = image / np.where(top == 0, 1.0, top) + 0.01
            d = like(np.where(np.isfinite(closer), closer, 1.0), reference)
    return (1 + UPWARD * epsilon(reference)) * bound
