r"""The loss of a linear predictor as a function of its matrix M, with f(x) = M x.

All that a Hessian needs is the gradient :math:`G = \partial\ell/\partial M` and the second
derivative as a symmetric map of K × D matrices. For the mean-squared error these are
:math:`M\Sigma - C` and :math:`dM \mapsto dM\,\Sigma`; any other loss gives a tensor with (K D)²
entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import array_api_compat as api

from hessence._common.arrays import Array, identity
from hessence.data.losses import PointwiseLoss, Squared, as_loss
from hessence.data.moments import Moments, samples_of


@dataclass(frozen=True)
class Separable:
    """The map dM ↦ dM Σ of the mean-squared error."""

    variance: Array

    def __call__(self, dM: Array) -> Array:
        """Return dM Σ."""
        return api.array_namespace(dM).matmul(dM, self.variance)

    def __rmul__(self, factor: float) -> Separable:
        return Separable(factor * self.variance)


@dataclass(frozen=True)
class Dense:
    """Any symmetric map of K × D matrices, as an array (..., K, D, K, D)."""

    entries: Array

    def __call__(self, dM: Array) -> Array:
        """Apply the map, summing over the last two axes of the tensor."""
        xp = api.array_namespace(dM)
        *batch, outputs, inputs, _, _ = self.entries.shape
        size = outputs * inputs
        matrix = xp.reshape(self.entries, (*batch, size, size))
        # dM may have columns between the batch dimensions and the matrices.
        flat = xp.reshape(dM, (*dM.shape[: len(batch)], -1, size))
        return xp.reshape(xp.matmul(flat, matrix), tuple(dM.shape))

    def __rmul__(self, factor: float) -> Dense:
        return Dense(factor * self.entries)


LossHessian = Separable | Dense
"""The second derivative of a loss in M, as a symmetric map of K × D matrices."""


@dataclass(frozen=True)
class MatrixQuadratic:
    """Mean-squared error ½ E‖M x − y‖² through the moments Σ, C and E‖y‖²."""

    moments: Moments

    def value(self, M: Array) -> Array:
        """Return the loss, as the least loss over M plus the distance from its solution."""
        xp = api.array_namespace(M)
        best, least = self.solution
        gap = M - best
        return least + xp.sum(gap * xp.matmul(gap, self.moments.xx), axis=(-2, -1)) / 2

    def gradient(self, M: Array) -> Array:
        """Return Ω = M Σ − C."""
        return api.array_namespace(M).matmul(M, self.moments.xx) - self.moments.yx

    def hessian(self, M: Array) -> Separable:
        """Return dM ↦ dM Σ."""
        return Separable(self.moments.xx)

    @cached_property
    def solution(self) -> tuple[Array, Array]:
        """Return a least-squares solution and its loss."""
        xp = api.array_namespace(self.moments.xx)
        best = xp.matmul(self.moments.yx, xp.linalg.pinv(self.moments.xx))
        if self.moments.samples is not None:
            x, y = self.moments.samples
            residual = xp.matmul(x, xp.matrix_transpose(best)) - y
            return best, xp.sum(residual * residual) / (2 * self.moments.n)
        explained = xp.sum(best * self.moments.yx)
        left = xp.sum(xp.linalg.diagonal(self.moments.yy)) - explained
        return best, xp.clip(left, 0, None) / 2


@dataclass(frozen=True)
class MatrixLoss:
    """Any loss of the predictions with known derivatives, over samples x (n, D), y (n, K).

    The predictions are M x, plus an offset (n, K) if there is one.
    """

    x: Array
    y: Array
    loss: PointwiseLoss
    offset: Array | None = None

    def value(self, M: Array) -> Array:
        """Return the mean loss."""
        xp = api.array_namespace(self.x)
        return xp.sum(self.loss.value(self.predict(M), self.y), axis=(-2, -1)) / self.x.shape[0]

    def gradient(self, M: Array) -> Array:
        """Return E[∇φ xᵀ]."""
        xp = api.array_namespace(self.x)
        first = self.loss.first(self.predict(M), self.y)
        return xp.matmul(xp.matrix_transpose(first), self.x) / self.x.shape[0]

    def hessian(self, M: Array) -> Dense:
        """Return E[∇²φ ⊗ x xᵀ]."""
        x, second = self.x, self.loss.second(self.predict(M), self.y)
        xp, n, inputs = api.array_namespace(x), int(x.shape[0]), int(x.shape[1])
        if getattr(self.loss, "coupled", False):
            outputs = int(second.shape[-1])
            pairs = xp.reshape(x[:, :, None] * x[:, None, :], (n, inputs * inputs))
            flat = xp.reshape(second, (*second.shape[:-2], outputs * outputs))
            sums = xp.matmul(xp.matrix_transpose(flat), pairs) / n
            shape = (*sums.shape[:-2], outputs, outputs, inputs, inputs)
            return Dense(xp.moveaxis(xp.reshape(sums, shape), -2, -3))
        weighted = xp.matrix_transpose(second)[..., None] * x
        each = xp.matmul(xp.matrix_transpose(weighted), x) / n
        eye = identity(int(second.shape[-1]), each)
        return Dense(each[..., :, :, None, :] * eye[:, None, :, None])

    def predict(self, M: Array) -> Array:
        """Return the predictions (..., n, K)."""
        xp = api.array_namespace(self.x)
        predictions = xp.matmul(self.x, xp.matrix_transpose(M))
        return predictions if self.offset is None else predictions + self.offset


def matrix_objective(
    moments: Moments, loss: str | PointwiseLoss, offset: Array | None = None
) -> MatrixQuadratic | MatrixLoss:
    """Return the loss as a function of M; other losses than the squared one may have an offset."""
    known = as_loss(loss, coupled=True)
    if type(known) is Squared:
        return MatrixQuadratic(moments)
    return MatrixLoss(*samples_of(moments), known, offset)
