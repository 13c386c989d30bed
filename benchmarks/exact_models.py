"""``hs.spectrum`` of PyTorch models that a theorem solves, against dense autodiff."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import hessence as hs
from benchmarks.timing import Comparison, compare_with_dense

Data = tuple[Tensor, Tensor]


def comparisons() -> Iterator[Comparison]:
    """Yield the comparisons one after another."""
    yield _beside_dense("nn.Sequential 1-m-1, ReLU, m = 10⁴", _scalar, 10**4, 400)
    yield _beside_dense("nn.Sequential m-m-1, linear, m = 150", _two_layer, 150, 30)
    yield _beside_dense("nn.Sequential 10-m-10-10, linear, m = 1000", _deep, 1000, 50)


def _beside_dense(
    task: str, make: Callable[[int], tuple[nn.Module, Data]], width: int, small: int
) -> Comparison:
    """Compare with the dense way, which is timed at a smaller width."""
    model, data = make(width)

    def ours() -> Any:
        # Without a theorem this fails, where an estimate of a few eigenvalues would look fast.
        return hs.spectrum(model, data, nn.MSELoss(), method="exact")

    found = ours()
    loss, theta = flat_loss(*make(small))
    measured = compare_with_dense(task, ours, loss, theta, len(found), 1 / 1000, repeats=5)
    return replace(measured, note=f"all {len(found):,} eigenvalues, {found.method}")


def flat_loss(model: nn.Module, data: Data) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return the loss as a function of all parameters in one vector, and that vector."""
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]

    def loss(theta: Tensor) -> Tensor:
        parts = theta.split([shape.numel() for shape in shapes])
        weights = {n: p.reshape(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        prediction = torch.func.functional_call(model, weights, (data[0],))
        return nn.functional.mse_loss(prediction, data[1])

    return loss, nn.utils.parameters_to_vector(model.parameters()).detach()


def _scalar(width: int) -> tuple[nn.Module, Data]:
    return _with_data([nn.Linear(1, width, bias=False), nn.ReLU(), nn.Linear(width, 1, bias=False)])


def _two_layer(width: int) -> tuple[nn.Module, Data]:
    return _with_data([nn.Linear(width, width, bias=False), nn.Linear(width, 1, bias=False)])


def _deep(width: int) -> tuple[nn.Module, Data]:
    sizes = (10, width, 10, 10)
    return _with_data([nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)])


def _with_data(layers: list[nn.Module]) -> tuple[nn.Module, Data]:
    torch.manual_seed(0)
    model = nn.Sequential(*layers).double()
    x = torch.randn(200, model[0].in_features, dtype=torch.float64)
    return model, (x, torch.randn(200, model[-1].out_features, dtype=torch.float64))
