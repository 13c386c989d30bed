"""Linear networks of vectors for the checks: W_L ⋯ W_1 x on data (X, Y), samples in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hessence.papers.claims.dense_hessians import Array, dense_hessian, gradient

SHAPES = ((4, 2, 3), (3, 4, 4, 2), (2, 3, 2, 3, 2), (3, 2, 4), (3, 3, 3))


@dataclass(frozen=True)
class Linear:
    """A network with its data; parameters go first layer first, each matrix by rows."""

    weights: tuple[Array, ...]
    X: Array
    Y: Array

    @property
    def product(self) -> Array:
        """Return W_L ⋯ W_1."""
        return np.asarray(reduce(lambda below, above: above @ below, self.weights))

    @property
    def point(self) -> Array:
        """Return all parameters."""
        return np.concatenate([weight.ravel() for weight in self.weights])

    def solved(self) -> Linear:
        """Return the same network with its own predictions for targets: H is then Gauss–Newton."""
        return replace(self, Y=self.product @ self.X)

    def outputs(self, points: NDArray[Any]) -> NDArray[Any]:
        """Return the outputs at each row of parameters, samples in columns."""
        found, start = self.X[None], 0
        for weight in self.weights:
            layer = points[:, start : start + weight.size].reshape(-1, *weight.shape)
            found, start = layer @ found, start + weight.size
        return found

    def loss(self, points: NDArray[Any]) -> NDArray[Any]:
        """Return half the mean squared error at each row of parameters."""
        squares = (self.outputs(points) - self.Y) ** 2
        return np.asarray(squares.sum(axis=(1, 2)) / (2 * self.X.shape[1]))

    def hessian(self) -> Array:
        """Return the Hessian by its definition."""
        return dense_hessian(self.loss, self.point)

    def below(self, layer: int) -> Array:
        """Return the product of the layers before one, counted from 0."""
        return np.asarray(
            reduce(lambda low, high: high @ low, self.weights[:layer], np.eye(self.X.shape[0]))
        )

    def above(self, layer: int) -> Array:
        """Return the product of the layers after one, counted from 0."""
        start = np.eye(self.weights[layer].shape[0])
        return np.asarray(reduce(lambda low, high: high @ low, self.weights[layer + 1 :], start))


def white(rng: np.random.Generator, size: int, samples: int, scale: float = 1.0) -> Array:
    """Draw data with X Xᵀ / n = scale² I."""
    basis, _ = np.linalg.qr(rng.normal(size=(samples, size)))
    return np.asarray(scale * np.sqrt(samples) * basis.T)


def random_weights(rng: np.random.Generator, sizes: Sequence[int]) -> tuple[Array, ...]:
    """Draw a matrix for every layer."""
    pairs = zip(sizes[1:], sizes[:-1], strict=True)
    return tuple(rng.normal(size=pair) / np.sqrt(pair[1]) for pair in pairs)


def balanced_weights(
    rng: np.random.Generator, sizes: Sequence[int], values: Sequence[float]
) -> tuple[Array, ...]:
    """Draw layers that share singular values and vectors, W_ℓ W_ℓᵀ = W_{ℓ+1}ᵀ W_{ℓ+1}."""
    bases = [np.linalg.qr(rng.normal(size=(size, size)))[0][:, : len(values)] for size in sizes]
    pairs = zip(bases[1:], bases[:-1], strict=True)
    return tuple(np.asarray(left * np.asarray(values) @ right.T) for left, right in pairs)


def nonzero(hessian: Array) -> Array:
    """Return the eigenvalues that are not zero up to rounding, in ascending order."""
    values = np.linalg.eigvalsh(hessian)
    return np.asarray(values[np.abs(values) > 1e-9 * np.abs(values).max()])


def padded_gap(values: Sequence[float] | Array, hessian: Array) -> float:
    """Return how far values, filled up with zeros, are from all eigenvalues; inf for too many."""
    truth = np.linalg.eigvalsh(hessian)
    given = np.asarray(values, dtype=np.float64)
    given = given[np.argsort(np.abs(given))]
    beyond = max(0, len(given) - len(truth))
    if np.any(given[:beyond] != 0):
        return float("inf")
    kept = given[beyond:]
    filled = np.sort(np.concatenate([np.zeros(len(truth) - len(kept)), kept]))
    return float(np.max(np.abs(filled - truth)) / np.max(np.abs(truth)))


def solved_draws(seed: int) -> Iterator[tuple[Linear, float]]:
    """Draw networks of depth 2 to 4 at zero loss, on white data, with σ_x²."""
    rng = np.random.default_rng(seed)
    for i, sizes in enumerate(SHAPES):
        X = white(rng, sizes[0], 9, 0.5 + i / 2)
        yield Linear(random_weights(rng, sizes), X, X).solved(), (0.5 + i / 2) ** 2


def balanced_draws(seed: int) -> Iterator[tuple[Linear, float, Array]]:
    """Draw balanced ones, with σ_x² and the singular values that their layers share."""
    rng = np.random.default_rng(seed)
    for i, sizes in enumerate(SHAPES):
        values = 0.5 + rng.random(min(sizes))
        X = white(rng, sizes[0], 9, 0.5 + i / 2)
        net = Linear(balanced_weights(rng, sizes, values.tolist()), X, X).solved()
        yield net, (0.5 + i / 2) ** 2, values


def jacobian_of(net: Linear) -> Array:
    """Return the outputs' derivatives, samples first, by differences: exact for linear ones."""
    steps = np.eye(len(net.point))
    columns = (net.outputs(net.point + steps) - net.outputs(net.point - steps)) / 2
    return np.asarray(np.swapaxes(columns, 1, 2).reshape(len(steps), -1).T)


