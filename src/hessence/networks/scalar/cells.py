"""The Hessian of a network whose units fall into cells that do not share samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, integers, stack_rows, to_numpy, zero_rows
from hessence.networks.scalar._rounding import Derivatives
from hessence.networks.scalar.gram import Gram, gram
from hessence.networks.scalar.products import Place, Products
from hessence.spectra.subspaces import Columns, Isometry, Subspaces

CELLS = ("+", "-")
"""The cells of a ReLU network of one input: x > 0 and x ≤ 0."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The units of a ReLU network by cell: those with v > 0, and those with v < 0.

    A unit with v = 0 sits at the kink, is dead, and belongs to no cell.
    """

    w: Array
    v: Array

    @cached_property
    def masks(self) -> Array:
        """Which units are in each cell, (..., 2, m)."""
        return api.array_namespace(self.v).stack([self.v > 0, self.v < 0], axis=-2)

    @cached_property
    def weights(self) -> tuple[Array, Array]:
        """The w and the v of each cell, zero outside it, (..., 2, m)."""
        xp = api.array_namespace(self.w)
        zero = xp.zeros_like(self.w)[..., None, :]
        w, v = (xp.where(self.masks, a[..., None, :], zero) for a in (self.w, self.v))
        return w, v

    @cached_property
    def gram(self) -> Gram:
        """The Gram numbers of each cell, (..., 2)."""
        return gram(*self.weights)

    def hessian(
        self,
        gradient: Array,
        loss_hessian: Array,
        populated: tuple[bool, ...],
        far_gradient: Array | None = None,
        derivatives: Derivatives | None = None,
    ) -> CellProducts:
        """Return the Hessian from the derivatives (..., 2) of the loss in ⟨w, v⟩ of each cell.

        `populated` tells which cells have samples; one without leaves its units' directions flat.
        """
        names = tuple(f"/{cell}cell" for cell in CELLS)
        return CellProducts(
            *self.weights,
            gradient,
            loss_hessian,
            self.gram,
            names,
            far_gradient=far_gradient,
            derivatives=derivatives,
            masks=self.masks,
            populated=populated,
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CellProducts(Products):
    """The direct sum of the two cells' Hessians, in the order of the units.

    Attributes
    ----------
    masks : array (..., 2, m)
        Which units are in the cell; a dead unit is in none.
    populated : pair of bool
        Whether the cell has samples.
    """

    masks: Array
    populated: tuple[bool, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, _, m = self.w.shape
        return (*batch, 2 * m, 2 * m)

    @cached_property
    def _units(self) -> Array:
        xp = api.array_namespace(self.w)
        return xp.sum(xp.astype(self.masks, xp.int64), axis=-1)

    def _by_product(self, rows: Array) -> Array:
        xp = api.array_namespace(rows)
        spread = rows[..., None, :, :]
        return xp.where(self.masks[..., None], spread, 0 * spread)

    def _by_parameter(self, rows: Array) -> Array:
        return api.array_namespace(rows).sum(rows, axis=-3)

    def _product(self, c: int) -> tuple[Array, Array, Place]:
        index, place = self._members(self.masks[..., c, :])
        xp = api.array_namespace(self.w)
        w, v = (xp.take(a[c, :], index, axis=0) for a in (self.w, self.v))
        return w, v, place

    def families(self) -> list[Subspaces]:
        xp, families = api.array_namespace(self.w), []
        for c, populated in enumerate(self.populated):
            units = self._units[..., c]
            if populated:
                pairs = xp.minimum(units, xp.ones_like(units))
                families += self._of_products(slice(c, c + 1), units, pairs)
            else:
                families.append(self._flat(self.names[c], self.masks[..., c, :]))
        return [*families, self._flat("/kink", xp.logical_not(xp.any(self.masks, axis=-2)))]

    def _flat(self, name: str, mask: Array) -> Subspaces:
        """Return all directions of the units in a mask, which the loss does not see."""
        xp = api.array_namespace(self.w)

        def isometry(_: int) -> Isometry:
            index, place = self._members(mask)
            units = int(index.shape[0])

            return Columns(lambda both: place(both[..., :units, :], both[..., units:, :]))

        count = 2 * xp.sum(xp.astype(mask, xp.int64), axis=-1)
        zero = 0 * self.gradient[..., :1, None]
        return Subspaces(
            ("flat",), isometry, count, (name,), values=zero, errors=lambda: 0 * to_numpy(zero)
        )

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
