r"""The Hessian of f(x) = ⟨w, v x + b⟩: a product of a vector with two others.

The loss depends on :math:`\beta = (\langle w, v\rangle, \langle w, b\rangle)`, with gradient
:math:`\delta \in \mathbb{R}^2` and Hessian S in it, and

.. math:: d^2\ell = d\beta^\top S\, d\beta + 2 \langle dw, \delta_1 dv + \delta_2 db \rangle, \quad
          d\beta = (\langle dw, v\rangle + \langle w, dv\rangle,
                    \langle dw, b\rangle + \langle w, db\rangle).

Turning (v, b) so that :math:`\delta = (h, 0)` leaves :math:`2h\langle dw, dv'\rangle` of the second
term. Then db′ ⟂ w is flat, and hidden directions orthogonal to w, v and b see nothing but
:math:`\pm h`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import array_api_compat as api

from hessence._common.arrays import Array, constant, epsilon, nonzero, stack_rows, unit
from hessence._common.summation import exact_product
from hessence.networks.scalar.products import (
    HALF,
    Part,
    gram,
    pair_block,
    pair_isometry,
    swap_blocks,
    swap_isometry,
)
from hessence.spectra.frames import Frame
from hessence.spectra.operators import Hessian
from hessence.spectra.small_eigen import eigenvalues
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Isometry, Subspaces

ASSUMPTION_TOLERANCE = 32
"""The paper's assumptions count as met if they are off by at most this many ε, relative."""


