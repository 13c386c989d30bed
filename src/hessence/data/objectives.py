r"""The loss as a function of what a network computes.

A scalar network predicts :math:`g x` and reaches its loss only through the number g, so its Hessian
needs only :math:`\ell'(g)` and :math:`\ell''(g)`; a network with inputs :math:`x \in \mathbb{R}^D`
predicts :math:`\langle\beta, x\rangle` and needs the gradient and the Hessian in :math:`\beta`.
With the mean-squared error these are polynomials whose coefficients are moments; any other loss is
summed over the samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import array_api_compat as api

from hessence._common.arrays import Array, nonzero
from hessence._common.summation import exact_product, exact_sum
from hessence.data.losses import PointwiseLoss, Squared, as_loss
from hessence.data.matrix_objectives import MatrixLoss, MatrixQuadratic, Separable, matrix_objective
from hessence.data.moments import Moments, samples_of


@dataclass(frozen=True)
class Quadratic:
    r"""Mean-squared error of f = g x: :math:`\ell(g) = \tfrac12(\sigma^2 g^2 - 2 c g + E[y^2])`."""

    variance: Array  # σ² = E[x²]
    covariance: Array  # c = E[y x]
    floor: Callable[[], Array]
    """Returns the least loss over g, which keeps ``value`` free of cancellation near the solution.
    It costs a pass over the data, and the Hessian does not need it."""

    def value(self, coefficients: Array) -> Array:
        """Return floor + ℓ′(g)²/(2σ²)."""
        gradient = self.gradient(coefficients)
        return self.floor() + gradient * (gradient / nonzero(2 * self.variance))

    def gradient(self, coefficients: Array) -> Array:
        """Return δ = σ² g − c, also near the solution, where the rounding of σ² g would show."""
        fitted, lost = self._fitted(coefficients)
        return (fitted - self.covariance) + lost

    def far_gradient(self, coefficients: Array) -> Array:
        """Return δ + 2σ² g = 3σ² g − c, also near a third of the solution, where it vanishes."""
        fitted, lost = self._fitted(coefficients)
        gap, lost_too = exact_sum(fitted, -(self.covariance + 0 * fitted))
        return (2 * fitted + gap) + (lost_too + 3 * lost)

    def hessian(self, coefficients: Array) -> Array:
        """Return σ²."""
        return self.variance + 0 * self._promoted(coefficients)

    def _fitted(self, coefficients: Array) -> tuple[Array, Array]:
        """Return σ² g, and what its rounding has lost."""
        g = self._promoted(coefficients)
        return exact_product(self.variance + 0 * g, g)

    def _promoted(self, coefficients: Array) -> Array:
        # PyTorch lets numbers, unlike arrays, have no say in the precision of a result.
        xp = api.array_namespace(coefficients)
        wider = xp.result_type(coefficients.dtype, self.variance.dtype)
        return xp.astype(coefficients, wider, copy=False)


@dataclass(frozen=True)
class Pointwise:
    """Any pointwise loss of f = g x, summed over samples and divided by n."""

    x: Array  # (samples,)
    y: Array  # (..., samples)
    n: int  # counts all samples, also those of another cell
    loss: PointwiseLoss

    def value(self, coefficients: Array) -> Array:
        """Return the mean loss."""
        xp = api.array_namespace(self.x)
        return xp.sum(self.loss.value(coefficients[..., None] * self.x, self.y), axis=-1) / self.n

    def gradient(self, coefficients: Array) -> Array:
        """Return E[φ′ x]."""
        first = self.loss.first(coefficients[..., None] * self.x, self.y)
        return self._mean(first * self.x, coefficients)

    def hessian(self, coefficients: Array) -> Array:
        """Return E[φ″ x²]."""
        second = self.loss.second(coefficients[..., None] * self.x, self.y)
        return self._mean(second * (self.x * self.x), coefficients)

    def _mean(self, terms: Array, coefficients: Array) -> Array:
        # A derivative that is constant may lack the dimensions of a batch.
        xp = api.array_namespace(terms)
        return xp.broadcast_to(xp.sum(terms, axis=-1) / self.n, tuple(coefficients.shape))


@dataclass(frozen=True)
class VectorObjective:
    """A loss of f = ⟨β, x⟩, as that of the matrix βᵀ."""

    whole: MatrixQuadratic | MatrixLoss

    def value(self, coefficients: Array) -> Array:
        """Return the loss."""
        return self.whole.value(coefficients[..., None, :])

    def gradient(self, coefficients: Array) -> Array:
        """Return the gradient in β, Σβ − c for the mean-squared error."""
        return self.whole.gradient(coefficients[..., None, :])[..., 0, :]

    def hessian(self, coefficients: Array) -> Array:
        """Return the Hessian in β, Σ for the mean-squared error."""
        found = self.whole.hessian(coefficients[..., None, :])
        matrix = found.variance if isinstance(found, Separable) else found.entries[..., 0, :, 0, :]
        return matrix + 0 * coefficients[..., None]


def scalar_objective(
    moments: Moments, loss: str | PointwiseLoss, *, n: int | None = None
) -> Quadratic | Pointwise:
    """Return the loss as a function of g, for one input and any number of separate outputs.

    With several outputs the result depends on one g for each. `n` is the number of samples to
    divide by if it is not that of the moments.
    """
    pointwise = as_loss(loss)
    n = moments.n if n is None else n
    if type(pointwise) is Squared:
        # With one output, c and the least loss are numbers; with several, arrays (K,).
        outputs = 0 if moments.dimensions[1] == 1 else slice(None)
        covariance = moments.sum_yx[outputs, 0] / n
        floor = cache(lambda: _least_loss(moments)[outputs] / n)
        return Quadratic(moments.sum_xx[0, 0] / n, covariance, floor)
    x, y = samples_of(moments)
    xp = api.array_namespace(y)
    targets = y[:, 0] if y.shape[1] == 1 else xp.matrix_transpose(y)
    return Pointwise(x[:, 0], targets, n, pointwise)


def vector_objective(moments: Moments, loss: str | PointwiseLoss) -> VectorObjective:
    """Return the loss as a function of β, for one output."""
    return VectorObjective(matrix_objective(moments, as_loss(loss)))


def _least_loss(moments: Moments) -> Array:
    """Return the least summed loss ½ Σ (g x − y)² over g for each output, (K,)."""
    xp = api.array_namespace(moments.sum_xx)
    best = moments.sum_yx[:, 0] / nonzero(moments.sum_xx[0, 0])
    if moments.samples is None:
        explained = best * moments.sum_yx[:, 0]
        left = xp.stack([moments.sum_yy[k, k] for k in range(moments.dimensions[1])]) - explained
        return xp.clip(left, 0, None) / 2
    x, y = moments.samples
    residual = best * x - y
    return xp.sum(residual * residual, axis=0) / 2
