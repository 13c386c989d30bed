"""Networks of linear layers and leaky ReLUs spelled out in torch and differentiated twice."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch

import hessence as hs
from tests.linear_oracle import LinearCase
from tests.oracle import LOSSES as POINTWISE
from tests.oracle import OWN

TORCH_LOSSES = {
    name: lambda f, y, each=each: each(f, y).sum() / len(f) for name, each in POINTWISE.items()
} | {"cross-entropy": torch.nn.functional.cross_entropy}


@dataclass(frozen=True)
class ReLUCase(LinearCase):
    """`weights` are W1, b1, W2, …, without biases that a layer does not have."""

    slope: float = 0.0

    def outputs(self, theta):
        h, start, pending = torch.tensor(self.x), 0, None
        for w in self.weights:
            piece = theta[start : start + w.size].reshape(w.shape)
            start += w.size
            if w.ndim == 1:
                pending = pending + piece
                continue
            if pending is not None:
                h = torch.nn.functional.leaky_relu(pending, self.slope)
            pending = h @ piece.T
        return pending

    def cost(self, f):
        return TORCH_LOSSES[self.loss](f, torch.tensor(self.y))

    def net(self, convert=lambda array: array):
        layers, biases = [], []
        for w in self.weights:
            if w.ndim == 2:
                layers.append(convert(w))
                biases.append(None)
            else:
                biases[-1] = convert(w)
        return hs.ReLU(layers, biases, self.slope)

    def operator(self, convert=lambda array: array):
        """Return the Hessian; kinks are not what is tested."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hs.KinkWarning)
            loss = OWN.get(self.loss, self.loss)
            return self.net(convert).hessian(convert(self.x), convert(self.y), loss)


def weights_of(dims, biases, rng):
    """Return W1, b1, …; `biases` has a digit for each layer, 1 for a bias."""
    found = []
    for i, biased in enumerate(biases or "0" * (len(dims) - 1)):
        found.append(rng.normal(size=(dims[i + 1], dims[i])))
        if biased == "1":
            found.append(rng.normal(size=dims[i + 1]))
    return found


def targets(n, outputs, loss, rng):
    if loss == "cross-entropy":
        return rng.integers(outputs, size=n)
    y = rng.normal(size=(n, outputs))
    return np.where(y < 0, -1.0, 1.0) if loss == "logistic" else y


def typical(dims, biases="", slope=0.0, loss="mse", n=5, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dims[0]))
    y = targets(n, dims[-1], loss, rng)
    return ReLUCase(weights_of(dims, biases, rng), x, y, loss, slope=slope)
