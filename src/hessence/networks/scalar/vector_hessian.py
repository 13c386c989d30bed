r"""The Hessian of a product of a vector with a matrix: two linear layers with one output.

The loss of f(x) = ⟨w, V x⟩ depends on :math:`\beta = V^\top w \in \mathbb{R}^D`, with gradient δ
and Hessian S in it. With :math:`v_d` the columns of V,

.. math:: d^2\ell = d\beta^\top S\, d\beta + 2 \langle dw, \textstyle\sum_d \delta_d\, dv_d \rangle,
          \quad d\beta_d = \langle dw, v_d\rangle + \langle w, dv_d\rangle.

This is the narrow twin of the product :math:`w^\top V`. Where the columns of V are orthonormal and
the data white, its block splits further (:mod:`hessence.networks.scalar._orthonormal`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import (
    Array,
    Numbers,
    constant,
    epsilon,
    identity,
    like,
    stack_rows,
    to_numpy,
    transpose,
)
from hessence.data.rounding import DerivativeErrors, terms
from hessence.networks.scalar._orthonormal import Orthonormal
from hessence.networks.twin import TwinSubspaces
from hessence.spectra.hessian import Hessian, Part, positive_norm
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Subspaces


@dataclass(frozen=True, eq=False, repr=False)
class VectorHessian(Hessian):
    """The Hessian of a loss of β = (⟨w, v_1⟩, …, ⟨w, v_D⟩), parameters ordered (v_1, …, v_D, w).

    Attributes
    ----------
    w : array (..., m)
        The weights of the second layer.
    V : array (..., D, m)
        Those of the first, v_1 … v_D as rows.
    gradient : array (..., D)
        The gradient δ of the loss in β.
    loss_hessian : array (..., D, D)
        Its Hessian S in β.
    part : str
        Which of the Hessian and its two parts this is.
    derivatives : callable, optional
        What rounding has done to the derivatives of the loss, given the error (..., D) of β.
    """

    w: Array
    V: Array
    gradient: Array
    loss_hessian: Array
    part: Part = "hessian"
    derivatives: Callable[[Numbers], DerivativeErrors] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, inputs, m = self.V.shape
        return (*batch, (inputs + 1) * m, (inputs + 1) * m)

    @property
    def reference(self) -> Array:
        return self.w

    def trace(self) -> Array:
        """Return tr(S N), N = V Vᵀ + ‖w‖² I the Gram matrix of the gradients of β."""
        xp = api.array_namespace(self.w)
        return xp.sum(self.loss_hessian * self._jacobian_gram, axis=(-2, -1))

    def squared_norm(self) -> Array:
        """Return 2m ‖δ‖² + 4 βᵀSδ + tr(S N S N)."""
        xp = api.array_namespace(self.w)
        beta, both = self._on_rows(self.w), xp.matmul(self.loss_hessian, self._jacobian_gram)
        pull = xp.matmul(self.loss_hessian, beta[..., None])[..., 0]
        swap = 2 * int(self.w.shape[-1]) * self.gradient + 4 * pull
        return xp.vecdot(swap, self.gradient) + xp.sum(both * transpose(both), axis=(-2, -1))

    def rounding(self) -> Any:
        """Return the norm of the operator that adds up all errors with positive signs."""
        if self.derivatives is None:
            return 0.0
        w, V = (abs(constant(a)) for a in (self.w, self.V))
        share = epsilon(w) * (64 + 2 * terms(int(w.shape[-1])))
        slack = replace(self, V=V)._on_rows(w)
        errors = DerivativeErrors(
            *(error[..., None, :] for error in self.derivatives(share * to_numpy(slack)))
        )
        gradient = errors.gradient[..., 0, :] + share * np.abs(to_numpy(self.gradient))
        second = errors.second(share)[..., 0, :, 0, :]
        sizes = replace(
            self, w=w, V=V,
            gradient=like(gradient * (self.part != "ggn"), w),
            loss_hessian=like(second * (self.part != "functional"), w),
        )  # fmt: skip
        return positive_norm(sizes)

    def exact_spectrum(self) -> Spectrum:
        closed, defect = Orthonormal(self), 0.0
        match self.part:
            case "functional":
                families = closed.functional()
            case "ggn":
                families = closed.ggn()
            case _ if self.closed:
                families, defect = closed.hessian(), closed.neglected()
            case _:
                return Spectrum(self._twin_families(), "narrow twin", operator=self)
        return Spectrum(families, "closed form", operator=self, defect=defect)

    @property
    def closed(self) -> bool:
        """Whether the assumptions of the closed form hold, to rounding."""
        return Orthonormal(self).applies()

    def times(self, columns: Array) -> Array:
        xp = api.array_namespace(self.w)
        *_batch, inputs, m = self.V.shape
        dV = xp.reshape(columns[..., :-m, :], (*columns.shape[:-2], inputs, m, columns.shape[-1]))
        dw = columns[..., None, -m:, :]
        w, V = self.w[..., None, :, None], self.V[..., None]
        along = xp.sum(w * dV + V * dw, axis=-2)
        on_beta = xp.matmul(self.loss_hessian, along)[..., :, None, :]
        delta = self.gradient[..., :, None, None]
        on_V, on_w = delta * dw + w * on_beta, xp.sum(delta * dV + V * on_beta, axis=-3)
        return stack_rows(xp.reshape(on_V, (*on_V.shape[:-3], inputs * m, -1)), on_w)

    @property
    def _jacobian_gram(self) -> Array:
        xp = api.array_namespace(self.w)
        eye = identity(self.V.shape[-2], self.w)
        own = xp.vecdot(self.w, self.w)[..., None, None] * eye
        return xp.matmul(self.V, transpose(self.V)) + own

    def _on_rows(self, vector: Array) -> Array:
        return api.array_namespace(self.w).matmul(self.V, vector[..., None])[..., 0]

    def _twin_families(self) -> list[Subspaces]:
        """Return the families for any data and any weights."""
        inputs = int(self.V.shape[-2])

        def place(dB: Array, dA: Array) -> Array:
            rows = [dB[..., d] for d in range(inputs)]
            return stack_rows(*map(transpose, (*rows, dA[..., 0, :])))

        gradient = self.gradient[..., None, :]
        twin = TwinSubspaces(transpose(self.V), self.w[..., None, :], gradient, place)
        # There is one bulk, and its label needs no number.
        rest = (
            replace(f, labels=(f.labels[0].partition("/")[0],), members=f.members and ("",))
            for f in twin.outside()
        )
        return [twin.inside("outlier/twin"), *rest]
