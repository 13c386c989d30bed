"""Brackets and exact counts of two-layer models, against dense Hessians by autodiff."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hessence as hs

ACTIVATIONS = {
    "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU, "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid, "relu": nn.ReLU, "leaky": lambda: nn.LeakyReLU(0.1), "elu": nn.ELU,
    "in place": lambda: nn.ReLU(inplace=True), "identity": nn.Identity,
}  # fmt: skip


class Sine(nn.Module):
    """Two layers in a module of a user's own, with a function that has no module."""

    def __init__(self, inputs, width, outputs, bias):
        super().__init__()
        self.a = nn.Linear(inputs, width, bias=bias)
        self.b = nn.Linear(width, outputs, bias=bias)

    def forward(self, x):
        z = self.a(x)
        return self.b(torch.sin(2 * z) + 0.1 * z**2)


def target_and_loss(kind, samples, outputs):
    real = torch.randn(samples, outputs).double()
    if kind == "cross-entropy":
        return torch.randint(outputs, (samples,)), nn.CrossEntropyLoss(label_smoothing=0.1)
    if kind == "bce":
        return (real > 0).double(), nn.BCEWithLogitsLoss(reduction="sum")
    return real, {"mse": nn.MSELoss(), "huber": nn.HuberLoss(delta=0.5), "own": None}[kind]


def build(activation, inputs, width, outputs, bias):
    if activation == "own":
        return Sine(inputs, width, outputs, bias).double()
    layers = nn.Linear(inputs, width, bias=bias), nn.Linear(width, outputs, bias=bias)
    return nn.Sequential(layers[0], ACTIVATIONS[activation](), layers[1]).double()


def dense(model, data, loss, names=None):
    """The Hessian by two passes of automatic differentiation, row by row."""
    x, y = data
    chosen = [p for name, p in model.named_parameters() if names is None or name in names]
    value = loss(model(x), y) if loss is not None else ((model(x) - y) ** 2).sum() / (2 * len(x))
    slopes = torch.autograd.grad(value, chosen, create_graph=True, materialize_grads=True)
    flat = torch.cat([g.flatten() for g in slopes])
    rows = []
    for entry in flat:
        if not entry.requires_grad:
            rows.append(torch.zeros(len(flat)).double())
            continue
        parts = torch.autograd.grad(entry, chosen, retain_graph=True, materialize_grads=True)
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows).detach().numpy()


def eigenvalues_and_noise(matrix):
    """Eigenvalues, descending, and what the oracle itself may round off."""
    values = np.linalg.eigvalsh((matrix + matrix.T) / 2)[::-1]
    return values, 1e-14 * len(values) * max(np.abs(values).max(), 1e-300)


def require_contained(found, values, noise):
    assert (found.lower <= values + noise).all()
    assert (found.upper >= values - noise).all()
    assert found.zeros <= (np.abs(values) <= noise).sum()


@given(
    activation=st.sampled_from([*ACTIVATIONS, "own"]),
    kind=st.sampled_from(["mse", "cross-entropy", "bce", "huber"]),
    sizes=st.tuples(*(st.integers(1, top) for top in (5, 6, 4, 7))),
    bias=st.booleans(),
    scales=st.tuples(*(st.sampled_from([1e-9, 1e-3, 1.0, 1e3, 1e9]) for _ in range(2))),
    corner=st.sampled_from(["none"] * 4 + ["zero residual", "dead", "twins", "zero weights"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_eigenvalues_are_in_their_brackets_and_counts_are_right(
    activation, kind, sizes, bias, scales, corner, seed
):
    torch.manual_seed(seed)
    inputs, width, outputs, samples = sizes
    model = build(activation, inputs, width, outputs, bias)
    first, second = [m for m in model.modules() if isinstance(m, nn.Linear)]
    x = torch.randn(samples, inputs).double() * scales[0]
    y, loss = target_and_loss(kind, samples, outputs)
    with torch.no_grad():
        # Pre-activations of order one in any unit of the inputs; outputs in any unit.
        first.weight *= 3 / scales[0]
        second.weight *= 3 * (scales[1] if kind in ("mse", "huber") else 1.0)
        if kind == "mse":
            y = y * scales[1]
        if corner == "dead":
            first.weight[0] = 0
        elif corner == "twins" and width > 1:
            first.weight[1], second.weight[:, 1] = first.weight[0], second.weight[:, 0]
        elif corner == "zero weights":
            second.weight.zero_()
        elif corner == "zero residual" and kind in ("mse", "huber"):
            y = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hs.KinkWarning)
        found = hs.brackets(model, (x, y), loss)
    values, noise = eigenvalues_and_noise(dense(model, (x, y), loss))
    require_contained(found, values, noise)
    require_counts(found, values, 10 * noise, np.random.default_rng(seed))


def require_counts(found, values, noise, rng):
    """Compare counts between numbers that no eigenvalue is close to, and one eigenvalue."""
    ends = np.sort(rng.choice(values, 2)) + rng.normal(size=2) * 0.1 * np.abs(values).max()
    low, high = min(ends), max(ends)
    if np.abs(values[:, None] - ends).min() > noise:
        count = found.count(low, high)
        assert count == ((values > low) & (values <= high)).sum()
        assert count.intervals[0][0] <= low <= count.intervals[0][1]
    index = int(rng.integers(len(values)))
    bottom, top = found.eigenvalue(index)
    assert bottom <= values[index] + noise
    assert top >= values[index] - noise
    inertia = found.inertia()
    assert sum(inertia) == len(values)
    assert inertia.negative <= (values < noise).sum()
    assert inertia.negative >= (values < -noise).sum() - inertia.flat
    assert inertia.positive >= (values > noise).sum() - inertia.flat
