"""Self-attention spelled out in torch, sequence by sequence, and differentiated twice."""

from __future__ import annotations

import numpy as np
import torch

from tests.oracle import log_one_plus_exp

ACTIVATIONS = {
    "softmax": lambda s: torch.softmax(s, dim=-1),
    "identity": lambda s: s,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def outputs(theta, x, mask=None, bias=None, sink=None, activation="softmax"):
    """Return the predictions of each sequence, a list of vectors of its own length."""
    m = (len(theta) - 1) // 2
    value, query, key = theta[0], theta[1 : m + 1], theta[m + 1 :]
    rows = []
    for i, row in enumerate(np.atleast_2d(x)):
        alive = np.ones(len(row), bool) if mask is None else np.atleast_2d(mask)[i]
        tokens = torch.tensor(row[alive])
        scores = torch.outer(tokens, tokens) * torch.dot(query, key) / m**0.5
        if bias is not None:
            scores = scores + torch.tensor(bias[np.ix_(alive, alive)])
        if sink is not None:
            raised = torch.zeros(len(tokens), dtype=torch.float64)
            raised[0] = sink
            scores = scores + raised
        rows.append(value * ACTIVATIONS[activation](scores) @ tokens)
    return rows


POINTWISE = {
    "mse": lambda f, y: (f - y) ** 2 / 2,
    "logistic": lambda f, y: log_one_plus_exp(-y * f),
}


def cost(rows, y, mask=None, loss="mse"):
    """Return the mean over sequences of the mean loss of each."""
    total = 0
    for i, row in enumerate(rows):
        target = np.atleast_2d(y)[i]
        if mask is not None:
            target = target[np.atleast_2d(mask)[i]]
        total = total + POINTWISE[loss](row, torch.tensor(target)).mean()
    return total / len(rows)


def hessian(theta, x, y, mask=None, loss="mse", **options):
    def total(p):
        return cost(outputs(p, x, mask, **options), y, mask, loss)

    return torch.autograd.functional.hessian(total, torch.tensor(theta)).numpy()


def gradient(theta, x, y, mask=None, loss="mse", **options):
    def total(p):
        return cost(outputs(p, x, mask, **options), y, mask, loss)

    return torch.autograd.functional.jacobian(total, torch.tensor(theta)).numpy()


def gauss_newton(theta, x, y, mask=None, loss="mse", **options):
    """Return Σ_i J_iᵀ ∇²φ J_i with the weight 1/(sequences · length) of each token."""
    theta = torch.tensor(theta)
    count = len(np.atleast_2d(x))
    total = np.zeros((len(theta),) * 2)
    for i in range(count):
        jacobian = torch.autograd.functional.jacobian(
            lambda p, i=i: outputs(p, x, mask, **options)[i], theta
        ).numpy()
        row = outputs(theta, x, mask, **options)[i]
        alive = ... if mask is None else np.atleast_2d(mask)[i]
        target = torch.tensor(np.atleast_2d(y)[i][alive])
        second = torch.autograd.functional.hessian(
            lambda f, target=target: POINTWISE[loss](f, target).sum(), row
        ).numpy()
        total += jacobian.T @ second @ jacobian / (count * len(jacobian))
    return total
