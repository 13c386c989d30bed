"""The dual: J Jᵀ beside PyTorch's own Jacobians, and its peak memory at nine million parameters."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import hessence as hs
from benchmarks.memory import status
from benchmarks.timing import Comparison, compare
from hessence._common.device import return_freed_memory

CLASSES = 10

CHUNK = 2.0**26
"""The goal for memory is this beside twice the Gram matrix, whatever the library takes at once."""

SIZES = {"MLP": (50, 200), "CNN": (50, 200)}
"""How many samples are timed with few parameters, and how many are solved with many."""


def comparisons() -> Iterator[Comparison]:
    """Yield the comparisons; memory is that of a process that did nothing else."""
    for kind, (few, many) in SIZES.items():
        timed = _timed(kind, few)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            size, gram, peak = pool.submit(_peak, kind, many).result()
        share = (peak - 2 * gram) / CHUNK
        note = (
            f"p = {size:,}, {many * CLASSES:,} predicted numbers: peak memory of the spectrum "
            f"twice the Gram matrix + {share:.2f} chunks of {CHUNK / 1e6:.0f} MB, at most 1: "
            f"{'met' if share <= 1 else 'MISSED'}"
        )
        yield replace(timed, note=note)


def _timed(kind: str, samples: int) -> Comparison:
    """Compare the time of the neural tangent kernel with all rows of the Jacobian at once."""
    model, (x, y) = _problem(kind, samples, large=False)
    parameters = {name: own.detach() for name, own in model.named_parameters()}

    def predict(own: dict[str, Tensor], one: Tensor) -> Any:
        return functional_call(model, own, (one[None],))[0]

    def theirs() -> Tensor:
        rows = vmap(jacrev(predict), (None, 0))(parameters, x)
        J = torch.cat([part.flatten(2).flatten(0, 1) for part in rows.values()], 1)
        return J @ J.mT

    def ours() -> Tensor:
        return hs.ggn(model, (x, y), nn.CrossEntropyLoss()).kernel()

    if not torch.allclose(ours(), theirs(), rtol=1e-3, atol=1e-3 * float(theirs().max())):
        raise AssertionError("the two kernels differ.")
    size = sum(p.numel() for p in parameters.values())
    task = f"{kind}, p = {size:,}, n = {samples}: J Jᵀ"
    return compare(task, ours, "torch.func, vmap of jacrev", theirs, repeats=5)


def _peak(kind: str, samples: int) -> tuple[int, int, int]:
    """Return the number of parameters, and the bytes of the Gram matrix and of all at the peak."""
    torch.set_num_threads(1)
    model, (x, y) = _problem(kind, samples, large=True)
    hs.ggn(model, (x[:2], y[:2]), nn.CrossEntropyLoss()).spectrum()  # what is loaded on first use
    G = hs.ggn(model, (x, y), nn.CrossEntropyLoss())
    return_freed_memory()  # else what the first use freed hides as much of the peak
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before = status("VmRSS:")
    found = G.spectrum()
    if found.method != "dual":
        raise AssertionError(found.reason)
    rows = samples * CLASSES
    return G.shape[0], rows * rows * x.itemsize, status("VmHWM:") - before


def _problem(kind: str, samples: int, *, large: bool) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a classifier of images, with random data."""
    torch.manual_seed(0)
    y = torch.randint(CLASSES, (samples,))
    if kind == "MLP":
        width = 2600 if large else 300
        layers = nn.Linear(784, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        return nn.Sequential(*layers, nn.Linear(width, CLASSES)), (torch.randn(samples, 784), y)
    channels = (64, 128, 256, 512, 1536) if large else (32, 64, 128, 128)
    layers, before = [], 3
    for i, width in enumerate(channels):
        layers += [nn.Conv2d(before, width, 3, 1 if i == 3 else 2, 1), nn.GELU()]
        before = width
    model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(CLASSES))
    x = torch.randn(samples, 3, 32, 32)
    model(x[:1])
    return model, (x, y)
