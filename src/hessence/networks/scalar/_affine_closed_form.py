r"""The closed form for f(x) = ⟨w, v x + b⟩ where the assumptions of the paper hold, and its parts.

Turning (v, b) to (v′, b′) so that the gradient in β becomes :math:`\delta = (h, 0)` leaves
:math:`2h\langle dw, dv'\rangle` of the second variation's second term. Then db′ ⟂ w is flat. Where
:math:`S = s I`, v ⟂ b, ‖v‖ = ‖b‖ and w ⟂ b′, the rest is a pair on the directions w ± v′ and a
triple on dw and dv′ along b′ and db′ along w (Singh & Hofmann, Theorem 6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import array_api_compat as api

from hessence._common.arrays import Array, epsilon, nonzero, stack_rows, transpose, unit
from hessence._common.summation import exact_product
from hessence.networks.scalar.gram import gram, outlier_pair
from hessence.networks.scalar.products import HALF, pair_isometry
from hessence.spectra.frames import Frame
from hessence.spectra.small_eigen import eigenvalues
from hessence.spectra.subspaces import Columns, Subspaces

ASSUMPTION_TOLERANCE = 32
"""The paper's assumptions count as met if they are off by at most this many ε, relative."""


@dataclass(frozen=True, eq=False)
class AffineClosedForm:
    """Families with values in closed form; the attributes are those of ``AffineHessian``."""

    w: Array
    v: Array
    b: Array
    gradient: Array
    loss_hessian: Array

    def applies(self) -> bool:
        """Tell whether the assumptions of the theorem hold, to rounding."""
        xp = api.array_namespace(self.w)
        tolerance = ASSUMPTION_TOLERANCE * epsilon(self.w)
        s = self.loss_hessian
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

    def hessian(self) -> list[Subspaces]:
        """Return the families of the Hessian, where the theorem applies."""
        xp, m = api.array_namespace(self.w), int(self.w.shape[-1])
        along, across = self._turned
        cosine, sine = self._turn
        s = self.loss_hessian[..., 0, 0]
        # ⟨w, v′⟩ from ⟨w, v⟩ and ⟨w, b⟩, before the rounding of v′ can be magnified in it.
        inner = cosine * xp.vecdot(self.w, self.v) + sine * xp.vecdot(self.w, self.b)
        pair = outlier_pair(gram(self.w, along)._replace(inner=inner), self._height, s)
        # By assumption ‖b′‖ = ‖v‖ = ‖b‖, but only b′ gives eigenvalues their right derivatives.
        triple = _triple_values(
            self._height, s * xp.vecdot(across, across), s * xp.vecdot(self.w, self.w)
        )
        of_w = Frame(self.w[..., None])

        def embed_triple(coordinates: Array, copies: Array) -> Array:
            c, frame = coordinates[..., None] * copies, Frame(across[..., None])
            on_w, on_v = frame.span(c[..., 0:1, :]), frame.span(c[..., 1:2, :])
            return self._place(on_v, of_w.span(c[..., 2:3, :]), on_w)

        def rest(sign: int) -> Frame:
            return Frame(xp.stack([across, self.w + sign * along], axis=-1))

        of_pair = pair_isometry(self.w, along, lambda dv, dw: self._place(dv, 0 * dv, dw))
        return [
            Subspaces(("outlier/pair",) * 2, lambda _: of_pair, values=xp.stack(pair, axis=-1)),
            Subspaces(("outlier/triple",) * 3, lambda _: embed_triple, values=triple),
            *self._bulk(m - 2, rest),
            self._flat(m - 1, lambda z: self._on_b(of_w.complement(z))),
        ]

    def ggn(self) -> list[Subspaces]:
        """Return the families of the Gauss–Newton part, for any data and any weights."""
        xp = api.array_namespace(self.w)
        zero = 0 * self.w
        gradients = [[self.w, zero, self.v], [zero, self.w, self.b]]
        jacobian = xp.stack([xp.concat(g, axis=-1) for g in gradients], axis=-1)
        frame = Frame(jacobian)
        root = frame.coordinates(jacobian)
        matrix = xp.matmul(root, xp.matmul(self.loss_hessian, transpose(root)))

        span, values = Columns(frame.span), self._ggn_values(matrix)
        return [
            Subspaces(("outlier",) * 2, lambda _: span, matrix=matrix, values=values),
            self._flat(3 * int(self.w.shape[-1]) - 2, frame.complement),
        ]

    def functional(self) -> list[Subspaces]:
        """Return the families of the functional part, for any data and any weights."""
        m = int(self.w.shape[-1])
        return [*self._bulk(m), self._flat(m, self._on_b)]

    def _ggn_values(self, matrix: Array) -> Array:
        """Return the eigenvalues of R S Rᵀ, the smaller from det S · det N, with N = RᵀR."""
        xp = api.array_namespace(matrix)
        upper, lower = (eigenvalues(matrix)[..., i] for i in range(2))
        outer = xp.where(xp.abs(upper) < xp.abs(lower), lower, upper)
        s = self.loss_hessian
        first, lost = exact_product(s[..., 0, 0], s[..., 1, 1])
        second, lost_too = exact_product(s[..., 0, 1], s[..., 0, 1])
        of_s = (first - second) + (lost - lost_too)
        ww, vv, bb = (xp.vecdot(a, a) for a in (self.w, self.v, self.b))
        share = xp.vecdot(self.v, self.b) / nonzero(vv)
        across = self.b - share[..., None] * self.v
        size = nonzero(ww + vv + bb)
        of_n = ww + (vv / size) * xp.vecdot(across, across)
        inner = of_s * (of_n / nonzero(outer / size))
        return xp.stack([xp.maximum(outer, inner), xp.minimum(outer, inner)], axis=-1)

    @cached_property
    def _height(self) -> Array:
        """Return h = ‖δ‖."""
        return api.array_namespace(self.w).hypot(self.gradient[..., 0], self.gradient[..., 1])

    @cached_property
    def _turn(self) -> tuple[Array, Array]:
        """Return cosine and sine of the rotation; none where the gradient vanishes."""
        xp = api.array_namespace(self.w)
        direction = unit(self.gradient)
        still = self._height == 0
        cosine = xp.where(still, xp.ones_like(self._height), direction[..., 0])
        return cosine, direction[..., 1]

    @cached_property
    def _turned(self) -> tuple[Array, Array]:
        cosine, sine = (t[..., None] for t in self._turn)
        return cosine * self.v + sine * self.b, cosine * self.b - sine * self.v

    def _place(self, along: Array, across: Array, on_w: Array) -> Array:
        """Turn vectors (dv′, db′, dw) back and stack them in the order (v, b, w)."""
        cosine, sine = (t[..., None, None] for t in self._turn)
        return stack_rows(cosine * along - sine * across, sine * along + cosine * across, on_w)

    def _bulk(self, count: int, frame: Callable[[int], Frame] | None = None) -> list[Subspaces]:
        """Return ±h on (dv′, dw) = (z, ±z)/√2 with any z, or z in the complement of a frame."""

        def isometry(sign: int, _: int) -> Columns:
            def embed(copies: Array) -> Array:
                half = HALF * (copies if frame is None else frame(sign).complement(copies))
                return self._place(half, 0 * half, sign * half)

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

    def _on_b(self, vectors: Array) -> Array:
        return self._place(0 * vectors, vectors, 0 * vectors)


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
