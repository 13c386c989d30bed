"""Scalar networks against dot products, dense autodiff, and a Python loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import hessence as hs
from benchmarks.timing import Comparison, compare


def comparisons() -> Iterator[Comparison]:
    """Yield the comparisons one after another."""
    yield from _against_dot_products()
    yield _against_autodiff()
    yield _against_a_loop()


def _against_dot_products() -> Iterator[Comparison]:
    rng = np.random.default_rng(0)
    w, v, x, y = rng.normal(size=(4, 10**6))

    def dots(w: Any, v: Any) -> Any:
        return w @ w, v @ v, w @ v, x @ x, x @ y

    for name, first in (("random weights", v), ("w close to v", w + 1e-3 * v)):
        yield compare(
            f"ScalarLinear, m = n = 10⁶, {name}",
            lambda first=first: hs.ScalarLinear(w, first).hessian(x, y).spectrum(),
            "its five NumPy dot products",
            lambda first=first: dots(w, first),
            4,
        )


def _against_autodiff() -> Comparison:
    rng = np.random.default_rng(1)
    w, v = rng.normal(size=(2, 1000))
    x, y = rng.normal(size=(2, 100))
    theta, inputs, targets = (torch.from_numpy(a) for a in (np.concatenate([v, w]), x, y))

    def loss(parameters: torch.Tensor) -> torch.Tensor:
        hidden = inputs[:, None] * parameters[None, :1000]
        return ((hidden @ parameters[1000:] - targets) ** 2).mean() / 2

    def dense() -> Any:
        return torch.linalg.eigvalsh(torch.func.hessian(loss)(theta))

    return compare(
        "ScalarLinear, m = 1000, all eigenvalues",
        lambda: hs.ScalarLinear(w, v).hessian(x, y).spectrum().eigenvalues,
        "torch.func.hessian + eigvalsh",
        dense,
        repeats=3,
    )


def _against_a_loop() -> Comparison:
    rng = np.random.default_rng(2)
    w, v = rng.normal(size=(2, 10**5, 16))
    x, y = rng.normal(size=(2, 100))

    def loop() -> Any:
        return [hs.ScalarLinear(*pair).hessian(x, y).spectrum().sharpness for pair in few]

    few = list(zip(w[:500], v[:500], strict=True))
    measured = compare(
        "ScalarLinear, 10⁵ networks of width 16",
        lambda: hs.ScalarLinear(w, v).hessian(x, y).spectrum().sharpness,
        "one by one (500 timed, ×200)",
        loop,
        repeats=5,
    )
    whole = measured.reference_seconds * len(w) / len(few)
    return replace(measured, reference_seconds=whole)
