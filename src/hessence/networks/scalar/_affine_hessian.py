r"""The Hessian of f(x) = ⟨w, v x + b⟩: a product of a vector with two others.

The loss depends on :math:`\beta = (\langle w, v\rangle, \langle w, b\rangle)`, with gradient
:math:`\delta \in \mathbb{R}^2` and Hessian S in it, and

.. math:: d^2\ell = d\beta^\top S\, d\beta + 2 \langle dw, \delta_1 dv + \delta_2 db \rangle, \quad
          d\beta = (\langle dw, v\rangle + \langle w, dv\rangle,
                    \langle dw, b\rangle + \langle w, db\rangle).

This is the narrow twin of the product :math:`w^\top (v, b)` with the input (x, 1). Where the
assumptions of the paper hold, its block splits further
(:mod:`hessence.networks.scalar._affine_closed_form`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as api

from hessence._common.arrays import Array, Numbers, stack_rows, transpose
from hessence.data.rounding import DerivativeErrors
from hessence.networks.rounding import ChainRounding
from hessence.networks.scalar._affine_closed_form import AffineClosedForm
from hessence.networks.twin import TwinSubspaces
from hessence.spectra.operators import Hessian, Part
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Subspaces


@dataclass(frozen=True, eq=False, repr=False)
class AffineHessian(Hessian):
    """The Hessian of a loss of ⟨w, v⟩ and ⟨w, b⟩, with parameters ordered (v, b, w).

    Attributes
    ----------
    w, v, b : array (..., m)
        The weights.
    gradient : array (..., 2)
        The gradient δ of the loss in the two products.
    loss_hessian : array (..., 2, 2)
        Its Hessian S in them.
    part : str
        Which of the Hessian and its two parts this is.
    derivatives : callable, optional
        What rounding has done to the derivatives of the loss.
    """

    w: Array
    v: Array
    b: Array
    gradient: Array
    loss_hessian: Array
    part: Part = "hessian"
    derivatives: Callable[[Numbers], DerivativeErrors] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, m = self.w.shape
        return (*batch, 3 * m, 3 * m)

    @property
    def reference(self) -> Array:
        return self.w

    def trace(self) -> Array:
        """Return tr(S N), N = J Jᵀ the Gram matrix of the two products' gradients."""
        xp = api.array_namespace(self.w)
        return xp.sum(self.loss_hessian * self._jacobian_gram, axis=(-2, -1))

    def squared_norm(self) -> Array:
        """Return 2m ‖δ‖² + 4 βᵀSδ + tr(S N S N)."""
        xp = api.array_namespace(self.w)
        m = int(self.w.shape[-1])
        beta = xp.stack([xp.vecdot(self.w, self.v), xp.vecdot(self.w, self.b)], axis=-1)
        both = xp.matmul(self.loss_hessian, self._jacobian_gram)
        swap = 2 * m * self.gradient + 4 * xp.matmul(self.loss_hessian, beta[..., None])[..., 0]
        return xp.vecdot(swap, self.gradient) + xp.sum(both * transpose(both), axis=(-2, -1))

    def rounding(self) -> Any:
        """Return the bound for the product wᵀ (v, b) of two matrices."""
        if self.derivatives is None:
            return 0.0
        xp = api.array_namespace(self.w)
        factors = xp.stack([self.v, self.b], axis=-1), self.w[..., None, :]
        chain = ChainRounding(factors, self.derivatives)
        return chain.bound(self.gradient[..., None, :], self.part)

    def spectrum(self) -> Spectrum:
        closed = AffineClosedForm(self.w, self.v, self.b, self.gradient, self.loss_hessian)
        method = "closed form"
        match self.part:
            case "functional":
                families = closed.functional()
            case "ggn":
                families = closed.ggn()
            case _ if closed.applies():
                families = closed.hessian()
            case _:
                method, families = "narrow twin", self._twin_families()
        return Spectrum(families, method, operator=self)

    def times(self, columns: Array) -> Array:
        xp = api.array_namespace(self.w)
        m = int(self.w.shape[-1])
        dv, db, dw = (columns[..., i * m : (i + 1) * m, :] for i in range(3))
        w, v, b = (a[..., None] for a in (self.w, self.v, self.b))
        along = [xp.sum(w * dv + v * dw, axis=-2), xp.sum(w * db + b * dw, axis=-2)]
        d_gradient = xp.matmul(self.loss_hessian, xp.stack(along, axis=-2))
        of_v, of_b = (self.gradient[..., i, None, None] for i in range(2))
        on_v, on_b = d_gradient[..., 0:1, :], d_gradient[..., 1:2, :]
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

    def _twin_families(self) -> list[Subspaces]:
        """Return the families for any data and any weights."""

        def place(dB: Array, dA: Array) -> Array:
            return stack_rows(*map(transpose, (dB[..., 0], dB[..., 1], dA[..., 0, :])))

        xp = api.array_namespace(self.w)
        both = xp.stack([self.v, self.b], axis=-1)
        gradient = self.gradient[..., None, :]
        twin = TwinSubspaces(both, self.w[..., None, :], gradient, place)
        first, second, r = twin.twin.W1, twin.twin.W2, twin.twin.width
        narrow = replace(self, w=second[..., 0, :], v=first[..., 0], b=first[..., 1])

        def products(coordinates: Array) -> Array:
            rows = transpose(narrow @ place(*twin.embed(coordinates)))
            dv, db, dw = (rows[..., i * r : (i + 1) * r] for i in range(3))
            return twin.project(xp.stack([dv, db], axis=-1), dw[..., None, :])

        # There is one bulk, and its label needs no number.
        rest = (
            replace(f, labels=(f.labels[0].partition("/")[0],), members=f.members and ("",))
            for f in twin.outside()
        )
        return [twin.inside("outlier/twin", products), *rest]
