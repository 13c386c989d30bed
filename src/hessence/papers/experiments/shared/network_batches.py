"""Batches of networks of one shape: drawn and measured together, one matmul for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import hessence as hs
from hessence.papers.experiments.shared.relu_hessian import ReLUHessian

Parametrisation = Literal["standard", "ntk", "mup"]
Activation = Literal["linear", "relu"]
Teacher = Literal["normal", "scaled"]
DRAW: dict[str, Callable[..., Any]] = {
    "standard": hs.init.standard,
    "ntk": hs.init.ntk,
    "mup": hs.init.mup,
}
ROOM = 2**25
"""How many numbers the vectors of one search for eigenvalues may have."""


@dataclass(frozen=True)
class Networks:
    """Networks of one shape: weights (N, d_ℓ, d_{ℓ−1}), and a factor and a rate for each layer."""

    weights: tuple[Any, ...]
    multipliers: tuple[float, ...]
    rates: tuple[float, ...]


def draw_networks(
    kind: Parametrisation, dims: Sequence[int], count: int, rng: np.random.Generator
) -> Networks:
    """Draw networks in a parametrisation; learning rates of maximal updates go as 1/fan-in."""
    nets = [DRAW[kind](dims, rng) for _ in range(count)]
    layers = zip(*(net.weights for net in nets), strict=True)
    rates = [1 / d if kind == "mup" else 1.0 for d in dims[:-1]]
    return Networks(tuple(np.stack(layer) for layer in layers), nets[0].multipliers, tuple(rates))


def draw_data(
    activation: Activation,
    size: int,
    samples: int,
    noise: float,
    teacher: Teacher,
    rng: np.random.Generator,
) -> tuple[Any, Any, Any]:
    """Draw standard normal inputs, the outputs of one random layer with noise added, and the noise.

    The entries of the teacher are standard normal, or of variance 1/D, so that targets keep the
    scale of the inputs at every size.
    """
    x = rng.normal(size=(samples, size))
    y = x @ rng.normal(size=(size, size)).T
    if teacher == "scaled":
        y /= size**0.5
    if activation == "relu":
        y = np.maximum(y, 0)
    added = noise**0.5 * rng.normal(size=y.shape)
    return x, y + added, added


def sharpness(nets: Networks, x: Any, y: Any, activation: Activation) -> Any:
    """Return the largest eigenvalue of every network's Hessian (N,); NaN if it has diverged."""
    whole = np.isfinite(nets.weights[-1]).all(axis=(1, 2))
    values = np.full(len(whole), np.nan)
    if not whole.any():
        return values
    index = np.flatnonzero(whole)
    pieces = -(-_cost(nets, len(x), activation) * len(index) // ROOM)
    for some in np.array_split(index, min(pieces, len(index))):
        values[some] = _largest([w[some] for w in nets.weights], nets.multipliers, x, y,
                                activation)  # fmt: skip
    return values


def _cost(nets: Networks, samples: int, activation: Activation) -> int:
    """Return how many numbers a search keeps for each network: some 40 vectors, or its samples."""
    size, outputs = int(nets.weights[0].shape[-1]), int(nets.weights[-1].shape[-2])
    parameters = sum(int(w[0].size) for w in nets.weights)
    if activation == "relu":
        return max(40 * parameters, 4 * samples * sum(int(w.shape[-2]) for w in nets.weights))
    return 40 * (min(parameters, (size + outputs) ** 2) if len(nets.weights) == 2 else parameters)


def _largest(
    weights: list[Any], multipliers: tuple[float, ...], x: Any, y: Any, activation: Activation
) -> Any:
    if activation == "relu":
        H = ReLUHessian([w.astype(np.float32) for w in weights], x, y, multipliers)
        return hs.eigenpairs(H, k=1, tol=1e-4).eigenvalues[:, 0]
    return hs.DeepLinear(weights, multipliers).hessian(x, y).top(1, tol=1e-4).eigenvalues[:, 0]


def trace(nets: Networks, x: Any, y: Any) -> Any:
    """Return the traces of linear networks' Hessians (N,); NaN for those that have diverged."""
    whole = np.isfinite(nets.weights[-1]).all(axis=(1, 2))
    values = np.full(len(whole), np.nan)
    if whole.any():
        weights = [w[whole] for w in nets.weights]
        values[whole] = hs.DeepLinear(weights, nets.multipliers).hessian(x, y).trace()
    return values


def squared_norms(matrices: Any) -> dict[str, Any]:
    """Return squared spectral, Frobenius and nuclear norms of matrices (N, a, b); NaN stays."""
    singular = _singular_values(matrices)
    return {
        "spectral": singular[:, 0] ** 2,
        "frobenius": np.sum(singular**2, axis=-1),
        "nuclear": np.sum(singular, axis=-1) ** 2,
    }


def alignments(first: Any, second: Any) -> dict[str, Any]:
    """Return |tr W2 W1|, and the spectral and nuclear norms of W2 W1: inner products of a kind."""
    product = second @ first
    singular = _singular_values(product)
    return {
        "spectral": singular[:, 0],
        "frobenius": np.abs(np.trace(product, axis1=1, axis2=2)),
        "nuclear": np.sum(singular, axis=-1),
    }


def _singular_values(matrices: Any) -> Any:
    lost = ~np.isfinite(matrices).all(axis=(1, 2))
    singular = np.linalg.svd(np.where(lost[:, None, None], 0, matrices), compute_uv=False)
    singular[lost] = np.nan
    return singular
