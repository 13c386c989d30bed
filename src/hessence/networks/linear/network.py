"""Linear networks: a chain of matrices, and a loss of what they make end to end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, floating, require_shape, to_numpy
from hessence.data.linear_objective import AnyLoss, linear_objective
from hessence.data.matrix_objectives import MatrixQuadratic
from hessence.data.rounding import DerivativeErrors, derivative_errors
from hessence.networks.descent import Descent
from hessence.networks.linear._chain import Chain
from hessence.networks.linear._descent import LinearWeightDescent
from hessence.networks.linear._products import frobenius_norm, spectral_norm
from hessence.networks.linear.bounds import LinearBounds, bounds_of
from hessence.networks.linear.hessian import LinearHessian
from hessence.networks.network import Network


class DataSizes(NamedTuple):
    """How large data are: norms of E[x xᵀ], its trace, a bound of E‖y‖‖x‖, how many samples."""

    norm: float
    frobenius: float
    trace: float
    targets: float
    samples: int


@dataclass(frozen=True)
class Derivatives:
    """What rounding does to the derivatives of a loss at what a network has learned."""

    net: LinearNetwork
    objective: Any

    def __call__(self, share: float) -> DerivativeErrors:
        """Return bounds for all entries, if it does a share of their terms to steps of products."""
        size = share * to_numpy(self.net.learned_size())
        return derivative_errors(self.objective, self.net.learned, size)

    def norms(self) -> DataSizes | None:
        """Return the sizes of data for the mean-squared error.

        Not where M has a constant: the terms of what is learned may then be larger than the factors
        of M, which may even be zero.
        """
        if self.net.constant is not None or not isinstance(self.objective, MatrixQuadratic):
            return None
        data = self.objective.moments
        trace, squares = (float(np.trace(to_numpy(m))) for m in (data.xx, data.yy))
        norms = spectral_norm(data.xx), frobenius_norm(data.xx)
        return DataSizes(*norms, trace, (trace * squares) ** 0.5, data.n)


class LinearNetwork(Network):
    """f(x) = c M x with x (n, d_0), y (n, d_L), and c the product of the multipliers.

    A subclass has ``weights`` and says what they make: ``factors``, whose changes are the
    weights', and the end-to-end matrix M that the loss sees, as a ``constant`` plus what is
    ``learned``. Here all are the plainest: the weights themselves, nothing, and W_L ⋯ W_1. The
    constant's share of the prediction is taken off the targets before anything is rounded, so that
    what is learned keeps its digits however small it is.
    """

    rank: ClassVar[int] = 2
    weights: tuple[Array, ...]
    multipliers: tuple[float, ...]

    @property
    def factors(self) -> tuple[Array, ...]:
        """The matrices F_1, …, F_L whose product is M up to a constant, with dF = dW."""
        return self.weights

    @cached_property
    def chain(self) -> Chain:
        """The chain of the factors."""
        return Chain(self.factors)

    @property
    def constant(self) -> Array | None:
        """What of M does not depend on the weights, None for nothing."""
        return None

    @property
    def learned(self) -> Array:
        """The rest of M, which changes as the product of the factors does."""
        return self.chain.product

    def learned_size(self) -> Array:
        """Return the sum of the absolute values of all terms of what is learned."""
        return self._rebuild({name: abs(w) for name, w in self._weights.items()}).learned

    @property
    def product(self) -> Array:
        """The end-to-end matrix M, without the multipliers."""
        return self.learned if self.constant is None else self.constant + self.learned

    @property
    def dims(self) -> tuple[int, ...]:
        """The widths (d_0, …, d_L)."""
        return (int(self.weights[0].shape[-1]), *(int(w.shape[-2]) for w in self.weights))

    def __call__(self, x: Array) -> Array:
        """Return the predictions (..., n, d_L) for inputs (n, d_0)."""
        xp, x = floating(self._reference, x=x)
        require_shape("x", x, ("n", self.dims[0]), batch=False)
        return xp.matmul(self._multiplier * x, xp.matrix_transpose(self.product))

    def loss(self, x: Array, y: Array = None, loss: AnyLoss = "mse") -> Array:
        """Return the loss: the mean over samples of the loss of the predictions.

        The default is the papers' ½ E‖f(x) − y‖². ``"cross-entropy"`` takes class indices (n,) or
        one-hot rows; a function of PyTorch's (prediction, target) is called as it is.
        """
        objective = self._objective(x, y, loss)
        given = objective.moments.samples if isinstance(objective, MatrixQuadratic) else None
        if given is not None and objective is not x:
            inputs, targets = given
            xp = api.array_namespace(inputs)
            residual = xp.matmul(inputs, xp.matrix_transpose(self.learned)) - targets
            return xp.sum(residual * residual, axis=(-2, -1)) / (2 * objective.moments.n)
        return objective.value(self.learned)

    def gradient(self, x: Array, y: Array = None, loss: AnyLoss = "mse") -> Array:
        """Return the gradient of the loss, flat, first layer first, each row by row."""
        gradient = self._objective(x, y, loss).gradient(self.learned)
        return self.chain.pull(gradient[..., None, :, :])[..., 0]

    def hessian(self, x: Array, y: Array = None, loss: AnyLoss = "mse") -> LinearHessian:
        """Return the Hessian of the loss as an operator; its products never touch the samples."""
        objective, learned = self._objective(x, y, loss), self.learned
        gradient, second = objective.gradient(learned), objective.hessian(learned)
        return LinearHessian(self.factors, gradient, second, Derivatives(self, objective))

    def descent(self, x: Array, y: Array = None, loss: AnyLoss = "mse") -> Descent:
        """Return how gradient descent moves the network: mode by mode if it stays aligned."""
        return LinearWeightDescent(self, x=self._objective(x, y, loss))

    def bounds(self, x: Array, y: Array = None) -> LinearBounds:
        """Return what is known of the spectrum without solving for it."""
        self._require_single("bounds")
        return bounds_of(self.hessian(x, y))

    def _require_single(self, name: str) -> None:
        if self.batch_shape:
            raise ValueError(f"{name} is for one network; pick one of the batch first, as net[0].")

    @property
    def _multiplier(self) -> float:
        return float(np.prod(self.multipliers))

    @property
    def _weights(self) -> dict[str, Array]:
        return {f"W{i}": w for i, w in enumerate(self.weights, start=1)}

    def _objective(self, x: Any, y: Any, loss: AnyLoss) -> Any:
        """Return the loss as a function of what is learned: the multipliers scale the inputs."""
        shape = self.dims[-1], self.dims[0]
        return linear_objective(x, y, loss, shape, self._reference, self._multiplier, self.constant)

    def __repr__(self) -> str:
        shape = "-".join(map(str, self.dims))
        batch = f", batch={self.batch_shape}" if self.batch_shape else ""
        scale = "" if self._multiplier == 1 else f", multipliers={self.multipliers}"
        return f"{type(self).__name__}({shape}{batch}{scale})"


def as_layers(weights: Any) -> tuple[Array, ...]:
    """Check matrices that act one after the other, first to act first, by name."""
    _, *arrays = floating(**weights)
    for name, array in zip(weights, arrays, strict=True):
        require_shape(name, array, ("d_out", "d_in"), batch=True)
    for name, (below, here) in zip(list(weights)[1:], pairwise(arrays), strict=True):
        if here.shape[-1] != below.shape[-2]:
            raise ValueError(
                f"{name} must take the {below.shape[-2]} outputs of the layer before, "
                f"got shape {tuple(here.shape)}."
            )
        if tuple(here.shape[:-2]) != tuple(below.shape[:-2]):
            raise ValueError(
                f"{name} must have the batch dimensions {tuple(below.shape[:-2])} of the "
                f"layer before, got {tuple(here.shape[:-2])}."
            )
    return tuple(arrays)


def as_multipliers(multipliers: Any, layers: int) -> tuple[float, ...]:
    """Check one multiplier for each layer."""
    if multipliers is None:
        return (1.0,) * layers
    try:
        values = tuple(float(m) for m in multipliers)
    except (TypeError, ValueError):
        raise TypeError("multipliers must be a sequence of numbers, one for each layer.") from None
    if len(values) != layers:
        raise ValueError(f"multipliers must have {layers} entries, got {len(values)}.")
    if not all(np.isfinite(v) and v != 0 for v in values):
        raise ValueError(f"multipliers must be finite and not zero, got {values}.")
    return values