@dataclass(frozen=True, eq=False, repr=False)
class AffineHessian(Hessian):
    """The Hessian of a loss of ⟨w, v⟩ and ⟨w, b⟩, with parameters ordered (v, b, w).

    Attributes
    ----------
    w, v, b : array (..., m)
        The weights.
    slope : array (..., 2)
        The gradient δ of the loss in the two products.
    curvature : array (..., 2, 2)
        Its Hessian S in them.
    part : str
        Which of the Hessian and its two parts this is.
    """

    w: Array
    v: Array
    b: Array
    slope: Array
    curvature: Array
    part: Part = "hessian"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix, batch dimensions in front."""
        *batch, m = self.w.shape
        return (*batch, 3 * m, 3 * m)

    @property
    def ggn(self) -> AffineHessian:
        """The Gauss–Newton part."""
        return replace(self, slope=0 * self.slope, part="ggn")

    @property
    def functional(self) -> AffineHessian:
        """The functional part."""
        return replace(self, curvature=0 * self.curvature, part="functional")

    @property
    def _reference(self) -> Array:
        return self.w

    def trace(self) -> Array:
        """Return tr(S N), N = J Jᵀ the Gram matrix of the two products' gradients."""
        xp = api.array_namespace(self.w)
        return xp.sum(self.curvature * self._jacobian_gram, axis=(-2, -1))

    def squared_norm(self) -> Array:
        """Return 2m ‖δ‖² + 4 βᵀSδ + tr(S N S N)."""
        xp = api.array_namespace(self.w)
        m = int(self.w.shape[-1])
        beta = xp.stack([xp.vecdot(self.w, self.v), xp.vecdot(self.w, self.b)], axis=-1)
        bent = xp.matmul(self.curvature, self._jacobian_gram)
        swap = 2 * m * self.slope + 4 * xp.matmul(self.curvature, beta[..., None])[..., 0]
        return xp.vecdot(swap, self.slope) + xp.sum(bent * xp.matrix_transpose(bent), axis=(-2, -1))

    def spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors."""
        match self.part:
            case "functional":
                return Spectrum(self._functional_blocks(), "closed form")
            case "ggn":
                return Spectrum(self._ggn_blocks(), "closed form")
        if self._theorem_applies():
            return Spectrum(self._theorem_blocks(), "closed form")
        return Spectrum(self._twin_blocks(), "narrow twin")

    def _apply(self, columns: Array) -> Array:
        xp = api.array_namespace(self.w)
        m = int(self.w.shape[-1])
        dv, db, dw = (columns[..., i * m : (i + 1) * m, :] for i in range(3))
        w, v, b = (a[..., None] for a in (self.w, self.v, self.b))
        along = [xp.sum(w * dv + v * dw, axis=-2), xp.sum(w * db + b * dw, axis=-2)]
        bent = xp.matmul(self.curvature, xp.stack(along, axis=-2))
        of_v, of_b = (self.slope[..., i, None, None] for i in range(2))
        on_v, on_b = bent[..., 0:1, :], bent[..., 1:2, :]
        return stack_rows(
            of_v * dw + w * on_v,
            of_b * dw + w * on_b,
            of_v * dv + of_b * db + v * on_v + b * on_b,
        )

    @property
    def _jacobian_gram(self) -> Array:
        xp = api.array_namespace(self.w)
        ww, vv, bb = (xp.vecdot(a, a) for a in (self.w, self.v, self.b))
        vb = xp.vecdot(self.v, self.b)
        rows = [xp.stack([ww + vv, vb], axis=-1), xp.stack([vb, ww + bb], axis=-1)]
        return xp.stack(rows, axis=-2)

    # The turned coordinates: v′ and b′ are v and b rotated so that the slope points along v′.

    @cached_property
    def _height(self) -> Array:
        """Return h = ‖δ‖."""
        return api.array_namespace(self.w).hypot(self.slope[..., 0], self.slope[..., 1])

    @cached_property
    def _turn(self) -> tuple[Array, Array]:
        """Return cosine and sine of the rotation; none where the slope vanishes."""
        xp = api.array_namespace(self.w)
        direction = unit(self.slope)
        still = self._height == 0
        cosine = xp.where(still, xp.ones_like(self._height), direction[..., 0])
        return cosine, direction[..., 1]

    @cached_property
    def _turned(self) -> tuple[Array, Array]:
        cosine, sine = (t[..., None] for t in self._turn)
        return cosine * self.v + sine * self.b, cosine * self.b - sine * self.v

    @cached_property
    def _turned_curvature(self) -> Array:
        xp = api.array_namespace(self.w)
        cosine, sine = self._turn
        rows = [xp.stack([cosine, -sine], axis=-1), xp.stack([sine, cosine], axis=-1)]
        rotation = xp.stack(rows, axis=-2)
        return xp.matmul(xp.matrix_transpose(rotation), xp.matmul(self.curvature, rotation))

    def _place(self, along: Array, across: Array, on_w: Array) -> Array:
        """Turn vectors (dv′, db′, dw) back and stack them in the order (v, b, w)."""
        cosine, sine = (t[..., None, None] for t in self._turn)
        return stack_rows(cosine * along - sine * across, sine * along + cosine * across, on_w)

    def _place_pair(self, along: Array, on_w: Array) -> Array:
        return self._place(along, 0 * along, on_w)

    # The general reduction.

    def _twin_blocks(self) -> list[Subspaces]:
        xp = api.array_namespace(self.w)
        m = int(self.w.shape[-1])
        stack = xp.stack([self.w, *self._turned], axis=-1)
        # The basis is a constant: eigenvalues do not depend on it, and so gradients are right.
        frame = Frame(constant(stack))
        r = frame.rank
        inside = frame.coordinates(stack)
        w, along, across = (inside[..., i] for i in range(3))
        zero, length = 0 * w, xp.sqrt(xp.vecdot(w, w))[..., None]
        # Coordinates of the block: dw and dv′ in the span of (w, v, b), and db′ along w.
        jacobian = stack_rows(
            xp.concat([along, w, 0 * length], axis=-1)[..., None, :],
            xp.concat([across, zero, length], axis=-1)[..., None, :],
        )
        matrix = xp.matmul(
            xp.matrix_transpose(jacobian), xp.matmul(self._turned_curvature, jacobian)
        )
        order = 2 * r + 1
        shift = xp.eye(order, k=r, dtype=self.dtype, device=api.device(self.w))
        shift = xp.where(xp.arange(order, device=api.device(self.w)) < 2 * r, shift, 0 * shift)
        swap = shift + xp.matrix_transpose(shift)
        matrix = matrix + self._height[..., None, None] * swap

        def isometry(_: int) -> Isometry:
            def carry(coordinates: Array, copies: Array) -> Array:
                c = coordinates[..., None] * copies
                on_w, on_v = frame.span(c[..., :r, :]), frame.span(c[..., r : 2 * r, :])
                on_b = Frame(self.w[..., None]).span(c[..., 2 * r :, :])
                return self._place(on_v, on_b, on_w)

            return carry

        twin = Subspaces(("outlier/twin",) * (2 * r + 1), isometry, matrix=matrix)
        return [twin, *self._bulk_blocks(m - r, lambda _: frame), self._flat_block()]

    def _bulk_blocks(self, multiplicity: int, frame: Callable[[int], Frame]) -> list[Subspaces]:
        """Return ±h on (dv′, dw) = (z, ±z)/√2, z in the complement of a frame."""

        def isometry(sign: int) -> Callable[[int], Isometry]:
            def carry(coordinates: Array, copies: Array) -> Array:
                half = HALF * frame(sign).complement(coordinates[..., None] * copies)
                return self._place_pair(half, sign * half)

            return lambda _: carry

        return [
            Subspaces(
                ("bulk",),
                isometry(sign),
                multiplicity,
                matrix=(sign * self._height)[..., None, None],
            )
            for sign in (1, -1)
        ]

    def _flat_block(self) -> Subspaces:
        """Return the directions db′ ⟂ w."""

        def carry(coordinates: Array, copies: Array) -> Array:
            on_b = Frame(self.w[..., None]).complement(coordinates[..., None] * copies)
            return self._place(0 * on_b, on_b, 0 * on_b)

        zero = 0 * self._height[..., None, None]
        return Subspaces(("flat",), lambda _: carry, int(self.w.shape[-1]) - 1, matrix=zero)

    # The paper's theorem.

    def _theorem_applies(self) -> bool:
        xp = api.array_namespace(self.w)
        tolerance = ASSUMPTION_TOLERANCE * epsilon(self.w)
        s = self.curvature
        ww, vv, bb = (xp.vecdot(a, a) for a in (self.w, self.v, self.b))
        isotropic = xp.maximum(xp.abs(s[..., 0, 0] - s[..., 1, 1]), xp.abs(s[..., 0, 1]))
        checks = [
            isotropic <= tolerance * xp.abs(s[..., 0, 0]),
            xp.abs(xp.vecdot(self.v, self.b)) <= tolerance * vv,
            xp.abs(vv - bb) <= tolerance * vv,
            xp.abs(xp.vecdot(self.w, self._turned[1])) <= tolerance * xp.sqrt(ww) * xp.sqrt(vv),
            vv > 0,
        ]
        return all(bool(xp.all(check)) for check in checks)

    def _theorem_blocks(self) -> list[Subspaces]:
        xp = api.array_namespace(self.w)
        along, across = self._turned
        cosine, sine = self._turn
        # ⟨w, v′⟩ from ⟨w, v⟩ and ⟨w, b⟩, before the rounding of v′ can be magnified in it.
        inner = cosine * xp.vecdot(self.w, self.v) + sine * xp.vecdot(self.w, self.b)
        numbers = replace(gram(self.w[..., None, :], along[..., None, :]), inner=inner[..., None])
        pair = pair_block(
            numbers,
            self._height[..., None],
            self.curvature[..., 0, 0, None],
            ("/pair",),
            lambda _: pair_isometry(self.w, along, self._place_pair),
        )

        def rest(sign: int) -> Frame:
            return Frame(xp.stack([across, self.w + sign * along], axis=-1))

        bulk = self._bulk_blocks(int(self.w.shape[-1]) - 2, rest)
        return [pair, self._triple_block(), *bulk, self._flat_block()]

    def _triple_block(self) -> Subspaces:
        """Return the block of dw and dv′ along b′ and db′ along w."""
        xp = api.array_namespace(self.w)
        s = self.curvature[..., 0, 0]
        # By assumption ‖b′‖ = ‖v‖ = ‖b‖, but only b′ gives eigenvalues their right derivatives.
        on_b = s * xp.vecdot(self._turned[1], self._turned[1])
        on_w = s * xp.vecdot(self.w, self.w)
        length = xp.sqrt(xp.abs(on_b)) * xp.sqrt(xp.abs(on_w))
        mixed = xp.where(s < 0, -length, length)
        h, zero = self._height, 0 * self._height
        rows = [[on_b, h, mixed], [h, zero, zero], [mixed, zero, on_w]]
        matrix = xp.stack([xp.stack(row, axis=-1) for row in rows], axis=-2)

        def carry(coordinates: Array, copies: Array) -> Array:
            c = coordinates[..., None] * copies
            frame = Frame(self._turned[1][..., None])
            on_w, on_v = frame.span(c[..., 0:1, :]), frame.span(c[..., 1:2, :])
            return self._place(on_v, Frame(self.w[..., None]).span(c[..., 2:3, :]), on_w)

        labels = ("outlier/triple",) * 3
        return Subspaces(labels, lambda _: carry, matrix=matrix, values=_triple_values(matrix))

    # The two parts.

    def _ggn_blocks(self) -> list[Subspaces]:
        xp = api.array_namespace(self.w)
        zero = 0 * self.w
        gradients = [[self.w, zero, self.v], [zero, self.w, self.b]]
        jacobian = xp.stack([xp.concat(g, axis=-1) for g in gradients], axis=-1)
        frame = Frame(jacobian)
        root = frame.coordinates(jacobian)
        matrix = xp.matmul(root, xp.matmul(self.curvature, xp.matrix_transpose(root)))

        def span(coordinates: Array, copies: Array) -> Array:
            return frame.span(coordinates[..., None] * copies)

        def rest(coordinates: Array, copies: Array) -> Array:
            return frame.complement(coordinates[..., None] * copies)

        flat = 3 * int(self.w.shape[-1]) - 2
        return [
            Subspaces(
                ("outlier", "outlier"),
                lambda _: span,
                matrix=matrix,
                values=_ggn_values(matrix, self),
            ),
            Subspaces(("flat",), lambda _: rest, flat, matrix=0 * matrix[..., :1, :1]),
        ]

    def _functional_blocks(self) -> list[Subspaces]:
        m = int(self.w.shape[-1])

        def bulk(sign: int) -> Callable[[int], Isometry]:
            return lambda _: swap_isometry(sign, self._place_pair)

        def carry(coordinates: Array, copies: Array) -> Array:
            on_b = coordinates[..., None] * copies
            return self._place(0 * on_b, on_b, 0 * on_b)

        flat = Subspaces(("flat",), lambda _: carry, m, matrix=0 * self._height[..., None, None])
        return [*swap_blocks(self._height[..., None], m, ("",), bulk), flat]


def _triple_values(matrix: Array) -> Array:
    r"""Return the roots of λ²(λ − T) = h²(λ − ω), T the trace, each to full relative accuracy.

    The 3 × 3 solver finds them to ε‖B‖, which is enough for the largest, λ₁ (of −B, if T < 0). The
    other two are the roots of λ² + qλ − p with q = λ₁ − T = h²(λ₁ − ω)/λ₁² and p = h²ω/λ₁, neither
    of which cancels unless λ₁ is almost double; then no root is small.
    """
    xp = api.array_namespace(matrix)
    scale = nonzero(xp.max(xp.abs(matrix), axis=(-2, -1)))
    sign = xp.where(
        matrix[..., 0, 0] + matrix[..., 2, 2] < 0, -xp.ones_like(scale), xp.ones_like(scale)
    )
    scaled = (sign / scale)[..., None, None] * matrix
    rough = eigenvalues(scaled)
    first = nonzero(rough[..., 0])
    height, of_b, of_w = scaled[..., 0, 1], scaled[..., 0, 0], scaled[..., 2, 2]
    ratio = height / first
    # λ₁ − ω cancels where ω is most of λ₁; the same equation gives it as a quotient there.
    steep = nonzero((1 - ratio) * (1 + ratio))
    apart = xp.where(of_w < 0.75 * first, first - of_w, of_b / steep)
    drop = ratio * ratio * apart
    product = height * ratio * of_w
    # The roots −q/2 ± √(q²/4 + p) have opposite signs: the lower one adds up, the upper follows.
    lower = -(drop / 2 + xp.sqrt(drop * drop / 4 + product))
    upper = -product / nonzero(lower)
    double = 2 * rough[..., 1] > first
    upper, lower = (xp.where(double, rough[..., i], root) for i, root in ((1, upper), (2, lower)))
    values = xp.stack([rough[..., 0], upper, lower], axis=-1)
    values = xp.where(sign[..., None] < 0, -xp.flip(values, axis=-1), values)
    return scale[..., None] * values


def _ggn_values(matrix: Array, hessian: AffineHessian) -> Array:
    """Return the eigenvalues of R S Rᵀ, the smaller from the determinant det S · det N, N = RᵀR."""
    xp = api.array_namespace(matrix)
    rough = eigenvalues(matrix)
    outer = xp.where(xp.abs(rough[..., 0]) < xp.abs(rough[..., 1]), rough[..., 1], rough[..., 0])
    s = hessian.curvature
    first, lost = exact_product(s[..., 0, 0], s[..., 1, 1])
    second, lost_too = exact_product(s[..., 0, 1], s[..., 0, 1])
    of_s = (first - second) + (lost - lost_too)
    ww, vv, bb = (xp.vecdot(a, a) for a in (hessian.w, hessian.v, hessian.b))
    share = xp.vecdot(hessian.v, hessian.b) / nonzero(vv)
    across = hessian.b - share[..., None] * hessian.v
    size = nonzero(ww + vv + bb)
    of_n = ww + (vv / size) * xp.vecdot(across, across)
    inner = of_s * (of_n / nonzero(outer / size))
    return xp.stack([xp.maximum(outer, inner), xp.minimum(outer, inner)], axis=-1)
