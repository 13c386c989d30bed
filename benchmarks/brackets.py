"""Brackets and exact counts of a wide network, beside the dense way and the top eigenvalue."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

import hessence as hs
from benchmarks.exact_models import flat_loss
from benchmarks.timing import Comparison, compare, compare_with_dense

INPUTS, WIDTH, SMALL, SAMPLES = 10, 100_000, 100, 500
"""The task; the dense way is timed at the small width."""

MOST = 1e-6
"""All brackets may take this share of the dense way's time."""


def comparisons() -> Iterator[Comparison]:
    """Yield the comparisons one after another, on one thread."""
    if find_spec("curvlinops") is None:
        sys.exit("benchmarks: brackets compares with curvlinops-for-pytorch; try `make bench`.")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from _comparisons()
    finally:
        torch.set_num_threads(before)


def _comparisons() -> Iterator[Comparison]:
    model, data = _network(WIDTH)
    small = flat_loss(*_network(SMALL))
    found = hs.brackets(model, data, nn.MSELoss())
    size, norm = len(found), found.upper[0]
    task = f"tanh {INPUTS}-{WIDTH}-1, n = {SAMPLES}"

    def bracket() -> Any:
        return hs.brackets(model, data, nn.MSELoss())

    measured = compare_with_dense(f"{task}: all brackets", bracket, *small, size, MOST, repeats=1)
    widths = found.width / norm
    note = f"widths in ‖H‖: median {sorted(widths)[size // 2]:.0e}, sharpness {widths[0]:.0e}"
    yield replace(measured, note=note)
    measured = compare_with_dense(f"{task}: exact index", found.inertia, *small, size, repeats=1)
    yield replace(measured, note=f"{found.inertia().negative:,} of {size:,} are negative")
    yield replace(
        compare(
            f"{task}: all brackets", bracket, "curvlinops + eigsh, the largest",
            lambda: _largest(model, data), repeats=1,
        ),
        note="one eigenvalue there, all of them here",
    )  # fmt: skip


def _largest(model: nn.Module, data: tuple[Tensor, Tensor]) -> Any:
    """Return the largest eigenvalue, as it is found without brackets."""
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import eigsh

    H = HessianLinearOperator(model, nn.MSELoss(), list(model.parameters()), [data])
    return eigsh(H.to_scipy(), k=1, which="LA", tol=1e-4, return_eigenvectors=False)


def _network(width: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    layers = nn.Linear(INPUTS, width, bias=False), nn.Tanh(), nn.Linear(width, 1, bias=False)
    data = torch.randn(SAMPLES, INPUTS).double(), torch.randn(SAMPLES, 1).double()
    return nn.Sequential(*layers).double(), data
