"""A small model to be watched, steps of its training, and histories compared."""

import numpy as np
import torch
from torch import nn

ARRAYS = (
    "steps", "loss", "sharpness", "eigenvalues", "errors", "ggn_eigenvalues", "ggn_errors",
    "ggn_gap", "trace", "trace_stderr", "lr", "products", "converged",
)  # fmt: skip


def small(dtype=torch.float64):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).to(dtype)
    x = torch.randn(60, 6).to(dtype)
    return model, (x, x[:, :3].argmax(dim=1)), nn.CrossEntropyLoss()


def descend(model, data, loss, lr, batch=None, generator=None):
    x, y = data
    if batch is not None:
        chosen = torch.randint(0, len(x), (batch,), generator=generator)
        x, y = x[chosen], y[chosen]
    slopes = torch.autograd.grad(loss(model(x), y), list(model.parameters()))
    with torch.no_grad():
        for p, slope in zip(model.parameters(), slopes, strict=True):
            p -= lr * slope


def assert_equal(first, second):
    assert (first.parameters, first.k) == (second.parameters, second.k)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
