"""Networks that are sums of scalar ones: separate units for each input, or for each output."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, epsilon, floating, require_shape, to_double
from hessence.data.losses import PointwiseLoss
from hessence.data.matrix_objectives import MatrixQuadratic
from hessence.data.moments import Moments
from hessence.data.objectives import Quadratic, scalar_objective, vector_objective
from hessence.networks.scalar._rounding import of_inputs, of_outputs
from hessence.networks.scalar.gram import Gram, gram
from hessence.networks.scalar.network import UniformNetwork
from hessence.networks.scalar.products import Products

CORRELATION_TOLERANCE = 32
"""Inputs count as uncorrelated if abs(E[x_i x_j]) is at most this many ε of √(E[x_i²] E[x_j²])."""


@dataclass(frozen=True, eq=False, repr=False)
class _Decoupled(UniformNetwork):
    W: Array
    V: Array

    order: ClassVar[tuple[str, ...]] = ("V", "W")
    rank: ClassVar[int] = 2

    @cached_property
    def _gram(self) -> Gram:
        return gram(self.W, self.V)

    @property
    def _coefficients(self) -> Array:
        return self._gram.inner


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

    def __call__(self, x: Array) -> Array:
        """Return the predictions (..., n) for inputs (n, D)."""
        _, x = floating(("W", self.W), x=x)
        require_shape("x", x, ("n", int(self.W.shape[-2])), batch=False)
        return self._predict(x)[..., 0]

    def hessian(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Products:
        objective, g = self._objective(self._data(x, y), loss), self._gram.inner
        gradient, hessian, far = objective.gradient(g), objective.hessian(g), None
        diagonal, neglected = api.array_namespace(g).linalg.diagonal, 0.0
        if _is_diagonal(hessian):
            neglected = _coupling(hessian, self._gram.norm)
            hessian = diagonal(hessian)
        names = [f"/x{d}" for d in range(int(self.W.shape[-2]))]
        squared = objective.whole if isinstance(objective.whole, MatrixQuadratic) else None
        if squared and _is_diagonal(squared.moments.xx, 0):
            # Each input is a scalar network of its own, and as accurate as one.
            variance, covariance = diagonal(squared.moments.xx), squared.moments.yx[0, :]
            single = Quadratic(variance, covariance, floor=lambda: squared.solution[1])
            gradient, far = single.gradient(g), single.far_gradient(g)
        return Products(
            self.W, self.V, gradient, hessian, self._gram, names, far_gradient=far,
            derivatives=partial(of_inputs, objective.whole, g), neglected=neglected,
        )  # fmt: skip

    def _predict(self, inputs: Array) -> Array:
        xp = api.array_namespace(inputs)
        return xp.matmul(inputs, self._gram.inner[..., :, None])

    @property
    def _dimensions(self) -> tuple[int, int]:
        return (int(self.W.shape[-2]), 1)

    def _objective(self, data: Moments, loss: str | PointwiseLoss) -> Any:
        return vector_objective(data, loss)


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

    def __call__(self, x: Array) -> Array:
        """Return the predictions (..., n, K) for inputs (n,) or (n, 1)."""
        _, x = floating(("W", self.W), x=x)
        if x.ndim == 1:
            x = x[:, None]
        require_shape("x", x, ("n", 1), batch=False)
        return self._predict(x)

    def hessian(self, x: Array, y: Array = None, loss: str | PointwiseLoss = "mse") -> Products:
        data, g = self._data(x, y), self._gram.inner
        objective = self._objective(data, loss)
        names = [f"/y{k}" for k in range(int(self.W.shape[-2]))]
        squared = isinstance(objective, Quadratic)
        return Products(
            self.W,
            self.V,
            objective.gradient(g),
            objective.hessian(g),
            self._gram,
            names,
            far_gradient=objective.far_gradient(g) if squared else None,
            derivatives=partial(of_outputs, data, loss, g),
        )

    def _predict(self, inputs: Array) -> Array:
        return inputs * self._gram.inner[..., None, :]

    @property
    def _dimensions(self) -> tuple[int, int]:
        return (1, int(self.W.shape[-2]))

    def _objective(self, data: Moments, loss: str | PointwiseLoss) -> Any:
        return scalar_objective(data, loss)


def _is_diagonal(matrix: Array, ulps: int = CORRELATION_TOLERANCE) -> bool:
    xp = api.array_namespace(matrix)
    diagonal = xp.sqrt(xp.abs(xp.linalg.diagonal(matrix)))
    size = diagonal[..., :, None] * diagonal[..., None, :]
    eye = xp.eye(matrix.shape[-1], dtype=xp.bool, device=api.device(matrix))
    tolerance = ulps * epsilon(matrix)
    small = xp.abs(matrix) <= tolerance * size
    return bool(xp.all(xp.logical_or(eye, small)))


def _coupling(matrix: Array, norm: Array) -> Any:
    """Return a bound for the norm of what the entries off the diagonal do to the Hessian."""
    entries = np.abs(to_double(matrix))
    entries = entries * (1 - np.eye(entries.shape[-1]))
    lengths = np.sqrt(to_double(norm))
    return np.sum(lengths[..., :, None] * entries * lengths[..., None, :], axis=(-2, -1))
