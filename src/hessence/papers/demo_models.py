"""The part of the demo that is about PyTorch models: one estimated density, one training run."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import hessence as hs
from hessence.papers.page import Picture
from hessence.plotting.axes import legend_below, new_figure

STEPS, EVERY, LR = 1000, 20, 0.12


def model_pictures() -> list[Picture]:
    """Train a small network, watching its curvature, and look at where it ends."""
    torch.manual_seed(0)
    x = torch.randn(200, 8, dtype=torch.float64)
    y = torch.stack([x[:, 0] * x[:, 1], torch.sin(2 * x[:, 2]), x[:, 3].abs()], dim=1)
    model = nn.Sequential(
        nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3)
    ).double()
    monitor = hs.Monitor(model, (x, y), "mse", k=2, lr=LR)
    _train(model, x, y, monitor)
    figure, (ax,) = new_figure()
    monitor.plot(ax)
    legend_below(ax)
    through_training = Picture(
        "model-through-training",
        "Any PyTorch model through training",
        "The two largest eigenvalues of the Hessian of a tanh network under full-batch gradient "
        "descent, and of its Gauss–Newton part: the sharpness rises beyond 2 / lr and then swings "
        f"around it. A measurement took {monitor.history.products.mean():.0f} products on average.",
        figure,
    )
    figure, (ax,) = new_figure()
    found: Any = hs.spectrum(model, (x, y), "mse", k=10, probes=8)
    found.plot(ax)
    density = Picture(
        "model-density",
        "Its spectrum in the end, with a band",
        f"The density of all {found.size} eigenvalues with its 95 % band, and the ten largest ones "
        f"with errors below {float(found.errors.max()):.0e}, from {found.products} products.",
        figure,
    )
    return [through_training, density]


def _train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, monitor: hs.Monitor) -> None:
    parameters = list(model.parameters())
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            monitor.measure(step)
        loss = ((model(x) - y) ** 2).sum(dim=1).mean() / 2
        for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= LR * slope
