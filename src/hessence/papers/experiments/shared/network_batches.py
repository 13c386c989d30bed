"""Batches of networks of one shape: drawn, trained and measured together, one matmul for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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

    @property
    def factors(self) -> list[Any]:
        """The layers with their multipliers in."""
        return [c * w for c, w in zip(self.multipliers, self.weights, strict=True)]


@dataclass(frozen=True)
class Schedule:
    """Steps of SGD: the rate falls tenfold, per network, when its loss no longer improves.

    A loss has improved if the mean over an epoch's batches is below the best one by a share of
    `progress`; after `patience` epochs without that, the rate falls. Training of a network ends
    below `smallest_rate`, that of all networks after `epochs`.
    """

    rate: float
    smallest_rate: float = 1e-5
    batch: int = 128
    patience: int = 5
    progress: float = 1e-3
    epochs: int = 1000


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
) -> tuple[Any, Any]:
    """Draw standard normal inputs, and the outputs of one random layer with noise added.

    The entries of the teacher are standard normal, or of variance 1/D, so that targets keep the
    scale of the inputs at every size.
    """
    x = rng.normal(size=(samples, size))
    y = x @ rng.normal(size=(size, size)).T
    if teacher == "scaled":
        y /= size**0.5
    if activation == "relu":
        y = np.maximum(y, 0)
    return x, y + noise**0.5 * rng.normal(size=y.shape)


def train(
    nets: Networks,
    x: Any,
    y: Any,
    activation: Activation,
    schedule: Schedule,
    rng: np.random.Generator,
) -> tuple[Networks, Any]:
    """Train all networks by SGD on the same batches; return them and their last losses (N,).

    A network that diverges comes back as NaN. Two linear layers are trained in their narrow twin:
    gradients never leave the span of the two matrices, so this is the same training.
    """
    first, last = nets.weights[0], nets.weights[-1]
    size, outputs, width = first.shape[-1], last.shape[-2], first.shape[-2]
    if activation == "linear" and len(nets.weights) == 2 and width > size + outputs:
        twin = hs.narrow_twin(first, last)
        narrow = replace(nets, weights=(twin.W1, twin.W2))
        narrow, losses = train(narrow, x, y, activation, schedule, rng)
        first, last = narrow.weights
        wide = twin.basis @ first, last @ np.swapaxes(twin.basis, 1, 2)
        return replace(nets, weights=wide), losses
    layers = [w.astype(np.float32) for w in nets.weights]
    steps = np.asarray(nets.multipliers) * np.asarray(nets.rates)
    count = len(first)
    rate = np.full(count, schedule.rate)
    best, losses, waited = np.full(count, np.inf), np.full(count, np.inf), np.zeros(count)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(schedule.epochs):
            losses = np.zeros(count)
            order = rng.permutation(len(x))
            parts = [order[i : i + schedule.batch] for i in range(0, len(order), schedule.batch)]
            for part in parts:
                loss, gradients = _gradients(layers, nets.multipliers, x[part], y[part], activation)
                losses += loss * len(part) / len(x)
                for layer, gradient, step in zip(layers, gradients, steps, strict=True):
                    layer -= (step * rate)[:, None, None].astype(np.float32) * gradient
            lost = ~np.isfinite(losses)
            for layer in layers:
                layer[lost] = np.nan
            better = losses < best * (1 - schedule.progress)
            best = np.where(better, losses, best)
            waited = np.where(better, 0, waited + 1)
            tired = waited >= schedule.patience
            rate = np.where(tired, rate / 10, rate)
            waited[tired] = 0
            rate[lost | (rate < 0.99 * schedule.smallest_rate)] = 0
            if not rate.any():
                break
    return replace(nets, weights=tuple(w.astype(np.float64) for w in layers)), losses


def unexplained(losses: Any, y: Any, noise: float) -> Any:
    """Return losses above that of the noise, relative to the loss of no output at all.

    A teacher weaker than the noise counts as being as strong.
    """
    floor = noise * y.shape[1] / 2
    return (losses - floor) / max(float(np.sum(y * y)) / len(y) / 2 - floor, floor, 1e-300)


def _gradients(
    layers: list[Any], multipliers: Sequence[float], x: Any, y: Any, activation: Activation
) -> tuple[Any, list[Any]]:
    """Return losses (N,) and their gradients in the layers, with the multipliers in."""
    scaled = [np.float32(c) * w for c, w in zip(multipliers, layers, strict=True)]
    linear = activation == "linear"
    # A linear network sees its data through their moments: the columns of the identity suffice.
    columns = np.eye(x.shape[1]) if linear else x.T
    before = [np.broadcast_to(columns.astype(np.float32), (len(layers[0]), *columns.shape))]
    for i, w in enumerate(scaled):
        out = w @ before[-1]
        if not linear and i < len(scaled) - 1:
            np.maximum(out, 0, out=out)
        before.append(out)
    product = before.pop()
    if linear:
        mixed = (y.T @ x / len(x)).astype(np.float32)
        back = product @ (x.T @ x / len(x)).astype(np.float32) - mixed
        loss = (np.sum(product * (back - mixed), axis=(1, 2)) + np.mean(np.sum(y * y, axis=1))) / 2
    else:
        residual = product - y.T.astype(np.float32)
        back = residual / np.float32(len(x))
        loss = np.sum(residual * back, axis=(1, 2)) / 2
    gradients = []
    for i in reversed(range(len(scaled))):
        gradients.append(back @ np.swapaxes(before[i], 1, 2))
        if i:
            back = np.swapaxes(scaled[i], 1, 2) @ back
            if not linear:
                back *= before[i] > 0
    return loss, gradients[::-1]


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
    return hs.DeepLinear(weights, multipliers).hessian(x, y).top(1, tol=1e-6).eigenvalues[:, 0]


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
