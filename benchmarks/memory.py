"""The peak memory of a density at a million parameters, beside that of its basis vectors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import nn

import hessence as hs
from benchmarks.timing import Comparison

STEPS, MOST = 64, 2.0


def comparisons() -> Iterator[Comparison]:
    """Yield the comparison, made in a process of its own: a peak is that of all it ever did."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        size, seconds, products, share = pool.submit(_measure).result()
    verdict = "met" if share <= MOST else "MISSED"
    note = f"peak memory {share:.2f} times its basis vectors, at most {MOST:g}: {verdict}"
    task = f"MLP, p = {size:,}: density, {STEPS} steps"
    yield Comparison(task, f"{STEPS} products", seconds, products, note=note)


def _measure() -> tuple[int, float, float, float]:
    """Return the size, the seconds of a density and of its products, and its share of memory."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1000, 1000), nn.Tanh(), nn.Linear(1000, 1))
    H = hs.hessian(model, (torch.randn(64, 1000), torch.randn(64, 1)), nn.MSELoss())
    v = torch.ones(H.shape[0])
    hs.density(H, probes=1, steps=2)  # what is loaded on first use
    times = []
    for _ in range(9):
        began = time.perf_counter()
        H @ v
        times.append(time.perf_counter() - began)
    before, began = status("VmRSS:"), time.perf_counter()
    hs.density(H, probes=1, steps=STEPS)
    seconds = time.perf_counter() - began
    share = (status("VmHWM:") - before) / (STEPS * v.nbytes)
    return H.shape[0], seconds, STEPS * statistics.median(times), share


def status(name: str) -> int:
    """Return bytes that Linux tells of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
