"""Linear networks spelled out in torch and differentiated twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from tests.oracle import log_one_plus_exp


def squared(f, y):
    return ((f - y) ** 2).sum(dim=1).mean() / 2


def logistic(f, y):
    return log_one_plus_exp(-y * f).sum(dim=1).mean()


def cross_entropy(f, y):
    return torch.nn.functional.cross_entropy(f, y)


LOSSES = {"mse": squared, "logistic": logistic, "cross-entropy": cross_entropy}


@dataclass(frozen=True)
class LinearCase:
    """A product of matrices with data, and what autodiff says of its loss."""

    weights: list
    x: np.ndarray
    y: np.ndarray
    loss: str = "mse"
    scale: float = 1.0
    own: object = field(default=None)

    @cached_property
    def theta(self):
        return torch.tensor(np.concatenate([np.ravel(w) for w in self.weights]))

    def outputs(self, theta):
        f, start = torch.tensor(self.x), 0
        for w in self.weights:
            size = w.size
            f = f @ theta[start : start + size].reshape(w.shape).T
            start += size
        return self.scale * f

    def cost(self, f):
        return (self.own or LOSSES[self.loss])(f, torch.tensor(self.y))

    @cached_property
    def value(self):
        return float(self.cost(self.outputs(self.theta)))

    @cached_property
    def gradient(self):
        theta = self.theta.clone().requires_grad_()
        return torch.autograd.grad(self.cost(self.outputs(theta)), theta)[0].numpy()

    @cached_property
    def hessian(self):
        return torch.autograd.functional.hessian(
            lambda theta: self.cost(self.outputs(theta)), self.theta
        ).numpy()

    @cached_property
    def ggn(self):
        jacobian = torch.autograd.functional.jacobian(self.outputs, self.theta)
        f = self.outputs(self.theta)
        curvature = torch.autograd.functional.hessian(self.cost, f).reshape(f.numel(), f.numel())
        jacobian = jacobian.reshape(f.numel(), -1)
        return (jacobian.T @ curvature @ jacobian).numpy()

    @cached_property
    def norm(self):
        return max(np.linalg.norm(self.hessian, 2), 1e-300)


def assert_same_spectrum(spectrum, dense, norm, tolerance=1e-11):
    """Compare all eigenvalues and all eigenvectors with a dense matrix."""
    values = np.linalg.eigvalsh(dense)[::-1]
    np.testing.assert_allclose(spectrum.eigenvalues, values, rtol=0, atol=tolerance * norm)
    columns = [space.vectors() for space in spectrum.spaces]
    vectors = np.concatenate(columns, axis=1)
    spread = np.concatenate([np.full(s.multiplicity, s.value) for s in spectrum.spaces])
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(dense)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(dense @ vectors, vectors * spread, rtol=0, atol=tolerance * norm)
