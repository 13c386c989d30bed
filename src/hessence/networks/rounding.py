r"""What rounding does to the Hessian of a loss of a product of matrices :math:`M = F_L \cdots F_1`.

With P and S the products of the factors before and after one, and B(k, l) of those between two, a
rounding error made at the j-th factor is relative to the factor and to the product that it was
multiplied with, and the other factors pass it on. So without cancellation P_l has the size
:math:`\|P_l\| + \sum_{j<l} \|B(l, j)\|\,\|F_j\|\,\|P_j\|`. Sizes are kept by input and by output:
a large feature says nothing about what happens to a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hessence._common.arrays import Array, Numbers, epsilon, to_numpy
from hessence.data.rounding import DerivativeErrors, terms

COMMON = 64
"""Roundings of steps whose number does not depend on sizes."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of products of factors, counted from 0, (...,) each or for each input or output.

    Attributes
    ----------
    columns, rows : list of array (..., D), (..., K)
        Lengths of the columns of P_l and of the rows of S_l.
    before, after : list of array
        Spectral norms of P_l and of S_l.
    between : dict of array
        Spectral norms of B(k, l), k > l.
    """

    columns: list[Numbers]
    rows: list[Numbers]
    before: list[Any]
    after: list[Any]
    between: dict[tuple[int, int], Any]

    def ggn(self, units: Numbers) -> Any:
        """Return Σ_l Σ_k r_k² (Σ_i D_ki c_i)², which bounds ‖Jᵀ S J‖ if abs(S) ≤ D Dᵀ."""
        reach = [(units * c[..., None, :]).sum(axis=-1) for c in self.columns]
        squares = ((r * along) ** 2 for r, along in zip(self.rows, reach, strict=True))
        return sum(np.sum(square, axis=-1) for square in squares)

    def functional(self, gradient: Numbers) -> Any:
        """Return a bound for the norm of the functional part of a gradient of that size."""
        # Squares of small numbers would vanish.
        scale = gradient.max(axis=(-2, -1), keepdims=True)
        gradient = gradient / np.where(scale == 0, 1.0, scale)
        whole, total = np.linalg.norm(gradient, axis=(-2, -1)), 0.0
        for (high, low), between in self.between.items():
            met = self.rows[high][..., :, None] * gradient * self.columns[low][..., None, :]
            size = self.after[high] * whole * self.before[low]
            size = np.minimum(met.sum(axis=(-2, -1)), size)
            total = total + 2 * (between * size) ** 2
        return scale[..., 0, 0] * np.sqrt(total)


class ChainRounding:
    """Bounds for the Hessian of a product of matrices, or of a batch of them.

    Parameters
    ----------
    factors : sequence of array (..., d_ℓ, d_{ℓ−1})
        The matrices, first to act first.
    derivatives : callable
        Returns the errors of the loss's derivatives from the error (..., K, D) of M.
    """

    def __init__(
        self, factors: Sequence[Array], derivatives: Callable[[Numbers], DerivativeErrors]
    ) -> None:
        plain = [to_numpy(f).astype(np.float64) for f in factors]
        count, longest = len(plain), max(max(f.shape[-2:]) for f in plain)
        self._share = epsilon(factors[0]) * (COMMON + 4 * count + 2 * terms(longest))
        self._weights = [np.linalg.norm(f, axis=(-2, -1)) for f in plain]
        self._sizes = _sizes(plain)
        self._errors = derivatives(self._share * self._uncancelled_product())

    def bound(self, gradient: Array, part: str) -> Any:
        """Return a bound for the spectral norm of the error."""
        total: Any = 0.0
        plain, variants, errors = self._sizes, self._uncancelled(), self._errors
        if part != "functional":
            # Jᵀ S J with an error in J, twice, and with one in S.
            lengths = sum(np.sqrt(sizes.ggn(errors.size)) for sizes in variants)
            total = 2 * self._share * lengths * np.sqrt(plain.ggn(errors.size))
            total = total + plain.ggn(errors.spread)
        if part != "ggn":
            own = np.abs(to_numpy(gradient).astype(np.float64))
            total = total + plain.functional(errors.gradient)
            total = total + self._share * sum(sizes.functional(own) for sizes in variants)
        return total

    def _uncancelled_product(self) -> Numbers:
        """Return the sizes (..., K, D) of what is added up to M, as far as it is rounded."""
        columns, rows, last = self._sizes.columns, self._sizes.rows, len(self._weights) - 1
        total = 0 * rows[-1][..., :, None] * columns[0][..., None, :]
        for j, weight in enumerate(self._weights if last else ()):
            # The first and the last factor are met row by row and column by column.
            left = rows[j - 1] if j == last else rows[j] * (weight[..., None] if j else 1.0)
            right = columns[j] if j else columns[1]
            total = total + left[..., :, None] * right[..., None, :]
        return total

    def _uncancelled(self) -> list[Sizes]:
        """Return the sizes with those of P, of S, and of B as they are without cancellation."""
        own, weights, last = self._sizes, self._weights, len(self._weights) - 1
        columns, rows = [c.copy() for c in own.columns], [r.copy() for r in own.rows]
        before, after, between = list(own.before), list(own.after), dict(own.between)
        for (high, low), norm in own.between.items():
            wide = norm[..., None]
            columns[high] += wide * (
                weights[low][..., None] * own.columns[low] if low else own.columns[1]
            )
            rows[low] += wide * (
                weights[high][..., None] * own.rows[high] if high < last else own.rows[last - 1]
            )
            before[high] = before[high] + norm * weights[low] * own.before[low]
            after[low] = after[low] + norm * weights[high] * own.after[high]
            for middle in range(low + 1, high):
                passed = own.between[high, middle] * own.between[middle, low]
                between[high, low] = between[high, low] + weights[middle] * passed
        return [
            replace(own, columns=columns, before=before),
            replace(own, rows=rows, after=after),
            replace(own, between=between),
        ]


def _sizes(factors: list[Numbers]) -> Sizes:
    count, batch = len(factors), factors[0].shape[:-2]
    one = np.ones(batch)
    columns, before = [np.ones((*batch, factors[0].shape[-1]))], [one]
    rows, after = [np.ones((*batch, factors[-1].shape[-2]))], [one]
    between: dict[tuple[int, int], Any] = {}
    for low in range(-1, count - 1):
        product, norm = None, one
        for high in range(low + 1, count + 1):
            # The product of the factors between the two, F_{high−1} ⋯ F_{low+1}.
            if high > low + 1:
                own = factors[high - 1]
                product = own if product is None else own @ product
                norm = np.linalg.norm(product, 2, axis=(-2, -1))
            if 0 <= low < high < count:
                between[high, low] = norm
            elif low < 0 < high < count and product is not None:
                columns.append(np.linalg.norm(product, axis=-2))
                before.append(norm)
            elif high == count and low >= 0 and product is not None:
                rows.insert(len(rows) - 1, np.linalg.norm(product, axis=-1))
                after.insert(len(after) - 1, norm)
    return Sizes(columns, rows, before, after, between)
