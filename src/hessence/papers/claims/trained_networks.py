"""Many networks at once for the checks of what training does, layers of any kind.

Gradients are written out, as backpropagation; the Hessian is their derivative by steps into the
complex plane, without error but for rounding. It needs no closed form of any kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hessence.papers.claims.dense_hessians import Array

Activation = Literal["linear", "relu", "tanh"]
TINY = 1e-30


@dataclass(frozen=True)
class NetworkBatch:
    """Networks W_L φ(… φ(W_1 x)) of one shape, weights (N, d_ℓ, d_{ℓ−1}), samples in columns.

    Data are shared, (d_0, n), or every network's own, (N, d_0, n).
    """

    weights: tuple[NDArray[Any], ...]
    X: Array
    Y: Array
    activation: Activation = "linear"

    def _hidden(self, before: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return φ and its derivative."""
        if self.activation == "linear":
            return before, np.ones_like(before)
        if self.activation == "relu":
            gates = before.real > 0
            return before * gates, gates.astype(before.dtype)
        after = np.tanh(before)
        return after, 1 - after**2

    def _forward(self) -> tuple[list[NDArray[Any]], list[NDArray[Any]], NDArray[Any]]:
        """Return what every layer sees, the derivatives of φ after it, and the residuals."""
        shape = (len(self.weights[0]), *self.X.shape[-2:])
        seen: list[NDArray[Any]] = [np.broadcast_to(self.X, shape)]
        derivatives: list[NDArray[Any]] = []
        for weight in self.weights[:-1]:
            after, derivative = self._hidden(weight @ seen[-1])
            seen.append(after)
            derivatives.append(derivative)
        return seen, derivatives, self.weights[-1] @ seen[-1] - self.Y

    def losses(self) -> Array:
        """Return half the mean squared error of every network."""
        residuals = self._forward()[2]
        return np.asarray(np.sum(residuals**2, axis=(1, 2)) / (2 * self.X.shape[-1]))

    def gradients(self) -> list[NDArray[Any]]:
        """Return the gradient in every layer."""
        seen, derivatives, back = self._forward()
        back = back / self.X.shape[-1]
        found: list[NDArray[Any]] = []
        for layer in reversed(range(len(self.weights))):
            found.append(back @ np.swapaxes(seen[layer], 1, 2))
            if layer:
                back = np.swapaxes(self.weights[layer], 1, 2) @ back * derivatives[layer - 1]
        return found[::-1]

    def descend(self, rate: float, steps: int, rates: Sequence[float] = ()) -> NetworkBatch:
        """Return the networks after full-batch descent, with a factor of the rate by layer."""
        now = self
        factors = [rate * factor for factor in rates or [1.0] * len(self.weights)]
        for _ in range(steps):
            layers = zip(now.weights, factors, now.gradients(), strict=True)
            now = replace(now, weights=tuple(w - factor * g for w, factor, g in layers))
        return now

    def flow(self, step: float, steps: int) -> NetworkBatch:
        """Return the networks along the flow of the gradient, by the classical method."""
        now = self
        for _ in range(steps):
            total = [np.zeros_like(weight) for weight in now.weights]
            tried = now
            for ahead, share in ((0.5, 1), (0.5, 2), (1.0, 2), (0.0, 1)):
                gradients = tried.gradients()
                total = [sum_ + share / 6 * g for sum_, g in zip(total, gradients, strict=True)]
                pairs = zip(now.weights, gradients, strict=True)
                tried = replace(now, weights=tuple(w - ahead * step * g for w, g in pairs))
            moved = zip(now.weights, total, strict=True)
            now = replace(now, weights=tuple(w - step * t for w, t in moved))
        return now

    def hessians(self) -> Array:
        """Return every network's Hessian (N, p, p), first layer first, each matrix by rows."""
        columns = []
        for layer, weight in enumerate(self.weights):
            for entry in np.ndindex(*weight.shape[1:]):
                moved = weight.astype(np.complex128)
                moved[:, *entry] += 1j * TINY
                weights = (*self.weights[:layer], moved, *self.weights[layer + 1 :])
                parts = [g.imag / TINY for g in replace(self, weights=weights).gradients()]
                columns.append(np.concatenate([p.reshape(len(p), -1) for p in parts], axis=1))
        found = np.stack(columns, axis=1)
        return np.asarray((found + np.swapaxes(found, 1, 2)) / 2, dtype=np.float64)

    def sharpness(self) -> Array:
        """Return the largest eigenvalue of every network's Hessian."""
        return np.asarray(np.linalg.eigvalsh(self.hessians())[:, -1])


def batched(nets: Sequence[Sequence[Array]]) -> tuple[Array, ...]:
    """Return the weights of many networks as one array for each layer."""
    return tuple(np.stack(layer) for layer in zip(*nets, strict=True))


def correlation(one: Array, other: Array) -> float:
    """Return Pearson's coefficient."""
    return float(np.corrcoef(one, other)[0, 1])
