"""The Hessian of a network whose units fall into cells that do not share samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, integers, stack_rows, to_numpy, zero_rows
from hessence.networks.scalar.products import (
    Gram,
    Part,
    Place,
    bulk_isometry,
    direction_isometry,
    pair_block,
    pair_isometry,
    rest_isometry,
    swap_blocks,
    swap_isometry,
)
from hessence.spectra.operators import Hessian
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Isometry, Subspaces

CELLS = ("+", "-")
"""The cells of a ReLU network of one input: x > 0 and x ≤ 0."""


@dataclass(frozen=True, eq=False, repr=False)
class CellwiseHessian(Hessian):
    """The direct sum of the two cells' Hessians, in the order of the units.

    Attributes
    ----------
    w, v : array (..., 2, m)
        The weights, zero outside the cell.
    masks : array (..., 2, m)
        Which units are in the cell; a dead unit is in none.
    slope, curvature : array (..., 2)
        First and second derivative of each cell's loss.
    numbers : Gram
        The Gram numbers of w and v in each cell.
    populated : tuple of bool
        Whether the cell has samples.
    part : str
        Which of the Hessian and its two parts this is.
    far_slope : array (..., 2), optional
        δ + 2 s g of each cell, where it is known to more digits than the sum has.
    """

    w: Array
    v: Array
    masks: Array
    slope: Array
    curvature: Array
    numbers: Gram
    populated: tuple[bool, bool]
    part: Part = "hessian"
    far_slope: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix, batch dimensions in front."""
        *batch, _, m = self.w.shape
        return (*batch, 2 * m, 2 * m)

    @property
    def ggn(self) -> CellwiseHessian:
        """The Gauss–Newton part."""
        return replace(self, slope=0 * self.slope, part="ggn")

    @property
    def functional(self) -> CellwiseHessian:
        """The functional part."""
        return replace(self, curvature=0 * self.curvature, part="functional")

    @property
    def _reference(self) -> Array:
        return self.w

    @cached_property
    def _units(self) -> Array:
        """How many units each cell has, (..., 2)."""
        xp = api.array_namespace(self.w)
        return xp.sum(xp.astype(self.masks, xp.int64), axis=-1)

    def trace(self) -> Array:
        """Return the sum over cells of s (‖w‖² + ‖v‖²)."""
        return api.array_namespace(self.w).sum(self.curvature * self.numbers.norm, axis=-1)

    def squared_norm(self) -> Array:
        """Return the sum over cells of 2q δ² + 4 s δ g + s² (‖w‖² + ‖v‖²)², q units in the cell."""
        xp = api.array_namespace(self.w)
        units = xp.astype(self._units, self.w.dtype)
        g = self.numbers
        swap = self.slope * (2 * units * self.slope + 4 * self.curvature * g.inner)
        return xp.sum(swap + (self.curvature * g.norm) ** 2, axis=-1)

    def spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors."""
        xp = api.array_namespace(self.w)
        alive = xp.any(self.masks, axis=-2)
        dead = int(self.w.shape[-1]) - self._units[..., 0] - self._units[..., 1]
        kinks = self._flat_block("/kink", 2 * dead, xp.logical_not(alive))
        return Spectrum([*self._cell_blocks(0), *self._cell_blocks(1), kinks], "closed form")

    def _apply(self, columns: Array) -> Array:
        xp = api.array_namespace(self.w)
        m = int(self.w.shape[-1])
        dv, dw = columns[..., :m, :], columns[..., m:, :]
        along = xp.matmul(self.w, dv) + xp.matmul(self.v, dw)
        bent = self.curvature[..., None] * along
        slope = unit_slopes(self.slope, self.masks)[..., None]
        return stack_rows(
            slope * dw + xp.matmul(xp.matrix_transpose(self.w), bent),
            slope * dv + xp.matmul(xp.matrix_transpose(self.v), bent),
        )

    def _cell_blocks(self, c: int) -> list[Subspaces]:
        xp = api.array_namespace(self.w)
        suffix = f"/{CELLS[c]}cell"
        units = self._units[..., c]
        mask = self.masks[..., c, :]
        if not self.populated[c]:
            return [self._flat_block(suffix, 2 * units, mask)]
        own = slice(c, c + 1)
        slope, curvature, numbers = (
            self.slope[..., own],
            self.curvature[..., own],
            self.numbers.at(own),
        )
        far = None if self.far_slope is None else self.far_slope[..., own]
        one = xp.ones_like(units)
        exists = xp.minimum(units, one)

        def of_cell(make: Callable[[Array, Array, Place], Isometry]) -> Callable[[int], Isometry]:
            def isometry(_: int) -> Isometry:
                index, place = self._members(mask)
                w, v = (xp.take(a[c, :], index, axis=0) for a in (self.w, self.v))
                return make(w, v, place)

            return isometry

        def bulk(sign: int) -> Callable[[int], Isometry]:
            return of_cell(lambda w, v, place: bulk_isometry(w, v, sign, place))

        def everything(sign: int) -> Callable[[int], Isometry]:
            return of_cell(lambda w, v, place: swap_isometry(sign, place))

        match self.part:
            case "functional":
                return swap_blocks(slope, units, (suffix,), everything)
            case "ggn":
                value = (curvature * numbers.norm)[..., None, None]
                direction, rest = of_cell(direction_isometry), of_cell(rest_isometry)
                return [
                    Subspaces(("outlier",), direction, exists, (suffix,), matrix=value),
                    Subspaces(("flat",), rest, 2 * units - exists, (suffix,), matrix=0 * value),
                ]
            case _:
                pair = of_cell(pair_isometry)
                return [
                    pair_block(numbers, slope, curvature, (suffix,), pair, exists, far),
                    *swap_blocks(slope, units - exists, (suffix,), bulk),
                ]

    def _flat_block(self, suffix: str, multiplicity: Array, mask: Array) -> Subspaces:
        def isometry(_: int) -> Isometry:
            index, place = self._members(mask)
            units = int(index.shape[0])

            def carry(coordinates: Array, copies: Array) -> Array:
                both = coordinates[..., None] * copies
                return place(both[..., :units, :], both[..., units:, :])

            return carry

        zero = 0 * self.slope[..., :1, None, None]
        return Subspaces(("flat",), isometry, multiplicity, (suffix,), matrix=zero)

    def _members(self, mask: Array) -> tuple[Array, Place]:
        """Return the indices of the units in a mask, and how to put their vectors in place."""
        if mask.ndim > 1:
            raise ValueError(
                "eigenvectors of a batch of ReLU networks differ in their supports; "
                "pick one network first, as in net[0].hessian(x, y)."
            )
        xp = api.array_namespace(self.w)
        members = np.flatnonzero(to_numpy(mask))
        # Units outside the mask take the row of zeros that is appended below the members'.
        rows = np.full(mask.shape, members.size)
        rows[members] = np.arange(members.size)
        source = integers(rows, self.w)

        def place(v_part: Array, w_part: Array) -> Array:
            halves = (
                xp.take(stack_rows(part, zero_rows(1, part)), source, axis=-2)
                for part in (v_part, w_part)
            )
            return stack_rows(*halves)

        return integers(members, self.w), place


def unit_slopes(slopes: Array, masks: Array) -> Array:
    """Spread one slope for each cell over the cell's units: (..., 2), (..., 2, m) → (..., m)."""
    xp = api.array_namespace(slopes)
    return xp.sum(xp.where(masks, slopes[..., None], 0 * slopes[..., None]), axis=-2)
