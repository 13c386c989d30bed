"""Networks that are sums of scalar ones: separate units for each input, or for each output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat as api

from hessence._common.arrays import Array, epsilon, floating, require_shape
from hessence.data.losses import PointwiseLoss
from hessence.data.matrix_objectives import MatrixQuadratic
from hessence.data.moments import Moments
from hessence.data.objectives import Quadratic, scalar_objective, vector_objective
from hessence.networks.scalar.network import ProductNetwork
from hessence.networks.scalar.products import Products

CORRELATION_TOLERANCE = 32
"""Inputs count as uncorrelated if abs(E[x_i x_j]) is at most this many ε of √(E[x_i²] E[x_j²])."""


@dataclass(frozen=True, eq=False, repr=False)
class _Decoupled(ProductNetwork):
    W: Array
    V: Array

    order: ClassVar[tuple[str, ...]] = ("V", "W")
    rank: ClassVar[int] = 2
    letter: ClassVar[str]
    """What labels call an input or an output."""

    @property
    def _rows(self) -> tuple[Array, Array]:
        return self.W, self.V

    @property
    def _names(self) -> list[str]:
        return [f"/{self.letter}{c}" for c in range(int(self.W.shape[-2]))]


class DecoupledInputs(_Decoupled):
    """f(x) = Σ_d ⟨w_d, v_d⟩ x_d, with parameters ordered (V, W), each row by row.

    For inputs with E[x_i x_j] = 0 the Hessian is a direct sum of scalar linear networks, one for
    each input (labels end in ``/x0``, ``/x1``, …). Correlated inputs leave the bulk as it is, ±δ_d
    with δ = Σβ − E[y x], and couple the D outlier pairs into one block of size 2D. Diagonal linear
    networks are m = 1.

    Parameters
    ----------
    W, V : array (..., D, m)
        Weights of the second and of the first layer, one row for each input.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> net = hs.DecoupledInputs(W=[[1.0, 2.0], [0.5, 1.0]], V=[[1.0, 0.0], [1.0, 1.0]])
    >>> x, y = np.asarray([[1.0, 0.0], [0.0, 2.0]]), np.asarray([2.0, 2.0])
    >>> net.hessian(x, y).spectrum()
    8 eigenvalues, closed form
      label          value  multiplicity
      outlier/x1    7.4408             1
      outlier/x0    2.9142             1
      bulk/x1            1             1
      bulk/x0          0.5             1
      outlier/x0  0.085786             1
      bulk/x0         -0.5             1
      outlier/x1  -0.94076             1
      bulk/x1           -1             1
    """

    shape: ClassVar[tuple[str, ...]] = ("D", "m")
    letter: ClassVar[str] = "x"

    def __call__(self, x: Array) -> Array:
        """Return the predictions (..., n) for inputs (n, D)."""
        _, x = floating(("W", self.W), x=x)
        require_shape("x", x, ("n", int(self.W.shape[-2])), batch=False)
        return self._predict(x)[..., 0]

    def hessian(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Products:
        H = super().hessian(x, y, loss)
        if not (H.coupled and _is_diagonal(H.loss_hessian, CORRELATION_TOLERANCE)):
            return H
        return H.uncoupled()

    def _predict(self, inputs: Array) -> Array:
        xp = api.array_namespace(inputs)
        return xp.matmul(inputs, self._coefficients[..., None])

    @property
    def _dimensions(self) -> tuple[int, int]:
        return (int(self.W.shape[-2]), 1)

    def _objective(self, data: Moments, loss: str | PointwiseLoss) -> Any:
        found, inputs = vector_objective(data, loss), data.dimensions[0]
        squared = found.whole
        if not (isinstance(squared, MatrixQuadratic) and _is_diagonal(data.xx, 0)):
            return found
        # Each input is a scalar network of its own, and as accurate as one; together they have the
        # least loss, of which each is given the same share.
        variance = api.array_namespace(data.xx).linalg.diagonal(data.xx)
        return Quadratic(variance, data.yx[0, :], lambda: squared.solution[1] / inputs)


class DecoupledOutputs(_Decoupled):
    """f_k(x) = ⟨w_k, v_k⟩ x, with parameters ordered (V, W), each row by row.

    The Hessian is a direct sum of scalar linear networks, one for each output (labels end in
    ``/y0``, ``/y1``, …). The loss is summed over the outputs.

    Parameters
    ----------
    W, V : array (..., K, m)
        Weights of the second and of the first layer, one row for each output.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> net = hs.DecoupledOutputs(W=[[1.0, 2.0], [0.5, 1.0]], V=[[1.0, 0.0], [1.0, 1.0]])
    >>> x, y = np.asarray([1.0, -1.0]), np.asarray([[1.0, 0.0], [-1.0, 0.5]])
    >>> [space.label for space in net.hessian(x, y).spectrum().spaces[:2]]
    ['outlier/y0', 'outlier/y1']
    """

    shape: ClassVar[tuple[str, ...]] = ("K", "m")
    letter: ClassVar[str] = "y"

    def __call__(self, x: Array) -> Array:
        """Return the predictions (..., n, K) for inputs (n,) or (n, 1)."""
        _, x = floating(("W", self.W), x=x)
        if x.ndim == 1:
            x = x[:, None]
        require_shape("x", x, ("n", 1), batch=False)
        return self._predict(x)

    def _predict(self, inputs: Array) -> Array:
        return inputs * self._coefficients[..., None, :]

    @property
    def _dimensions(self) -> tuple[int, int]:
        return (1, int(self.W.shape[-2]))

    def _objective(self, data: Moments, loss: str | PointwiseLoss) -> Any:
        return scalar_objective(data, loss)


def _is_diagonal(matrix: Array, ulps: int) -> bool:
    xp = api.array_namespace(matrix)
    diagonal = xp.sqrt(xp.abs(xp.linalg.diagonal(matrix)))
    size = diagonal[..., :, None] * diagonal[..., None, :]
    eye = xp.eye(matrix.shape[-1], dtype=xp.bool, device=api.device(matrix))
    small = xp.abs(matrix) <= ulps * epsilon(matrix) * size
    return bool(xp.all(xp.logical_or(eye, small)))
