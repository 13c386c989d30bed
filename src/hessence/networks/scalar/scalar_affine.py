"""The two-layer linear network of one input and one output with biases in its first layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import array_api_compat as api

from hessence._common.arrays import Array
from hessence.data.losses import PointwiseLoss
from hessence.data.moments import Moments
from hessence.data.objectives import vector_objective
from hessence.networks.scalar._rounding import of_loss
from hessence.networks.scalar.network import ScalarNetwork
from hessence.networks.scalar.vector_hessian import VectorHessian


@dataclass(frozen=True, eq=False, repr=False)
class ScalarAffine(ScalarNetwork):
    """f(x) = ⟨w, v x + b⟩, with parameters ordered (v, b, w).

    The prediction is linear in (x, 1) with coefficients β = (⟨w, v⟩, ⟨w, b⟩), and the Hessian
    reduces exactly, for any data and any weights, to a block of at most seven dimensions beside a
    bulk ±‖δ‖ and zeros, δ = E[(f − y)(x, 1)]: ``method`` is then ``"narrow twin"``. Where the
    assumptions of Singh & Hofmann, Theorem 6, hold to rounding (⟨v, b⟩ = 0, ‖v‖ = ‖b‖, E[x] = 0,
    E[x²] = 1, and E[y (x, 1)] parallel to β, for which the paper asks that it vanishes), the block
    falls apart into the paper's pair and triple: ``method`` is ``"closed form"``.

    Parameters
    ----------
    w, v, b : array (..., m)
        Weights of the second layer, weights and biases of the first.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> net = hs.ScalarAffine(w=[1.0, 2.0, 0.0], v=[1.0, 0.0, 1.0], b=[0.5, 0.5, 0.5])
    >>> s = net.hessian(np.asarray([1.0, 2.0]), np.asarray([1.0, -1.0])).spectrum()
    >>> len(s), s.method, s.rank()
    (9, 'narrow twin', 7)
    """

    w: Array
    v: Array
    b: Array

    order: ClassVar[tuple[str, ...]] = ("v", "b", "w")

    def gradient(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Array:
        """Return the gradient of the loss, flat, in the order (v, b, w)."""
        xp = api.array_namespace(self.w)
        gradient = self._objective(self._data(x, y), loss).gradient(self._coefficients)
        of_v, of_b = gradient[..., 0:1], gradient[..., 1:2]
        return xp.concat([of_v * self.w, of_b * self.w, of_v * self.v + of_b * self.b], axis=-1)

    def hessian(
        self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse"
    ) -> VectorHessian:
        data, beta = self._data(x, y), self._coefficients
        objective = self._objective(data, loss)
        V = api.array_namespace(self.w).stack([self.v, self.b], axis=-2)
        return VectorHessian(
            self.w, V, objective.gradient(beta), objective.hessian(beta),
            derivatives=partial(of_loss, data.with_constant(), loss, beta),
        )  # fmt: skip

    @cached_property
    def _coefficients(self) -> Array:
        xp = api.array_namespace(self.w)
        return xp.stack([xp.vecdot(self.w, self.v), xp.vecdot(self.w, self.b)], axis=-1)

    def _predict(self, inputs: Array) -> Array:
        beta = self._coefficients[..., None, :]
        return beta[..., 0:1] * inputs + beta[..., 1:2]

    def _objective(self, data: Moments, loss: str | PointwiseLoss) -> Any:
        return vector_objective(data.with_constant(), loss)
