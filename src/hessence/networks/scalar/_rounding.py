"""What rounding does to the Hessian of a loss of inner products, and to its closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, epsilon, nonzero, to_double
from hessence.data.losses import PointwiseLoss
from hessence.data.matrix_objectives import matrix_objective
from hessence.data.moments import Moments
from hessence.data.rounding import DerivativeErrors, derivative_errors, terms
from hessence.networks.scalar.gram import Gram

Derivatives = Callable[[Numbers], DerivativeErrors]
"""Returns bounds (..., C) for the loss's derivatives in C products from errors of the products."""


def of_loss(data: Moments, loss: str | PointwiseLoss, g: Array, slack: Numbers) -> DerivativeErrors:
    """Return the errors for products (..., C), one for each input or one for each output."""
    inputs, outputs = data.dimensions
    shape = (*g.shape[:-1], outputs, inputs)
    matrix = api.array_namespace(g).reshape(g, shape)
    found = derivative_errors(matrix_objective(data, loss), matrix, slack.reshape(shape))
    return DerivativeErrors(*(np.broadcast_to(e, shape).reshape(g.shape) for e in found))


def of_cells(
    cells: Sequence[Moments], loss: str | PointwiseLoss, g: Array, slack: Numbers
) -> DerivativeErrors:
    """Return the errors for products (..., C) that have samples of their own each."""
    total, columns = sum(cell.n for cell in cells), []
    for c, cell in enumerate(cells):
        own, share = slice(c, c + 1), cell.n / total
        none = 0 * slack[..., own]
        found = of_loss(cell, loss, g[..., own], slack[..., own]) if cell.n else (none,) * 3
        scales = (share, share**0.5, share**0.5)
        columns.append([s * error for s, error in zip(scales, found, strict=True)])
    return DerivativeErrors(*(np.concatenate(c, axis=-1) for c in zip(*columns, strict=True)))


@dataclass(frozen=True)
class ProductRounding:
    """Bounds for H = δK + s u uᵀ of each product; all numbers have shape (..., C).

    Attributes
    ----------
    gradient, hessian : array
        Bounds for the errors of δ and of s.
    size : array
        What s is a sum of, in magnitude.
    inner, norm, height : array
        The magnitudes of ⟨w, v⟩, ‖w‖² + ‖v‖² and δ.
    share : float
        The relative error of sums over units.
    """

    gradient: Numbers
    hessian: Numbers
    size: Numbers
    inner: Numbers
    norm: Numbers
    height: Numbers
    share: float

    @classmethod
    def of(
        cls, numbers: Gram, units: int, gradient: Array, hessian: Array, errors: Derivatives | None
    ) -> ProductRounding:
        """Return the bounds for δ and s with the Gram numbers and the errors of the loss."""
        inner, norm, height, size = (
            np.abs(to_double(a)) for a in (numbers.inner, numbers.norm, gradient, hessian)
        )
        spacing = epsilon(gradient)
        share = spacing * (16 + 2 * terms(units))
        found = (8 * spacing * height, np.sqrt(size), np.sqrt(8 * spacing * size))
        if errors is not None:
            found = errors(share * norm / 2)
        # All of s may be an error, where a loss has a kink: it meets the error of ‖u‖², too.
        off = (1 + share) * found[2] ** 2
        return cls(found[0], off, found[1] ** 2, inner, norm, height, share)

    def at(self, own: slice) -> ProductRounding:
        """Return the bounds for some of the products."""
        names = ("gradient", "hessian", "size", "inner", "norm", "height")
        return replace(self, **{name: getattr(self, name)[..., own] for name in names})

    def whole(self, part: str) -> Any:
        """Return a bound for ‖ΔH‖ of all products together, or of one part of it, (...,)."""
        swap = np.max(self.gradient + self.share * self.height, axis=-1)
        curved = np.sum(self.curved(), axis=-1)
        return (0.0 if part == "ggn" else swap) + (0.0 if part == "functional" else curved)

    def curved(self) -> Numbers:
        """Return bounds for s ‖u‖²."""
        return (self.hessian + self.share * self.size) * self.norm

    def pair(self, upper: Array, lower: Array) -> Numbers:
        """Return bounds for the two outliers of each product, (..., C, 2).

        The one of smaller magnitude is −δ (δ + 2sg)/λ with λ the other, and as accurate as these.
        """
        first, second = (np.abs(to_double(a)) for a in (upper, lower))
        outer, inner = np.maximum(first, second), np.minimum(first, second)
        both = self.size * self.norm + self.height
        off = self.gradient + self.hessian * self.norm + self.share * both
        slack = self.share * self.norm / 2
        far = self.height + 2 * self.size * self.inner
        off_far = self.gradient + 2 * self.inner * self.hessian + self.share * far
        off_far = off_far + 2 * (self.size + self.hessian) * slack
        scale = nonzero(outer)
        ratio = np.minimum(1.0, far / scale)
        small = ratio * self.gradient + (self.height * off_far + inner * off) / scale
        small = 1.25 * (small + self.share * inner)
        # To first order; where the larger one may be far off, there is Weyl's inequality.
        small = np.where(8 * off >= outer, off, small)
        return np.stack(
            [np.where(first >= second, a, b) for a, b in ((off, small), (small, off))], axis=-1
        )
