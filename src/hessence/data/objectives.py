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
from hessence.data.moments import Moments


@dataclass(frozen=True)
class Quadratic:
    r"""Mean-squared error of f = g x: :math:`\ell(g) = \tfrac12(\sigma^2 g^2 - 2 c g + E[y^2])`.

    Attributes
    ----------
    variance : array
        σ² = E[x²].
    covariance : array
        c = E[y x].
    floor : callable
        Returns the least loss over g, which keeps ``value`` free of cancellation near the solution;
        it costs a pass over the data, and the Hessian does not need it.
    """

    variance: Array
    covariance: Array
    floor: Callable[[], Array]

    def value(self, coefficients: Array) -> Array:
        """Return floor + ℓ′(g)²/(2σ²)."""
        gradient = self.gradient(coefficients)
        return self.floor() + gradient * (gradient / nonzero(2 * self.variance))

    def gradient(self, coefficients: Array) -> Array:
        """Return δ = σ² g − c, also near the solution, where the rounding of σ² g would show."""
        fitted, lost = exact_product(self.variance + 0 * coefficients, coefficients)
        return (fitted - self.covariance) + lost

    def far_gradient(self, coefficients: Array) -> Array:
        """Return δ + 2σ² g = 3σ² g − c, also near a third of the solution, where it vanishes."""
        fitted, lost = exact_product(self.variance + 0 * coefficients, coefficients)
        gap, lost_too = exact_sum(fitted, -(self.covariance + 0 * fitted))
        return (2 * fitted + gap) + (lost_too + 3 * lost)

    def hessian(self, coefficients: Array) -> Array:
        """Return σ²."""
        return self.variance + 0 * coefficients


@dataclass(frozen=True)
class Pointwise:
    """Any pointwise loss of f = g x, summed over samples and divided by n.

    `x` has shape (samples,) and `y` (..., samples); n counts all samples, also those that another
    cell holds.
    """

    x: Array
    y: Array
    n: int
    loss: PointwiseLoss

    def value(self, coefficients: Array) -> Array:
        """Return the mean loss."""
        xp = api.array_namespace(self.x)
        return xp.sum(self.loss.value(coefficients[..., None] * self.x, self.y), axis=-1) / self.n

    def gradient(self, coefficients: Array) -> Array:
        """Return E[φ′ x]."""
        xp = api.array_namespace(self.x)
        first = self.loss.first(coefficients[..., None] * self.x, self.y)
        return xp.sum(first * self.x, axis=-1) / self.n

    def hessian(self, coefficients: Array) -> Array:
        """Return E[φ″ x²]."""
        xp = api.array_namespace(self.x)
        second = self.loss.second(coefficients[..., None] * self.x, self.y)
        return xp.sum(second * (self.x * self.x), axis=-1) / self.n


@dataclass(frozen=True)
class VectorQuadratic:
    """Mean-squared error of f = ⟨β, x⟩: gradient Σβ − c, Hessian Σ, with c = E[y x].

    `square` returns E[y²], which the Hessian does not need.
    """

    variance: Array
    covariance: Array
    square: Callable[[], Array]

    def value(self, coefficients: Array) -> Array:
        """Return ½ (βᵀΣβ − 2βᵀc + E[y²])."""
        xp = api.array_namespace(self.variance)
        return (
            xp.vecdot(self.gradient(coefficients) - self.covariance, coefficients) + self.square()
        ) / 2

    def gradient(self, coefficients: Array) -> Array:
        """Return Σβ − c."""
        xp = api.array_namespace(self.variance)
        return xp.matmul(coefficients[..., None, :], self.variance)[..., 0, :] - self.covariance

    def hessian(self, coefficients: Array) -> Array:
        """Return Σ."""
        return self.variance + 0 * coefficients[..., None]


@dataclass(frozen=True)
class VectorPointwise:
    """Any pointwise loss of f = ⟨β, x⟩ with samples x (n, D), y (n,)."""

    x: Array
    y: Array
    loss: PointwiseLoss

    def value(self, coefficients: Array) -> Array:
        """Return the mean loss."""
        xp = api.array_namespace(self.x)
        return xp.mean(self.loss.value(self._predict(coefficients), self.y), axis=-1)

    def gradient(self, coefficients: Array) -> Array:
        """Return E[φ′ x]."""
        xp = api.array_namespace(self.x)
        f = self._predict(coefficients)
        first = self.loss.first(f, self.y) + 0 * f
        return xp.matmul(first[..., None, :], self.x)[..., 0, :] / self.x.shape[0]

    def hessian(self, coefficients: Array) -> Array:
        """Return E[φ″ x xᵀ]."""
        xp = api.array_namespace(self.x)
        f = self._predict(coefficients)
        second = self.loss.second(f, self.y) + 0 * f
        weighted = xp.matrix_transpose(second[..., None] * self.x)
        return xp.matmul(weighted, self.x) / self.x.shape[0]

    def _predict(self, coefficients: Array) -> Array:
        xp = api.array_namespace(self.x)
        return xp.matmul(coefficients[..., None, :], xp.matrix_transpose(self.x))[..., 0, :]


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
        variance = moments.sum_xx[0, 0] / n
        covariance = moments.sum_yx[:, 0] / n
        single = moments.dimensions[1] == 1
        if single:
            covariance = covariance[0]

        @cache
        def floor() -> Array:
            least = _least_loss(moments) / n
            return least[0] if single else least

        return Quadratic(variance, covariance, floor)
    x, y = samples_of(moments)
    xp = api.array_namespace(y)
    targets = y[:, 0] if y.shape[1] == 1 else xp.matrix_transpose(y)
    return Pointwise(x[:, 0], targets, n, pointwise)


def vector_objective(
    moments: Moments, loss: str | PointwiseLoss
) -> VectorQuadratic | VectorPointwise:
    """Return the loss as a function of β, for one output."""
    pointwise = as_loss(loss)
    if type(pointwise) is Squared:
        return VectorQuadratic(moments.xx, moments.yx[0, :], lambda: moments.yy[0, 0])
    x, y = samples_of(moments)
    return VectorPointwise(x, y[:, 0], pointwise)


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


def samples_of(moments: Moments) -> tuple[Array, Array]:
    """Return the samples behind moments; every loss but the squared one needs them."""
    if moments.samples is None:
        raise ValueError("loss must be 'mse' when x is a Moments; other losses need the samples.")
    return moments.samples
