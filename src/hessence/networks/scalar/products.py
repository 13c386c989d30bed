r"""Inner products inside a network: the Hessian that all scalar networks share.

A loss that depends on weights w, v only through :math:`g = \langle w, v \rangle` has, in the order
(v, w), the Hessian

.. math:: H = \delta K + s\, u u^\top, \quad K = \begin{pmatrix} 0 & I \\ I & 0 \end{pmatrix},
          \quad u = (w, v), \quad \delta = \ell'(g), \quad s = \ell''(g).

K swaps the two halves, so the coordinates w ± v diagonalise it, and the rank-one term touches one
direction of each: a 2 × 2 block for the outlier pair, and :math:`\pm\delta`, each m − 1 times, for
the bulk (Singh & Hofmann, Theorems 1–3, for the mean-squared error). Networks that hold several
such products add one rank-one term each, coupled if the loss couples them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, Numbers, identity, like, stack_rows, to_double, zero_rows
from hessence.networks.scalar._rounding import Derivatives, ProductRounding
from hessence.networks.scalar.gram import Gram, outlier_pair, root
from hessence.spectra.frames import Frame
from hessence.spectra.hessian import Hessian, Part
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Columns, Isometry, Subspaces

HALF = 0.5**0.5

Place = Callable[[Array, Array], Array]
"""Puts the v part and the w part of some vectors at their place among all parameters."""


@dataclass(frozen=True, eq=False, repr=False)
class Products(Hessian):
    """The Hessian of a loss of C separate inner products ⟨w_c, v_c⟩ of m terms each.

    Parameters are ordered as all v, then all w, row by row.

    Attributes
    ----------
    w, v : array (..., C, m)
        The weights.
    gradient : array (..., C)
        The gradient of the loss in the C products.
    loss_hessian : array (..., C) or (..., C, C)
        Its Hessian in them; only the diagonal if it has no other entries.
    numbers : Gram
        The Gram numbers of w and v.
    names : sequence of str
        What to append to the labels of each product.
    part : str
        Which of the Hessian and its two parts this is.
    far_gradient : array (..., C), optional
        δ + 2 s g, where it is known to more digits than the sum has.
    derivatives : callable, optional
        What rounding has done to the derivatives of the loss.
    neglected : array (...), optional
        The norm of what couples the outliers and was left out as rounding.
    """

    w: Array
    v: Array
    gradient: Array
    loss_hessian: Array
    numbers: Gram
    names: Sequence[str] = ("",)
    part: Part = "hessian"
    far_gradient: Array | None = None
    derivatives: Derivatives | None = None
    neglected: Any = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, count, m = self.w.shape
        return (*batch, 2 * count * m, 2 * count * m)

    @property
    def coupled(self) -> bool:
        """Whether the loss couples different products."""
        return bool(self.loss_hessian.ndim > self.gradient.ndim)

    def uncoupled(self) -> Products:
        """Return the Hessian without what couples different products, which is neglected.

        What rounding may have done to the coupling is neglected with it: at a kink of the loss that
        may be all of it.
        """
        entries, norm = np.abs(to_double(self.loss_hessian)), to_double(self.numbers.norm)
        spread = np.sqrt(self._rounding.hessian)
        entries = entries + spread[..., :, None] * spread[..., None, :]
        entries = entries * (1 - np.eye(entries.shape[-1]))
        lengths = np.sqrt(norm)
        couplings = lengths[..., :, None] * entries * lengths[..., None, :]
        # The norm of a symmetric matrix is at most the largest sum of magnitudes in a row.
        neglected = np.max(np.sum(couplings, axis=-1), axis=-1)
        return replace(self, loss_hessian=self._diagonal, neglected=neglected)

    @property
    def reference(self) -> Array:
        return self.w

    def trace(self) -> Array:
        """Return Σ_c s_cc (‖w_c‖² + ‖v_c‖²)."""
        return api.array_namespace(self.w).sum(self._diagonal * self.numbers.norm, axis=-1)

    def squared_norm(self) -> Array:
        """Return 2m Σ δ_c² + 4 Σ s_cc δ_c g_c + Σ s_cd² N_c N_d, with N = ‖w‖² + ‖v‖²."""
        xp, g, units = api.array_namespace(self.w), self.numbers, like(self._units, self.w)
        swap = self.gradient * (2 * units * self.gradient + 4 * self._diagonal * g.inner)
        if not self.coupled:
            return xp.sum(swap + (self.loss_hessian * g.norm) ** 2, axis=-1)
        outer = self.loss_hessian**2 * g.norm[..., :, None] * g.norm[..., None, :]
        return xp.sum(swap, axis=-1) + xp.sum(outer, axis=(-2, -1))

    def rounding(self) -> Any:
        """Return max Δδ + Σ (Δs + γ s) (‖w‖² + ‖v‖²)."""
        return self._rounding.whole(self.part) + self.neglected

    @cached_property
    def _rounding(self) -> ProductRounding:
        return ProductRounding.of(
            self.numbers, int(self.w.shape[-1]), self.gradient, self._diagonal, self.derivatives
        )

    def exact_spectrum(self) -> Spectrum:
        method = "coupled block" if self.coupled and self.part != "functional" else "closed form"
        return Spectrum(self.families(), method, operator=self)

    def times(self, columns: Array) -> Array:
        xp, half = api.array_namespace(self.w), int(columns.shape[-2]) // 2
        dv, dw = self._by_product(columns[..., :half, :]), self._by_product(columns[..., half:, :])
        along = xp.matmul(self.w[..., None, :], dv) + xp.matmul(self.v[..., None, :], dw)
        if self.coupled:
            d_gradient = xp.matmul(self.loss_hessian, along[..., 0, :])[..., None, :]
        else:
            d_gradient = self.loss_hessian[..., None, None] * along
        gradient = self.gradient[..., None, None]
        return stack_rows(
            self._by_parameter(gradient * dw + self.w[..., None] * d_gradient),
            self._by_parameter(gradient * dv + self.v[..., None] * d_gradient),
        )

    @property
    def _diagonal(self) -> Array:
        if not self.coupled:
            return self.loss_hessian
        return api.array_namespace(self.w).linalg.diagonal(self.loss_hessian)

    # Which parameters belong to which product; a subclass may arrange them otherwise.

    @property
    def _units(self) -> Any:
        """How many units each product has."""
        return int(self.w.shape[-1])

    def _by_product(self, rows: Array) -> Array:
        """Arrange the rows (..., p/2, k) of all v or of all w as (..., C, m, k)."""
        shape = (*rows.shape[:-2], *self.w.shape[-2:], rows.shape[-1])
        return api.array_namespace(rows).reshape(rows, shape)

    def _by_parameter(self, rows: Array) -> Array:
        """Undo ``_by_product``."""
        shape = (*rows.shape[:-3], -1, rows.shape[-1])
        return api.array_namespace(rows).reshape(rows, shape)

    def _product(self, c: int) -> tuple[Array, Array, Place]:
        """Return w and v of one product, and how to put its vectors in place."""
        count, m = int(self.w.shape[-2]), int(self.w.shape[-1])

        def place(v_part: Array, w_part: Array) -> Array:
            parts = []
            for part in (v_part, w_part):
                parts += [zero_rows(c * m, part), part, zero_rows((count - 1 - c) * m, part)]
            return stack_rows(*(p for p in parts if p.shape[-2]))

        return self.w[..., c, :], self.v[..., c, :], place

    # The invariant subspaces.

    def families(self) -> list[Subspaces]:
        """Return the invariant subspaces: the outliers, then the others."""
        families = self._of_products(slice(None), self._units, 1)
        if self.coupled and self.part != "functional":
            families[0] = self._coupled_outliers()
        return families

    def _of_products(self, own: slice, units: Any, pairs: Any) -> list[Subspaces]:
        """Return the families of some products, `pairs` of them: 1, or 0 where there are no units.

        The values are in closed form, and no block is formed before a vector is asked for.
        """
        xp, g = api.array_namespace(self.w), self.numbers.at(own)
        gradient, hessian = self.gradient[..., own], self._diagonal[..., own]
        first = own.start or 0

        def family(
            label: str,
            isometry: Any,
            count: Any,
            errors: Callable[[ProductRounding], Numbers],
            *values: Array,
        ) -> Subspaces:
            return Subspaces(
                (label,) * len(values),
                lambda i: isometry(first + i),
                count,
                self.names[own],
                values=xp.stack(values, axis=-1),
                errors=lambda: errors(self._rounding.at(own)),
            )

        def bulk(isometry: Any, count: Any) -> list[Subspaces]:
            return [
                family(
                    "bulk", partial(isometry, sign), count, lambda r: r.gradient, sign * gradient
                )
                for sign in (1, -1)
            ]

        match self.part:
            case "functional":
                return bulk(self._swap, units)
            case "ggn":
                return [
                    family(
                        "outlier", self._direction, pairs,
                        lambda r: r.curved() + self._neglected, hessian * g.norm,
                    ),
                    family(
                        "flat", self._rest, 2 * units - pairs,
                        lambda r: 0 * r.height, 0 * gradient,
                    ),
                ]  # fmt: skip
        far = None if self.far_gradient is None else self.far_gradient[..., own]
        values = outlier_pair(g, gradient, hessian, far)
        outliers = family(
            "outlier", self._pair, pairs,
            lambda r: r.pair(*values) + self._neglected[..., None], *values,
        )  # fmt: skip

        def matrix(i: int) -> Array:
            one = slice(i, i + 1)
            return _outlier_matrix(g.at(one), gradient[..., one], hessian[..., one, None])

        return [replace(outliers, matrix=matrix), *bulk(self._bulk, units - pairs)]

    @property
    def _neglected(self) -> Numbers:
        return np.asarray(self.neglected)[..., None]

    def _coupled_outliers(self) -> Subspaces:
        """Return the block that the loss couples the outliers of all products into.

        For the Gauss–Newton part that is Z S Zᵀ with Z = diag √(‖w_c‖² + ‖v_c‖²).
        """
        count, isometry = int(self.w.shape[-2]), self._pair
        matrix = _outlier_matrix(self.numbers, self.gradient, self.loss_hessian)
        if self.part == "ggn":
            lengths, isometry = root(self.numbers.norm), self._direction
            matrix = lengths[..., :, None] * self.loss_hessian * lengths[..., None, :]

        def embed(coordinates: Array, copies: Array) -> Array:
            # The coordinates of product c are c, count + c, …
            return sum(isometry(c)(coordinates[..., c::count], copies) for c in range(count))

        return Subspaces(("outlier",) * int(matrix.shape[-1]), lambda _: embed, matrix=matrix)

    def _pair(self, c: int) -> Isometry:
        return pair_isometry(*self._product(c))

    def _bulk(self, sign: int, c: int) -> Isometry:
        """Embed copies z, as coordinates in the complement of w ± v, as (z, ±z)/√2."""
        w, v, place = self._product(c)

        def embed(copies: Array) -> Array:
            half = HALF * Frame((w + sign * v)[..., None]).complement(copies)
            return place(half, sign * half)

        return Columns(embed)

    def _swap(self, sign: int, c: int) -> Isometry:
        """Embed any z as (z, ±z)/√2."""
        *_, place = self._product(c)
        return Columns(lambda copies: place(HALF * copies, sign * HALF * copies))

    def _direction(self, c: int) -> Isometry:
        """Embed a number as its multiple of u = (w, v), all that the Gauss–Newton part sees."""
        return self._halves(c, Frame.span)

    def _rest(self, c: int) -> Isometry:
        """Embed coordinates in the complement of u = (w, v)."""
        return self._halves(c, Frame.complement)

    def _halves(self, c: int, embed: Callable[[Frame, Array], Array]) -> Isometry:
        w, v, place = self._product(c)
        m = int(w.shape[-1])
        frame = Frame(api.array_namespace(w).concat([w, v], axis=-1)[..., None])

        def halves(copies: Array) -> Array:
            both = embed(frame, copies)
            return place(both[..., :m, :], both[..., m:, :])

        return Columns(halves)


def pair_isometry(w: Array, v: Array, place: Place) -> Isometry:
    """Embed (c₊, c₋) as c₊ (s₊, s₊)/√2 + c₋ (s₋, −s₋)/√2, s± the directions of w ± v."""

    def embed(coordinates: Array, copies: Array) -> Array:
        plus = Frame((w + v)[..., None]).span(coordinates[..., 0:1, None] * copies)
        minus = Frame((w - v)[..., None]).span(coordinates[..., 1:2, None] * copies)
        return place(HALF * (plus + minus), HALF * (plus - minus))

    return embed


def _outlier_matrix(g: Gram, gradient: Array, loss_hessian: Array) -> Array:
    """Return diag(δ, −δ) + Z S Zᵀ, Z = [diag ‖w_c + v_c‖; diag ‖w_c − v_c‖]/√2, for S (C, C)."""
    xp = api.array_namespace(gradient)
    lengths = xp.concat([root(g.plus / 2), root(g.minus / 2)], axis=-1)
    tiled = xp.concat([xp.concat([loss_hessian] * 2, axis=-1)] * 2, axis=-2)
    swap = xp.concat([gradient, -gradient], axis=-1)
    eye = identity(swap.shape[-1], swap)
    return lengths[..., :, None] * tiled * lengths[..., None, :] + swap[..., None] * eye
