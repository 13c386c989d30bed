"""Self-attention on sequences of numbers for the checks, and draws of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hessence.papers.claims.dense_hessians import Array, smooth_hessian, without


@dataclass(frozen=True)
class Attention:
    """A layer of self-attention for tokens that are numbers, in the order (w_V, w_Q, w_K).

    An attention sink is a bias that is added to all scores of the first token.
    """

    w_v: float
    w_q: Array
    w_k: Array
    x: Array
    y: Array
    sink: float = 0.0

    @property
    def point(self) -> Array:
        """Return all parameters."""
        return np.concatenate([[self.w_v], self.w_q, self.w_k])

    def attention(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Return the matrix of weights for every ⟨w_Q, w_K⟩/√d_K."""
        first = np.zeros(len(self.x))
        first[0] = self.sink
        exponents = scores[:, None, None] * np.outer(self.x, self.x) + first
        weights = np.exp(exponents - exponents.real.max(axis=2, keepdims=True))
        return np.asarray(weights / weights.sum(axis=2, keepdims=True))

    def outputs(self, points: NDArray[Any]) -> NDArray[Any]:
        """Return the outputs at each row of parameters."""
        keys = len(self.w_q)
        scores = np.sum(points[:, 1 : keys + 1] * points[:, keys + 1 :], axis=1) / np.sqrt(keys)
        return np.asarray(points[:, :1] * (self.attention(scores) @ self.x))

    def loss(self, points: NDArray[Any]) -> NDArray[Any]:
        """Return half the mean squared error at each row of parameters."""
        return np.asarray(np.mean((self.outputs(points) - self.y) ** 2, axis=1) / 2)

    def hessian(self) -> Array:
        """Return the Hessian by its definition."""
        return smooth_hessian(self.loss, self.point)

    def weights(self) -> Array:
        """Return the matrix of attention weights."""
        score = float(self.w_q @ self.w_k) / np.sqrt(len(self.w_q))
        return np.asarray(self.attention(np.array([score]))[0])

    def moments(self) -> tuple[Array, Array, Array]:
        """Return the attention's mean and its second and third central moments, for each row."""
        weights = self.weights()
        mean = weights @ self.x
        away = self.x[None, :] - mean[:, None]
        return mean, np.sum(weights * away**2, axis=1), np.sum(weights * away**3, axis=1)

    def scalars(self) -> tuple[float, float, float, float]:
        """Return α, β, γ and ζ of 000 section 3.3."""
        n, keys = len(self.x), len(self.w_q)
        m1, m2, m3 = self.moments()
        delta, first = self.w_v * m1 - self.y, self.x * m2
        alpha = float(m1 @ m1) / n
        beta = float((self.w_v * m1 + delta) @ first) / (n * np.sqrt(keys))
        gamma = self.w_v * float(delta @ first) / (n * np.sqrt(keys))
        second = self.w_v * float(delta @ (self.x**2 * m3))
        zeta = (self.w_v**2 * float(first @ first) + second) / (n * keys)
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
        return self.cubic_of(*self.scalars())

    def cubic_of(self, alpha: float, beta: float, gamma: float, zeta: float) -> Array:
        """Return the polynomial of these scalars and of the layer's weights."""
        mixed, kappa = beta**2 - alpha * zeta, float(self.w_q @ self.w_k)
        linear = mixed * self.norms + 2 * gamma * zeta * kappa + gamma**2
        trace = alpha + zeta * self.norms
        return np.array([-1, trace, linear, 2 * gamma * mixed * kappa - alpha * gamma**2])

    def outliers(self) -> Array:
        """Return the eigenvalues but for the bulk: those of the Hessian, ±γ taken out."""
        gamma = self.scalars()[2]
        return without(np.linalg.eigvalsh(self.hessian()), [gamma, -gamma] * (len(self.w_q) - 1))


def attention_draws(seed: int, count: int = 10) -> Iterator[Attention]:
    """Draw layers with 2 to 4 keys, with weights of lengths below and above one."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        keys = 2 + i % 3
        w_q, w_k = (0.3, 1.0, 1.5)[i // 2 % 3] * rng.normal(size=(2, keys))
        x, y = rng.normal(size=(2, 5))
        yield Attention(float(rng.normal()), w_q, w_k, x, y)
