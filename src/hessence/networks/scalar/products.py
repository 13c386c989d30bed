r"""Inner products inside a network: the Hessian that all scalar networks share.

A loss that depends on weights w, v only through :math:`g = \langle w, v \rangle` has, in the order
(v, w), the Hessian

.. math:: H = \delta K + s\, u u^\top, \quad K = \begin{pmatrix} 0 & I \\ I & 0 \end{pmatrix},
          \quad u = (w, v), \quad \delta = \ell'(g), \quad s = \ell''(g).

K swaps the two halves, so the coordinates w ± v diagonalise it, and the rank-one term touches one
direction of each: a 2 × 2 block for the outlier pair, and :math:`\pm\delta`, each m − 1 times, for
the bulk (Singh & Hofmann, Theorems 1–3, for the mean-squared error). Networks that hold several
such products add one rank-one term each, coupled if the predictor's curvature couples them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import array_api_compat as api

from hessence._common.arrays import Array, nonzero, stack_rows, zero_rows
from hessence.spectra.frames import Frame
from hessence.spectra.operators import Hessian
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Isometry, Subspaces

HALF = 0.5**0.5

CACHE = 2**15
"""How many numbers are summed at a time where an intermediate array is needed."""

Part = Literal["hessian", "ggn", "functional"]

Place = Callable[[Array, Array], Array]
"""Puts the v part and the w part of some vectors at their place among all parameters."""


@dataclass(frozen=True)
class Gram:
    """The numbers about (w, v) that a spectrum depends on, each of the batch's shape.

    Attributes
    ----------
    inner : array
        ⟨w, v⟩.
    norm : array
        ‖w‖² + ‖v‖².
    plus, minus : array
        ‖w + v‖² and ‖w − v‖².
    """

    inner: Array
    norm: Array
    plus: Array
    minus: Array

    def at(self, index: int | slice | None) -> Gram:
        """Return the numbers of one product, or of some; with None, make them one of one."""
        return Gram(*(number[..., index] for number in self.numbers()))

    def numbers(self) -> tuple[Array, Array, Array, Array]:
        """Return all four numbers."""
        return self.inner, self.norm, self.plus, self.minus


def gram(w: Array, v: Array) -> Gram:
    """Return the Gram numbers of vectors along the last axis, each to full relative accuracy."""
    xp = api.array_namespace(w, v)
    inner = xp.vecdot(w, v)
    norm = xp.vecdot(w, w) + xp.vecdot(v, v)
    plus, minus = norm + 2 * inner, norm - 2 * inner
    # Three dot products give all four numbers unless w is close to ±v; only then are the sum or the
    # difference formed, whose norm the subtraction above would have lost.
    if bool(xp.any(16 * plus < norm)):
        plus = _squared_sum(w, v, 1)
    if bool(xp.any(16 * minus < norm)):
        minus = _squared_sum(w, v, -1)
    return Gram(inner, norm, plus, minus)


def _squared_sum(w: Array, v: Array, sign: int) -> Array:
    """Return ‖w ± v‖², a stretch at a time so that the sum stays in the cache."""
    xp = api.array_namespace(w, v)
    total = xp.zeros_like(xp.vecdot(w[..., :1], v[..., :1]))
    m = int(w.shape[-1])
    for start in range(0, m, CACHE):
        own = slice(start, min(start + CACHE, m))
        stretch = w[..., own] + v[..., own] if sign > 0 else w[..., own] - v[..., own]
        total = total + xp.vecdot(stretch, stretch)
    return total


def outlier_pair(
    numbers: Gram, slope: Array, curvature: Array, far_slope: Array | None = None
) -> tuple[Array, Array]:
    r"""Return the two eigenvalues of :math:`\delta K + s u u^\top` outside the bulk, larger first.

    With :math:`T = s(\|w\|^2+\|v\|^2)` and
    :math:`R^2 = 4(\delta + s g)^2 + s^2 \|w+v\|^2 \|w-v\|^2` they are :math:`(T \pm R)/2`. The one
    in which T and R cancel is taken from the product of the two, :math:`-\delta(\delta + 2 s g)`,
    instead; `far_slope` is its second factor where the caller has it to more digits.
    """
    xp = api.array_namespace(numbers.inner)
    coupled = curvature * numbers.inner
    trace = curvature * numbers.norm
    centre = 2 * (slope + coupled)
    scale = nonzero(xp.maximum(xp.abs(centre), xp.abs(trace)))
    spread = (curvature * numbers.plus / scale) * (curvature * numbers.minus / scale)
    radius = scale * xp.sqrt((centre / scale) ** 2 + spread)
    outer = xp.where(trace < 0, trace - radius, trace + radius) / 2
    # Both factors of the product are at most |outer|, so the quotient neither over- nor underflows.
    far = slope + 2 * coupled if far_slope is None else far_slope
    inner = -slope * (far / nonzero(outer))
    return xp.where(trace < 0, inner, outer), xp.where(trace < 0, outer, inner)


@dataclass(frozen=True, eq=False, repr=False)
class Products(Hessian):
    """The Hessian of a loss of C separate inner products ⟨w_c, v_c⟩ of m terms each.

    Parameters are ordered as all v, then all w, row by row.

    Attributes
    ----------
    w, v : array (..., C, m)
        The weights.
    slope : array (..., C)
        The gradient of the loss in the C products.
    curvature : array (..., C) or (..., C, C)
        Its Hessian in them; only the diagonal if it has no other entries.
    numbers : Gram
        The Gram numbers of w and v.
    suffixes : sequence of str
        What to append to the labels of each product.
    part : str
        Which of the Hessian and its two parts this is.
    far_slope : array (..., C), optional
        δ + 2 s g, where it is known to more digits than the sum has.
    """

    w: Array
    v: Array
    slope: Array
    curvature: Array
    numbers: Gram
    suffixes: Sequence[str]
    part: Part = "hessian"
    far_slope: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix, batch dimensions in front."""
        *batch, count, m = self.w.shape
        return (*batch, 2 * count * m, 2 * count * m)

    @property
    def ggn(self) -> Products:
        """The Gauss–Newton part."""
        return replace(self, slope=0 * self.slope, part="ggn")

    @property
    def functional(self) -> Products:
        """The functional part."""
        return replace(self, curvature=0 * self.curvature, part="functional")

    @property
    def coupled(self) -> bool:
        """Whether the curvature couples different products."""
        return bool(self.curvature.ndim > self.slope.ndim)

    @property
    def _reference(self) -> Array:
        return self.w

    def trace(self) -> Array:
        """Return Σ_c s_cc (‖w_c‖² + ‖v_c‖²)."""
        xp = api.array_namespace(self.w)
        return xp.sum(self._diagonal * self.numbers.norm, axis=-1)

    def squared_norm(self) -> Array:
        """Return 2m Σ δ_c² + 4 Σ s_cc δ_c g_c + Σ s_cd² N_c N_d, with N = ‖w‖² + ‖v‖²."""
        xp = api.array_namespace(self.w)
        g = self.numbers
        m = int(self.w.shape[-1])
        swap = xp.sum(self.slope * (2 * m * self.slope + 4 * self._diagonal * g.inner), axis=-1)
        if not self.coupled:
            return swap + xp.sum((self.curvature * g.norm) ** 2, axis=-1)
        outer = self.curvature**2 * g.norm[..., :, None] * g.norm[..., None, :]
        return swap + xp.sum(outer, axis=(-2, -1))

    def spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors."""
        method = "coupled block" if self.coupled and self.part != "functional" else "closed form"
        return Spectrum(self._blocks(), method)

    def _apply(self, columns: Array) -> Array:
        xp = api.array_namespace(self.w)
        *_, count, m = self.w.shape
        k = int(columns.shape[-1])
        shape = (*columns.shape[:-2], 2, count, m, k)
        halves = xp.reshape(columns, shape)
        dv, dw = halves[..., 0, :, :, :], halves[..., 1, :, :, :]
        w, v = self.w[..., None], self.v[..., None]
        along = xp.sum(w * dv + v * dw, axis=-2)
        bent = (
            xp.matmul(self.curvature, along) if self.coupled else self.curvature[..., None] * along
        )[..., None, :]
        slope = self.slope[..., None, None]
        out = [slope * dw + w * bent, slope * dv + v * bent]
        return stack_rows(*(xp.reshape(o, (*o.shape[:-3], count * m, k)) for o in out))

    @property
    def _diagonal(self) -> Array:
        if not self.coupled:
            return self.curvature
        return api.array_namespace(self.w).linalg.diagonal(self.curvature)

    def _blocks(self) -> list[Subspaces]:
        m = int(self.w.shape[-1])
        if self.part == "functional":
            return swap_blocks(self.slope, m, self.suffixes, self._everything)
        bulk = swap_blocks(self.slope, m - 1, self.suffixes, self._bulk)
        if self.part == "ggn":
            return self._ggn_blocks()
        return [self._coupled_block() if self.coupled else self._pair_block(), *bulk]

    def _pair_block(self) -> Subspaces:
        return pair_block(
            self.numbers,
            self.slope,
            self.curvature,
            self.suffixes,
            self._pair,
            far_slope=self.far_slope,
        )

    def _coupled_block(self) -> Subspaces:
        """Return diag(δ, −δ) + Z S Zᵀ, Z = [diag ‖w_c + v_c‖; diag ‖w_c − v_c‖]/√2."""
        xp = api.array_namespace(self.w)
        g = self.numbers
        lengths = xp.concat([_root(g.plus / 2), _root(g.minus / 2)], axis=-1)
        tiled = xp.concat([xp.concat([self.curvature] * 2, axis=-1)] * 2, axis=-2)
        matrix = lengths[..., :, None] * tiled * lengths[..., None, :]
        matrix = matrix + _diagonal_matrix(xp.concat([self.slope, -self.slope], axis=-1))
        count = int(self.w.shape[-2])

        def isometry(_: int) -> Isometry:
            def carry(coordinates: Array, copies: Array) -> Array:
                total = 0
                for c in range(count):
                    own = xp.stack([coordinates[..., c], coordinates[..., count + c]], axis=-1)
                    total = total + self._pair(c)(own, copies)
                return total

            return carry

        return Subspaces(("outlier",) * (2 * count), isometry, matrix=matrix)

    def _ggn_blocks(self) -> list[Subspaces]:
        """Return Jᵀ S J on the C directions u_c = (w_c, v_c), and the flat rest."""
        xp = api.array_namespace(self.w)
        norm = self.numbers.norm
        count, m = int(self.w.shape[-2]), int(self.w.shape[-1])

        def direction(c: int) -> Isometry:
            return direction_isometry(self.w[..., c, :], self.v[..., c, :], self._at(c))

        def all_directions(_: int) -> Isometry:
            def carry(coordinates: Array, copies: Array) -> Array:
                return sum(direction(c)(coordinates[..., c : c + 1], copies) for c in range(count))

            return carry

        def rest(c: int) -> Isometry:
            return rest_isometry(self.w[..., c, :], self.v[..., c, :], self._at(c))

        if self.coupled:
            length = xp.sqrt(norm)
            matrix = length[..., :, None] * self.curvature * length[..., None, :]
            outliers = Subspaces(("outlier",) * count, all_directions, matrix=matrix)
        else:
            matrix = (self.curvature * norm)[..., None, None]
            outliers = Subspaces(("outlier",), direction, matrix=matrix, members=self.suffixes)
        zero = (0 * norm)[..., None, None]
        flat = Subspaces(("flat",), rest, 2 * m - 1, matrix=zero, members=self.suffixes)
        return [outliers, flat]

    def _place(self, c: int, v_part: Array, w_part: Array) -> Array:
        """Put vectors of one product at its place among all parameters."""
        count, m = int(self.w.shape[-2]), int(self.w.shape[-1])
        before, after = c * m, (count - 1 - c) * m
        parts = []
        for part in (v_part, w_part):
            parts += [zero_rows(before, part), part, zero_rows(after, part)]
        return stack_rows(*(p for p in parts if p.shape[-2]))

    def _at(self, c: int) -> Place:
        return lambda v_part, w_part: self._place(c, v_part, w_part)

    def _pair(self, c: int) -> Isometry:
        return pair_isometry(self.w[..., c, :], self.v[..., c, :], self._at(c))

    def _bulk(self, sign: int) -> Callable[[int], Isometry]:
        return lambda c: bulk_isometry(self.w[..., c, :], self.v[..., c, :], sign, self._at(c))

    def _everything(self, sign: int) -> Callable[[int], Isometry]:
        return lambda c: swap_isometry(sign, self._at(c))


def pair_block(
    numbers: Gram,
    slope: Array,
    curvature: Array,
    suffixes: Sequence[str],
    isometry: Callable[[int], Isometry],
    multiplicity: Any = 1,
    far_slope: Array | None = None,
) -> Subspaces:
    """Return the 2 × 2 blocks of the outlier pairs, in the basis of w + v and w − v."""
    xp = api.array_namespace(numbers.inner)
    diagonal = slope + curvature * numbers.plus / 2, -slope + curvature * numbers.minus / 2
    off = curvature * xp.sqrt(numbers.plus) * xp.sqrt(numbers.minus) / 2
    rows = [xp.stack([diagonal[0], off], axis=-1), xp.stack([off, diagonal[1]], axis=-1)]
    return Subspaces(
        ("outlier", "outlier"),
        isometry,
        multiplicity,
        suffixes,
        matrix=xp.stack(rows, axis=-2),
        values=xp.stack(outlier_pair(numbers, slope, curvature, far_slope), axis=-1),
    )


def swap_blocks(
    slope: Array,
    multiplicity: Any,
    suffixes: Sequence[str],
    isometry: Callable[[int], Callable[[int], Isometry]],
) -> list[Subspaces]:
    """Return the eigenvalues ±δ of δK."""
    return [
        Subspaces(
            ("bulk",),
            isometry(sign),
            multiplicity,
            suffixes,
            matrix=(sign * slope)[..., None, None],
        )
        for sign in (1, -1)
    ]


def pair_isometry(w: Array, v: Array, place: Place) -> Isometry:
    """Carry (c₊, c₋) to c₊ (s₊, s₊)/√2 + c₋ (s₋, −s₋)/√2, s± the directions of w ± v."""

    def carry(coordinates: Array, copies: Array) -> Array:
        plus = Frame((w + v)[..., None]).span(coordinates[..., 0:1, None] * copies)
        minus = Frame((w - v)[..., None]).span(coordinates[..., 1:2, None] * copies)
        return place(HALF * (plus + minus), HALF * (plus - minus))

    return carry


def bulk_isometry(w: Array, v: Array, sign: int, place: Place) -> Isometry:
    """Carry copies z, as coordinates in the complement of w ± v, to (z, ±z)/√2."""

    def carry(coordinates: Array, copies: Array) -> Array:
        half = HALF * Frame((w + sign * v)[..., None]).complement(coordinates[..., None] * copies)
        return place(half, sign * half)

    return carry


def swap_isometry(sign: int, place: Place) -> Isometry:
    """Carry any z to (z, ±z)/√2."""

    def carry(coordinates: Array, copies: Array) -> Array:
        half = HALF * coordinates[..., None] * copies
        return place(half, sign * half)

    return carry


def direction_isometry(w: Array, v: Array, place: Place) -> Isometry:
    """Carry a number to its multiple of u = (w, v), all that the Gauss–Newton part sees."""
    return _direction(w, v, place, lambda frame, coordinates: frame.span(coordinates))


def rest_isometry(w: Array, v: Array, place: Place) -> Isometry:
    """Carry coordinates in the complement of u = (w, v) to vectors."""
    return _direction(w, v, place, lambda frame, coordinates: frame.complement(coordinates))


def _direction(w: Array, v: Array, place: Place, lift: Callable[[Frame, Array], Array]) -> Isometry:
    xp = api.array_namespace(w)
    m = int(w.shape[-1])

    def carry(coordinates: Array, copies: Array) -> Array:
        frame = Frame(xp.concat([w, v], axis=-1)[..., None])
        both = lift(frame, coordinates[..., None] * copies)
        return place(both[..., :m, :], both[..., m:, :])

    return carry


def _root(squares: Array) -> Array:
    """Return square roots with derivative 0, not ∞, at 0: eigenvalues are even in these lengths."""
    xp = api.array_namespace(squares)
    return xp.where(squares == 0, squares, xp.sqrt(nonzero(squares)))


def _diagonal_matrix(entries: Array) -> Array:
    xp = api.array_namespace(entries)
    eye = xp.eye(entries.shape[-1], dtype=entries.dtype, device=api.device(entries))
    return entries[..., None] * eye
