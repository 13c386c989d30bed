"""Self-attention against the dot products it needs, and against a Python loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import hessence as hs
from benchmarks.timing import Comparison, compare


def comparisons() -> Iterator[Comparison]:
    """Yield the comparisons one after another."""
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 10**6)) / 1e3
    x, y = rng.normal(size=(2, 10, 10))
    yield compare(
        "SelfAttention, d_K = 10⁶",
        lambda: hs.SelfAttention(1.0, q, k).hessian(x, y).spectrum(),
        "its three NumPy dot products",
        lambda: (q @ q, k @ k, q @ k),
        4,
    )
    count, keys = 10**4, 100
    values, (queries, others) = rng.normal(size=count), rng.normal(size=(2, count, keys)) / 10
    few = 50

    def loop() -> None:
        for w, a, b in zip(values[:few], queries[:few], others[:few], strict=True):
            hs.SelfAttention(w, a, b).hessian(x, y).spectrum()

    def together() -> Any:
        return hs.SelfAttention(values, queries, others).hessian(x, y).spectrum().sharpness

    measured = compare(
        "SelfAttention, 10⁴ networks, d_K = 100",
        together,
        f"one by one ({few} timed, ×{count // few})",
        loop,
        repeats=3,
    )
    yield replace(measured, reference_seconds=measured.reference_seconds * count / few)
