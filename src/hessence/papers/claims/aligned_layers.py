"""Aligned linear layers and their descent, for the checks of paper 004."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hessence.papers.claims.dense_hessians import Array, gradient
from hessence.papers.claims.linear_networks import Linear, balanced_weights, white

RANK = 2
BULK = RANK * (4 + 3 - 2 * RANK)
"""How many eigenvalues the bulk has; the dominant cluster has RANK²."""


def aligned_start(
    seed: int, depth: int, values: Sequence[float], target: float = 1.0, *, low_rank: bool = False
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
    mapping = target * (u[:, :RANK] * signs) @ v[:, :RANK].T
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
