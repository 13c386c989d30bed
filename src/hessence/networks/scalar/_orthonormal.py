r"""Closed forms for f(x) = ⟨w, V x⟩ where the columns of V are orthonormal up to a factor.

Turning the columns v_1, …, v_D so that the gradient in β becomes :math:`\delta = (h, 0, …, 0)`
leaves :math:`2h\langle dw, dv'_1\rangle` of the second variation's second term. Where
:math:`S = s I`, :math:`V^\top V = \nu^2 I` and w ⟂ v′_j for j > 1, the Hessian has

- a pair, on the directions w ± v′_1;
- a triple, D − 1 times: dw and dv′_1 along v′_j, and dv′_j along w;
- the bulk ±h, m − D times each, and zeros, (D − 1)(m − 1) times: dv′_j ⟂ w.

For white data without a trend, s = 1 and δ = β, the pair adds up to tr/D exactly. D = 2 with the
input (x, 1) is Theorem 6 of Singh & Hofmann.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import array_api_compat as api

from hessence._common.arrays import (
    Array,
    constant,
    epsilon,
    identity,
    largest,
    nonzero,
    requires_gradient,
    stack_rows,
    transpose,
    unit,
)
from hessence._common.summation import exact_product
from hessence.networks.scalar.gram import gram, outlier_pair
from hessence.networks.scalar.products import HALF, pair_isometry
from hessence.spectra.frames import Frame
from hessence.spectra.small_eigen import eigenvalues
from hessence.spectra.subspaces import Columns, Subspaces

ASSUMPTION_TOLERANCE = 32
"""The assumptions count as met if they are off by at most this many ε, relative."""


@dataclass(frozen=True, eq=False)
class Orthonormal:
    """Families with values in closed form, of a ``VectorHessian``."""

    H: Any

    def applies(self) -> bool:
        """Tell whether the assumptions of the theorem hold, to rounding."""
        xp = api.array_namespace(self.H.w)
        s, nu, length = self._sizes
        tolerance = ASSUMPTION_TOLERANCE * epsilon(self.H.w)
        of_loss, of_rows, of_w = self._deviations
        checks = [
            of_loss <= tolerance * xp.abs(s),
            of_rows <= tolerance * nu * nu,
            of_w <= tolerance * length * nu,
            nu > 0,
        ]
        return all(bool(xp.all(check)) for check in checks)

    def neglected(self) -> float:
        """Return a bound for the spectral norm of what breaks the assumptions."""
        s, nu, length = self._sizes
        of_loss, of_rows, of_w = self._deviations
        count, xp = int(self.H.V.shape[-2]), api.array_namespace(self.H.w)
        of_size = of_loss * (length * length + nu * nu)
        return 4 * count * largest(of_size + xp.abs(s) * (of_rows + of_w))

    def hessian(self) -> list[Subspaces]:
        """Return the families of the Hessian, where the theorem applies."""
        xp, (inputs, m) = api.array_namespace(self.H.w), map(int, self.H.V.shape[-2:])
        w, along, across = self.H.w, self._turned[..., 0, :], self._turned[..., 1:, :]
        s, nu, length = self._sizes
        # ⟨w, v′⟩ from ⟨w, V⟩, before the rounding of v′ can be magnified in it.
        inner = xp.vecdot(self._turn[..., 0], xp.matmul(self.H.V, w[..., None])[..., 0])
        pair = outlier_pair(gram(w, along)._replace(inner=inner), self._height, s)
        triple = _triple_values(self._height, s * nu * nu, s * length * length)
        of_w, columns = Frame(w[..., None]), transpose(across)

        def embed_triple(coordinates: Array, copies: Array) -> Array:
            c = coordinates[..., None, None]
            hidden = Frame(columns).span(copies)
            on_w = of_w.span(xp.reshape(c[..., 2, :, :] * copies, (*copies.shape[:-2], 1, -1)))
            # (m, (D − 1) · n) → (D − 1, m, n)
            shape = (*on_w.shape[:-1], inputs - 1, copies.shape[-1])
            on_across = xp.moveaxis(xp.reshape(on_w, shape), -2, -3)
            return self._place(c[..., 1, :, :] * hidden, on_across, c[..., 0, :, :] * hidden)

        def rest(sign: int) -> Frame:
            return Frame(xp.concat([columns, (w + sign * along)[..., None]], axis=-1))

        def flat(copies: Array) -> Array:
            shape = (*copies.shape[:-2], m - 1, (inputs - 1) * copies.shape[-1])
            hidden = of_w.complement(xp.reshape(copies, shape))
            shape = (*hidden.shape[:-1], inputs - 1, copies.shape[-1])
            across = xp.moveaxis(xp.reshape(hidden, shape), -2, -3)
            return self._place(0 * across[..., 0, :, :], across, 0 * across[..., 0, :, :])

        of_pair = pair_isometry(w, along, lambda dv, dw: self._place(dv, None, dw))
        triples = Subspaces(
            ("outlier/triple",) * 3, lambda _: embed_triple, inputs - 1, values=triple
        )
        return [
            self._smooth(
                Subspaces(("outlier/pair",) * 2, lambda _: of_pair, values=xp.stack(pair, axis=-1))
            ),
            *([self._smooth(triples)] if inputs > 1 else []),
            *self._bulk(m - inputs, rest),
            *([self._flat((inputs - 1) * (m - 1), flat)] if inputs > 1 else []),
        ]

    def ggn(self) -> list[Subspaces]:
        """Return the families of the Gauss–Newton part, for any data and any weights."""
        xp, (inputs, m) = api.array_namespace(self.H.w), map(int, self.H.V.shape[-2:])
        eye = identity(inputs, self.H.w)
        own = eye[:, None, :] * self.H.w[..., None, :, None]
        own = xp.reshape(own, (*own.shape[:-3], inputs * m, inputs))
        jacobian = stack_rows(own, transpose(self.H.V))
        # Derivatives of the eigenvalues are those of the block at a fixed basis.
        frame = Frame(constant(jacobian))
        root = frame.coordinates(jacobian)
        matrix = xp.matmul(root, xp.matmul(self.H.loss_hessian, transpose(root)))
        values = eigenvalues(matrix)
        if inputs == 2:
            values = self._pair_of_ggn(constant(values)) + (values - constant(values))
        span = Columns(frame.span)
        return [
            Subspaces(("outlier",) * inputs, lambda _: span, matrix=matrix, values=values),
            self._flat((inputs + 1) * m - inputs, frame.complement),
        ]

    def functional(self) -> list[Subspaces]:
        """Return the families of the functional part, for any data and any weights."""
        inputs, m = map(int, self.H.V.shape[-2:])

        def flat(copies: Array) -> Array:
            xp = api.array_namespace(copies)
            shape = (*copies.shape[:-2], inputs - 1, m, copies.shape[-1])
            across = xp.reshape(copies, shape)
            return self._place(0 * across[..., 0, :, :], across, 0 * across[..., 0, :, :])

        return [*self._bulk(m), *([self._flat((inputs - 1) * m, flat)] if inputs > 1 else [])]

    def _pair_of_ggn(self, values: Array) -> Array:
        """Return two eigenvalues of R S Rᵀ, the smaller from det S · det N, with N = RᵀR."""
        xp = api.array_namespace(values)
        upper, lower = values[..., 0], values[..., 1]
        outer = xp.where(xp.abs(upper) < xp.abs(lower), lower, upper)
        w, V, s = (constant(a) for a in (self.H.w, self.H.V, self.H.loss_hessian))
        # At size 1, where the rounding of a product does not underflow; by a power of two, exactly.
        scale = 2.0 ** xp.floor(xp.log2(nonzero(xp.max(xp.abs(s), axis=(-2, -1)))))
        s = s / scale[..., None, None]
        first, lost = exact_product(s[..., 0, 0], s[..., 1, 1])
        second, lost_too = exact_product(s[..., 0, 1], s[..., 0, 1])
        of_s = (first - second) + (lost - lost_too)
        v, b = V[..., 0, :], V[..., 1, :]
        ww, vv, bb = (xp.vecdot(a, a) for a in (w, v, b))
        share = xp.vecdot(v, b) / nonzero(vv)
        across = b - share[..., None] * v
        size = nonzero(ww + vv + bb)
        of_n = ww + (vv / size) * xp.vecdot(across, across)
        inner = of_s * (of_n / nonzero(outer / scale / size)) * scale
        return xp.stack([xp.maximum(outer, inner), xp.minimum(outer, inner)], axis=-1)

    @cached_property
    def _sizes(self) -> tuple[Array, Array, Array]:
        """The loss's curvature s, ν and ‖w‖."""
        xp = api.array_namespace(self.H.w)
        nu = xp.sqrt(xp.vecdot(self.H.V[..., -1, :], self.H.V[..., -1, :]))
        return self.H.loss_hessian[..., 0, 0], nu, xp.sqrt(xp.vecdot(self.H.w, self.H.w))

    @cached_property
    def _deviations(self) -> tuple[Array, Array, Array]:
        """How far S is from s I, Vᵀ V from ν² I, and w from orthogonal to all v′_j with j > 1."""
        xp = api.array_namespace(self.H.w)
        eye = identity(self.H.V.shape[-2], self.H.w)
        s, nu, _ = (constant(size)[..., None, None] for size in self._sizes)
        rows = constant(xp.matmul(self.H.V, transpose(self.H.V))) - nu * nu * eye
        curved = constant(self.H.loss_hessian) - s * eye
        across = constant(xp.matmul(self._turned, self.H.w[..., None]))[..., 1:, :]
        across = xp.concat([across, 0 * nu], axis=-2)
        return tuple(xp.max(xp.abs(a), axis=(-2, -1)) for a in (curved, rows, across))

    @cached_property
    def _turn(self) -> Array:
        """The rotation of β, whose first column is the direction of δ; any where δ vanishes."""
        xp = api.array_namespace(self.H.w)
        frame = Frame(constant(self.H.gradient)[..., None])
        eye = identity(self.H.V.shape[-2], self.H.w)
        first, rest = frame.span(eye[:1, :1]), frame.complement(eye[1:, 1:])
        return xp.concat([first, rest], axis=-1)

    @cached_property
    def _height(self) -> Array:
        """The length h of δ."""
        xp = api.array_namespace(self.H.w)
        return xp.vecdot(unit(constant(self.H.gradient)), self.H.gradient)

    @cached_property
    def _turned(self) -> Array:
        """The v′_j as rows."""
        return api.array_namespace(self.H.w).matmul(transpose(self._turn), self.H.V)

    def _place(self, along: Array, across: Array | None, on_w: Array) -> Array:
        """Turn vectors (dv′_1, (dv′_j), dw) back and stack them in the order (v_1, …, v_D, w)."""
        xp, count = api.array_namespace(along), int(self.H.V.shape[-2])
        rows = [self._turn[..., d, 0, None, None] * along for d in range(count)]
        if across is not None:
            rows = [
                row + xp.sum(self._turn[..., d, 1:, None, None] * across, axis=-3)
                for d, row in enumerate(rows)
            ]
        return stack_rows(*rows, on_w)

    def _smooth(self, family: Subspaces) -> Subspaces:
        """Give values the derivatives of the block at a fixed basis, where PyTorch records."""
        if family.values is None or not requires_gradient(family.values):
            return family
        solved = replace(family, values=None).of(self.H).eigenvalues
        return replace(family, values=constant(family.values) + (solved - constant(solved)))

    def _bulk(self, count: int, frame: Callable[[int], Frame] | None = None) -> list[Subspaces]:
        """Return ±h on (dv′_1, dw) = (z, ±z)/√2 with any z, or z in the complement of a frame."""

        def isometry(sign: int, _: int) -> Columns:
            def embed(copies: Array) -> Array:
                half = HALF * (copies if frame is None else frame(sign).complement(copies))
                return self._place(half, None, sign * half)

            return Columns(embed)

        height = self._height[..., None]
        return [
            Subspaces(("bulk",), partial(isometry, sign), count, values=sign * height)
            for sign in (1, -1)
        ]

    def _flat(self, count: int, embed: Callable[[Array], Array]) -> Subspaces:
        """Return directions that the loss does not see."""
        zero = 0 * self._height[..., None]
        return Subspaces(("flat",), lambda _: Columns(embed), count, values=zero)


def _triple_values(height: Array, of_b: Array, of_w: Array) -> Array:
    r"""Return the roots of λ²(λ − T) = h²(λ − ω), T the trace, each to full relative accuracy.

    They belong to the block of dw and dv′ along b′ and db′ along w,
    [[β, h, ±√(βω)], [h, 0, 0], [±√(βω), 0, ω]] with β = s ‖b′‖² and ω = s ‖w‖². The 3 × 3 solver
    finds them to ε‖B‖, which is enough for the largest, λ₁ (of −B, if T < 0). The
    other two are the roots of λ² + qλ − p with q = λ₁ − T = h²(λ₁ − ω)/λ₁² and p = h²ω/λ₁, neither
    of which cancels unless λ₁ is almost double; then no root is small.
    """
    xp = api.array_namespace(height)
    length = xp.sqrt(xp.abs(of_b)) * xp.sqrt(xp.abs(of_w))
    mixed, zero = xp.where(of_b < 0, -length, length), 0 * height
    rows = [[of_b, height, mixed], [height, zero, zero], [mixed, zero, of_w]]
    matrix = xp.stack([xp.stack(row, axis=-1) for row in rows], axis=-2)
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
