"""Dense Hessians straight from the definition of a loss, and the draws they are taken at.

Nothing here knows a closed form, and nothing is differentiated by a machine. The mean-squared error
of a linear network is of degree two in every single parameter, so that central differences of *any*
step give its Hessian without error; rounding apart, they are the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Loss = Callable[[NDArray[Any]], NDArray[Any]]

_STENCIL = ((1, 4 / 5), (2, -1 / 5), (3, 4 / 105), (4, -1 / 280))


def dense_hessian(loss: Loss, point: Array, step: float = 1.0) -> Array:
    """Return the Hessian of a loss of degree at most two in every single parameter.

    Parameters
    ----------
    loss : callable
        Takes parameters in the rows of a matrix, returns a loss for each.
    point : array
        Where.
    step : float
        The length of a step; any is exact as long as the loss is the same polynomial all along.

    Examples
    --------
    >>> dense_hessian(lambda t: (t[:, 0] * t[:, 1] - 1) ** 2 / 2, np.array([3.0, 1.0]))
    array([[1., 5.],
           [5., 9.]])
    """
    rows, columns = np.triu_indices(len(point))
    number = np.arange(len(rows))
    total = np.zeros(len(rows))
    for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        moved = np.tile(point, (len(rows), 1))
        moved[number, rows] += a * step
        moved[number, columns] += b * step
        total += a * b * loss(moved)
    hessian = np.zeros((len(point), len(point)))
    hessian[rows, columns] = hessian[columns, rows] = total / (4 * step**2)
    return hessian


def gradient(loss: Loss, point: Array) -> Array:
    """Return the gradient of an analytic loss by steps into the complex plane."""
    tiny = 1e-30
    moved = point + 1j * tiny * np.eye(len(point))
    return np.asarray(loss(moved).imag / tiny, dtype=np.float64)


def smooth_hessian(loss: Loss, point: Array, step: float = 0.008) -> Array:
    """Return the Hessian of an analytic loss, by differences of order eight of its gradient."""
    columns = []
    for direction in step * np.eye(len(point)):
        pairs = [
            weight * (gradient(loss, point + k * direction) - gradient(loss, point - k * direction))
            for k, weight in _STENCIL
        ]
        columns.append(np.sum(pairs, axis=0) / step)
    found = np.array(columns)
    return np.asarray((found + found.T) / 2, dtype=np.float64)


def characteristic(hessian: Array) -> list[Fraction]:
    """Return det(λ − H) in exact arithmetic, highest power first (Faddeev and LeVerrier).

    Examples
    --------
    >>> [int(c) for c in characteristic(np.array([[2.0, 1.0], [1.0, 2.0]]))]
    [1, -4, 3]
    """
    size = range(len(hessian))
    exact = [[Fraction(float(entry)) for entry in row] for row in hessian]
    power = [[Fraction(0)] * len(hessian) for _ in size]
    found = [Fraction(1)]
    for k in size:
        for i in size:
            power[i][i] += found[-1]
        power = [
            [sum((exact[i][t] * power[t][j] for t in size), Fraction(0)) for j in size]
            for i in size
        ]
        found.append(-sum((power[i][i] for i in size), Fraction(0)) / (k + 1))
    return found


def multiplied(*factors: Sequence[Fraction]) -> list[Fraction]:
    """Return the product of polynomials in exact arithmetic, highest powers first.

    Examples
    --------
    >>> [int(c) for c in multiplied([Fraction(1), Fraction(-1)], [Fraction(1), Fraction(1)])]
    [1, 0, -1]
    """
    result = [Fraction(1)]
    for factor in factors:
        longer = [Fraction(0)] * (len(result) + len(factor) - 1)
        for i, a in enumerate(result):
            for j, b in enumerate(factor):
                longer[i + j] += a * b
        result = longer
    return result


def eigenvalue_gap(values: Sequence[float] | Array, hessian: Array) -> float:
    """Return how far values are from the eigenvalues, relative to the largest; inf for a count."""
    truth = np.linalg.eigvalsh(hessian)
    if len(values) != len(truth):
        return float("inf")
    return float(np.max(np.abs(np.sort(np.asarray(values)) - truth)) / np.max(np.abs(truth)))


def vector_gap(value: float, vector: Array, hessian: Array) -> float:
    """Return how far a vector is from an eigenvector; inf for the zero vector."""
    length = float(np.linalg.norm(vector))
    scale = float(np.linalg.norm(hessian, 2))
    if length < 1e-12 * scale:
        return float("inf")
    return float(np.linalg.norm(hessian @ vector - value * vector) / (length * scale))


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
class Attention:
    """A layer of self-attention for tokens that are numbers, in the order (w_V, w_Q, w_K)."""

    w_v: float
    w_q: Array
    w_k: Array
    x: Array
    y: Array

    @property
    def point(self) -> Array:
        """Return all parameters."""
        return np.concatenate([[self.w_v], self.w_q, self.w_k])

    def loss(self, points: NDArray[Any]) -> NDArray[Any]:
        """Return half the mean squared error at each row of parameters."""
        keys = len(self.w_q)
        score = np.sum(points[:, 1 : keys + 1] * points[:, keys + 1 :], axis=1) / np.sqrt(keys)
        weights = np.exp(score[:, None, None] * np.outer(self.x, self.x))
        weights = weights / weights.sum(axis=2, keepdims=True)
        residuals = points[:, :1] * (weights @ self.x) - self.y
        return np.asarray(np.mean(residuals**2, axis=1) / 2)

    def hessian(self) -> Array:
        """Return the Hessian by its definition."""
        return smooth_hessian(self.loss, self.point)

    def scalars(self) -> tuple[float, float, float, float]:
        """Return α, β, γ and ζ of 000 section 3.3."""
        n, keys = len(self.x), len(self.w_q)
        weights = np.exp(np.outer(self.x, self.x) * float(self.w_q @ self.w_k) / np.sqrt(keys))
        weights /= weights.sum(axis=1, keepdims=True)
        m1 = weights @ self.x
        away = self.x[None, :] - m1[:, None]
        m2, m3 = np.sum(weights * away**2, axis=1), np.sum(weights * away**3, axis=1)
        delta, slope = self.w_v * m1 - self.y, self.x * m2
        alpha = float(m1 @ m1) / n
        beta = float((self.w_v * m1 + delta) @ slope) / (n * np.sqrt(keys))
        gamma = self.w_v * float(delta @ slope) / (n * np.sqrt(keys))
        bend = self.w_v * float(delta @ (self.x**2 * m3))
        zeta = (self.w_v**2 * float(slope @ slope) + bend) / (n * keys)
        return alpha, beta, gamma, zeta

    @property
    def norms(self) -> float:
        """Return ‖w_Q‖² + ‖w_K‖²."""
        return float(self.w_q @ self.w_q + self.w_k @ self.w_k)

    def trace(self) -> float:
        """Return α + ζ (‖w_Q‖² + ‖w_K‖²)."""
        alpha, _, _, zeta = self.scalars()
        return alpha + zeta * self.norms

    def radius(self, *, squared: bool) -> float:
        """Return ξ, with the norms in its last term squared or, as printed, not.

        Where the printed one is the root of a negative number, it is taken as 0.
        """
        alpha, beta, gamma, zeta = self.scalars()
        inner = gamma**2 + 2 * zeta * gamma * float(self.w_k @ self.w_q)
        inner += (beta**2 - alpha * zeta) * self.norms
        plain = float(np.linalg.norm(self.w_k) + np.linalg.norm(self.w_q))
        last = (zeta * (self.norms if squared else plain) + alpha) ** 2
        return 2 / 3 * float(np.sqrt(max(3 * inner + last, 0.0)))

    def cubic(self) -> Array:
        """Return the coefficients of the outliers' polynomial, highest first."""
        alpha, beta, gamma, zeta = self.scalars()
        mixed, kappa = beta**2 - alpha * zeta, float(self.w_q @ self.w_k)
        linear = mixed * self.norms + 2 * gamma * zeta * kappa + gamma**2
        return np.array([-1, self.trace(), linear, 2 * gamma * mixed * kappa - alpha * gamma**2])

    def outliers(self) -> Array:
        """Return the eigenvalues but for the bulk: those of the Hessian, ±γ taken out."""
        values = list(np.linalg.eigvalsh(self.hessian()))
        gamma = self.scalars()[2]
        for bulk in (gamma, -gamma) * (len(self.w_q) - 1):
            values.remove(min(values, key=lambda value: abs(value - bulk)))
        return np.array(values)


def attention_draws(seed: int, count: int = 10) -> Iterator[Attention]:
    """Draw layers with 2 to 4 keys, with weights of lengths below and above one."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        keys = 2 + i % 3
        w_q, w_k = (0.3, 1.0, 1.5)[i // 2 % 3] * rng.normal(size=(2, keys))
        x, y = rng.normal(size=(2, 5))
        yield Attention(float(rng.normal()), w_q, w_k, x, y)


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