def tangent_kernel(net: Linear) -> Array:
    """Return J Jᵀ / n, samples first."""
    jacobian = jacobian_of(net)
    return np.asarray(jacobian @ jacobian.T / net.X.shape[1])


# Aligned layers and their descent (paper 004).

RANK = 2
BULK = RANK * (4 + 3 - 2 * RANK)
"""How many eigenvalues the bulk has; the dominant cluster has RANK²."""


def aligned_start(
    seed: int, depth: int, values: Sequence[float], *, low_rank: bool = False
) -> Linear:
    """Draw aligned layers 4-4-…-3 and a target of rank two in their directions.

    The inputs are white or, if asked, white in the two directions of the target and zero elsewhere.
    """
    rng = np.random.default_rng(seed)
    weights = balanced_weights(rng, (*[4] * depth, 3), values)
    left, right = weights[-1] @ weights[-1].T, weights[0].T @ weights[0]
    u, v = np.linalg.eigh(left)[1][:, ::-1], np.linalg.eigh(right)[1][:, ::-1]
    product = weights[0]
    for weight in weights[1:]:
        product = weight @ product
    signs = np.sign(np.sum(u[:, :RANK] * (product @ v[:, :RANK]), axis=0))
    mapping = (u[:, :RANK] * signs) @ v[:, :RANK].T
    X = white(rng, 4, 6)
    if low_rank:
        X = v[:, :RANK] @ v[:, :RANK].T @ X
    return Linear(weights, X, mapping @ X)


def descend(net: Linear, rate: float, steps: int) -> Linear:
    """Return a network after descent on all of its weights."""
    point = net.point
    for _ in range(steps):
        point = point - rate * gradient(net.loss, point)
    weights, start = [], 0
    for weight in net.weights:
        weights.append(point[start : start + weight.size].reshape(weight.shape))
        start += weight.size
    return replace(net, weights=tuple(weights))


def largest_values(net: Linear, count: int) -> Array:
    """Return the largest singular values of every layer."""
    return np.array([np.linalg.svd(weight, compute_uv=False)[:count] for weight in net.weights])
