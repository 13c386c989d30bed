"""ReLU networks by cells against the dense Hessian, and against the part of it that is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, hessian

import hessence as hs
from benchmarks.timing import Comparison, compare


def comparisons() -> Iterator[Comparison]:
    """Yield the comparisons one after another."""
    yield _against_dense()
    yield _wide()
    yield _model()


def _instance(dims: tuple[int, int, int], n: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    D, m, K = dims
    net = hs.TwoLayerReLU(rng.normal(size=(m, D)), rng.normal(size=(K, m)))
    return net, rng.normal(size=(n, D)), rng.normal(size=(n, K))


def _against_dense() -> Comparison:
    net, x, y = _instance((2, 500, 2), 10)
    return compare(
        "TwoLayerReLU 2-500-2, n = 10: 2 000 eigenvalues",
        lambda: net.hessian(x, y).spectrum(),
        "its own dense matrix and eigvalsh",
        lambda: np.linalg.eigvalsh(net.hessian(x, y).dense()),
        0.3,
        repeats=3,
    )


def _wide() -> Comparison:
    net, x, y = _instance((2, 10_000, 2), 50)
    block = np.random.default_rng(0).normal(size=(1600, 1600))
    return compare(
        "TwoLayerReLU 2-10000-2, n = 50: 40 000 eigenvalues",
        lambda: net.hessian(x, y).spectrum(),
        "one eigvalsh of size 1 600, which is left",
        lambda: np.linalg.eigvalsh(block + block.T),
        4,
        repeats=3,
    )


def _model() -> Comparison:
    torch.manual_seed(0)
    layers = torch.nn.Linear(2, 300), torch.nn.ReLU(), torch.nn.Linear(300, 2)
    model, (x, y) = torch.nn.Sequential(*layers).double(), torch.randn(2, 8, 2).double()
    loss, parameters = torch.nn.MSELoss(), dict(model.named_parameters())
    flat = torch.cat([p.detach().flatten() for p in parameters.values()])

    def dense(theta: torch.Tensor) -> torch.Tensor:
        pieces = theta.split([p.numel() for p in parameters.values()])
        own = {n: t.view_as(p) for (n, p), t in zip(parameters.items(), pieces, strict=True)}
        return loss(functional_call(model, own, (x,)), y)

    return compare(
        "hs.spectrum of a model 2-300-2, n = 8: 1 502 eigenvalues",
        lambda: hs.spectrum(model, (x, y), loss),
        "torch.func.hessian and eigvalsh",
        lambda: torch.linalg.eigvalsh(hessian(dense)(flat)),
        1,
        repeats=3,
    )
