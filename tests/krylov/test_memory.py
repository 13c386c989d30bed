"""How much memory a density of a million parameters takes, at its peak."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import hessence as hs
from hessence._common.device import available, vectors_within
from tests.krylov.market import Counting

SIZE, STEPS, PROBES = 10**6, 64, 2

# In a process of its own: the peak of a process is that of all it ever did.
SCRIPT = f"""
import torch, hessence as hs
torch.set_num_threads(1)

class Diagonal:
    shape, dtype, device = ({SIZE}, {SIZE}), torch.float32, torch.device("cpu")
    values = torch.linspace(-1, 1, {SIZE})

    def __matmul__(self, other):
        return self.values[:, None] * other if other.ndim > 1 else self.values * other

def peak(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

hs.density(Diagonal(), probes=2, steps=2, grid=[0.0])  # what is loaded on first use
before = peak("VmRSS:")
hs.density(Diagonal(), probes=4, steps={STEPS}, memory={PROBES} * 70 * 4 * {SIZE})
print((peak("VmHWM:") - before) / ({PROBES} * {STEPS} * 4 * {SIZE}))
"""


@pytest.mark.parametrize("size", [10**5, pytest.param(SIZE, marks=pytest.mark.slow)])
def test_numpy_peak_is_below_twice_the_bases(size):
    values = np.linspace(-1, 1, size, dtype=np.float32)
    bases = STEPS * values.nbytes  # one probe at a time
    tracemalloc.start()
    try:
        density = hs.density(Counting(values), probes=2, steps=STEPS, memory=bases)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert density.products == 2 * STEPS
    assert bases < peak < 1.3 * bases


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_torch_peak_is_below_twice_the_bases():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert 0.9 < float(done.stdout) < 1.3


def test_memory_decides_how_many_vectors_fit(monkeypatch):
    reference = np.zeros(1, dtype=np.float32)
    assert vectors_within(4000, 100, reference) == 10
    assert vectors_within(float("inf"), 100, reference) > 10**12
    assert 2**20 < available(reference) < 2**50
    monkeypatch.setattr("hessence._common.device.available", lambda reference: 8e7)
    assert vectors_within(None, 1000, reference) == 10_000
