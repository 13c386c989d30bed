"""Two-layer networks of one input and one output for the checks, and draws of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hessence.papers.claims.dense_hessians import Array, dense_hessian


@dataclass(frozen=True)
class Scalar:
    """The network ⟨w, v⟩ x on data (x, y), in the order (v, w)."""

    w: Array
    v: Array
    x: Array
    y: Array

    @property
    def variance(self) -> float:
        """Return the mean of x²."""
        return float(np.mean(self.x**2))

    @property
    def target(self) -> float:
        """Return the mean of xy."""
        return float(np.mean(self.x * self.y))

    @property
    def product(self) -> float:
        """Return ⟨w, v⟩."""
        return float(self.w @ self.v)

    @property
    def residual(self) -> float:
        """Return the mean of x times the residual."""
        return float(np.mean(self.x * (self.product * self.x - self.y)))

    @property
    def point(self) -> Array:
        """Return all parameters."""
        return np.concatenate([self.v, self.w])

    def loss(self, points: NDArray[Any]) -> NDArray[Any]:
        """Return half the mean squared error at each row of parameters."""
        v, w = np.split(points, 2, axis=1)
        residuals = np.sum(v * w, axis=1)[:, None] * self.x - self.y
        return np.asarray(np.mean(residuals**2, axis=1) / 2)

    def hessian(self) -> Array:
        """Return the Hessian by its definition."""
        return dense_hessian(self.loss, self.point)

    def outliers(self) -> tuple[float, float]:
        """Return the pair of 000 equation 1."""
        total = self.variance * float(self.w @ self.w + self.v @ self.v)
        inside = total**2 + 4 * (
            self.residual**2 + 2 * self.variance * self.residual * self.product
        )
        root = float(np.sqrt(max(inside, 0.0)))
        return (total + root) / 2, (total - root) / 2

    def outlier_vector(self, value: float) -> Array:
        """Return λ(w, v) + δx(v, w), of 000 Theorem 3.2."""
        swapped = np.concatenate([self.w, self.v])
        return value * swapped + self.residual * self.point


def scalar_draws(seed: int, count: int = 12) -> Iterator[Scalar]:
    """Draw networks of widths 2 to 5 with residuals of both signs."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        w, v = rng.normal(size=(2, 2 + i % 4))
        x = rng.normal(size=7) + rng.normal()
        yield Scalar(w, v, x, 2 * rng.normal() * x + rng.normal(size=7))


@dataclass(frozen=True)
class ReLU:
    """The network ⟨w, max(v x, 0)⟩ on data (x, y), in the order (v, w)."""

    w: Array
    v: Array
    x: Array
    y: Array

    def loss(self, points: NDArray[Any]) -> NDArray[Any]:
        """Return half the mean squared error at each row of parameters."""
        v, w = np.split(points, 2, axis=1)
        hidden = np.maximum(v[:, :, None] * self.x, 0)
        residuals = np.sum(w[:, :, None] * hidden, axis=1) - self.y
        return np.asarray(np.mean(residuals**2, axis=1) / 2)

    def hessian(self) -> Array:
        """Return the Hessian by its definition."""
        # A step is taken twice at most, and no neuron of the draws is within 0.5 of its kink.
        return dense_hessian(self.loss, np.concatenate([self.v, self.w]), step=0.2)

    def cells(self) -> Iterator[tuple[float, Scalar]]:
        """Give every cell's share of the samples, and its linear network."""
        for samples, neurons in ((self.x > 0, self.v > 0), (self.x <= 0, self.v <= 0)):
            cell = Scalar(self.w[neurons], self.v[neurons], self.x[samples], self.y[samples])
            yield float(np.mean(samples)), cell

    def outlier_vector(self, cell: Scalar, value: float) -> Array:
        """Return λ(w, v) + δx(v, w) of a cell with neurons, zero for the neurons of the other."""
        neurons = np.isin(self.v, cell.v)
        vector = np.zeros((2, len(self.v)))
        vector[:, neurons] = np.reshape(cell.outlier_vector(value), (2, -1))
        return vector.ravel()


def relu_draws(seed: int) -> Iterator[ReLU]:
    """Draw networks of width 5, away from their kinks; in the last two a cell has no neurons."""
    rng = np.random.default_rng(seed)
    for positive in (1, 2, 3, 4, 1, 2, 5, 0):
        v = 0.5 + rng.random(5)
        v[positive:] *= -1
        x, y = rng.normal(size=(2, 9))
        x[:2] = 1, -1
        yield ReLU(rng.normal(size=5), v, x, y)


@dataclass(frozen=True)
class Biased:
    """The network ⟨w, V x⟩ for inputs in the columns of x, in the order (w, columns of V).

    With a row of ones in x, the last column of V is a bias.
    """

    w: Array
    V: Array
    x: Array
    y: Array

    @property
    def point(self) -> Array:
        """Return all parameters."""
        return np.concatenate([self.w, self.V.T.ravel()])

    def loss(self, points: NDArray[Any]) -> NDArray[Any]:
        """Return half the mean squared error at each row of parameters."""
        m, inputs = self.V.shape
        columns = points[:, m:].reshape(-1, inputs, m)
        residuals = np.einsum("bm,bim->bi", points[:, :m], columns) @ self.x - self.y
        return np.asarray(np.mean(residuals**2, axis=1) / 2)

    def hessian(self) -> Array:
        """Return the Hessian by its definition."""
        return dense_hessian(self.loss, self.point)


def orthogonal_draw(
    rng: np.random.Generator, width: int, inputs: int, *, bias: bool = False
) -> Biased:
    """Draw a network with columns of V orthogonal and equally long, on white data, E[yx] = 0.

    With a bias the last input is 1, so that the other inputs and the targets have mean 0 too.
    """
    samples = inputs + 4
    start = rng.normal(size=(samples, inputs + 1))
    if bias:
        start[:, 0] = 1
    basis = np.linalg.qr(start)[0].T * np.sqrt(samples)
    if bias:
        basis = np.concatenate([basis[1:inputs], basis[:1] * np.sign(basis[0, 0]), basis[inputs:]])
    columns = np.linalg.qr(rng.normal(size=(width, width)))[0][:, :inputs]
    V = (0.5 + rng.random()) * columns
    return Biased(rng.normal(size=width), V, basis[:inputs], 2 * basis[inputs])


def centred_draw(rng: np.random.Generator, width: int, *, mean: float = 0.0) -> Biased:
    """Draw a network with a bias on data with any targets, and inputs of a mean."""
    x, y = rng.normal(size=(2, 6))
    x += mean - x.mean()
    w, V = rng.normal(size=width), rng.normal(size=(width, 2))
    return Biased(w, V, np.stack([x, np.ones(6)]), y)
