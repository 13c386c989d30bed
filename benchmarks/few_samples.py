"""Few samples: the dual and the range, beside the dense way and beside Lanczos with curvlinops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import hessence as hs
from benchmarks.exact_models import flat_loss
from benchmarks.timing import Comparison, compare, compare_with_dense

Data = tuple[Tensor, Tensor]

LOSS = nn.MSELoss()


def comparisons() -> Iterator[Comparison]:
    """Yield the comparisons one after another."""
    yield from _dual()
    yield from _range()


def _dual() -> Iterator[Comparison]:
    """Compare all eigenvalues of a Gauss–Newton matrix, of 200 predicted numbers."""
    model, data = _network((64, 300, 300, 10), 20)

    def ours() -> Any:
        return hs.ggn(model, data, LOSS).spectrum()

    yield _beside_dense("Gauss–Newton 64-300-300-10, n = 20", ours, (16, 12, 12, 10))
    if find_spec("curvlinops") is None:
        return
    from curvlinops import GGNLinearOperator
    from scipy.sparse.linalg import eigsh

    def theirs() -> Any:
        operator = GGNLinearOperator(model, LOSS, list(model.parameters()), [data])
        return eigsh(operator.to_scipy(), k=200, return_eigenvectors=False)

    yield compare(
        "Gauss–Newton 64-300-300-10, n = 20", ours, "curvlinops, ARPACK, the 200 nonzero ones",
        theirs, repeats=3,
    )  # fmt: skip


def _range() -> Iterator[Comparison]:
    """Compare the whole spectrum of a Hessian whose range is small."""
    model, data = _network((20, 60, 60, 5), 3)

    def ours() -> Any:
        # Without a theorem this fails, where an estimate of a few eigenvalues would look fast.
        return hs.spectrum(model, data, LOSS, method="exact")

    yield _beside_dense("Hessian 20-60-60-5, GELU, n = 3", ours, (20, 12, 12, 5))
    if find_spec("curvlinops") is None:
        return
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import eigsh

    def theirs() -> Any:
        operator = HessianLinearOperator(model, LOSS, list(model.parameters()), [data])
        return eigsh(operator.to_scipy(), k=50, return_eigenvectors=False)

    yield compare(
        "Hessian 20-60-60-5, GELU, n = 3", ours, "curvlinops, ARPACK, the 50 largest", theirs,
        repeats=3,
    )  # fmt: skip


def _beside_dense(task: str, ours: Callable[[], Any], small: tuple[int, ...]) -> Comparison:
    """Compare with the dense way, which is timed with fewer parameters."""
    found = ours()
    loss, theta = flat_loss(*_network(small, 20))
    measured = compare_with_dense(task, ours, loss, theta, len(found), 1 / 100, repeats=3)
    zeros = sum(space.multiplicity for space in found["flat"])
    note = f"all {len(found):,} eigenvalues, {zeros:,} of them zero, {found.method}"
    return replace(measured, note=note)


def _network(widths: tuple[int, ...], samples: int) -> tuple[nn.Module, Data]:
    torch.manual_seed(0)
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.GELU())]
    x, y = (torch.randn(samples, width, dtype=torch.float64) for width in (widths[0], widths[-1]))
    return nn.Sequential(*layers[:-1]).double(), (x, y)
