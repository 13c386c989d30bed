"""Linear networks against the eigensolvers and decompositions they cannot do without."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import hessence as hs
from benchmarks.timing import Comparison, compare, compare_with_dense


def comparisons() -> Iterator[Comparison]:
    """Yield the comparisons one after another."""
    yield from _aligned()
    yield _wide_twin()
    yield _against_dense_autodiff()
    yield _many_sharpnesses()


def _aligned() -> Iterator[Comparison]:
    d, depth = 500, 4
    net = hs.DeepLinear.balanced((d,) * (depth + 1), np.linspace(0.5, 1.5, d), rng=0)
    left, singular, right = np.linalg.svd(net.product)
    x = np.eye(d) * d**0.5
    H = net.hessian(x, x @ (left * singular**0.5 @ right).T)
    blocks = np.random.default_rng(0).normal(size=(d * (d - 1) // 2, 2 * depth, 2 * depth))
    blocks = blocks + blocks.swapaxes(1, 2)
    measured = compare(
        "aligned, L = 4, d = 500: 10⁶ eigenvalues",
        H.spectrum,
        "one batched eigvalsh of its blocks",
        lambda: np.linalg.eigvalsh(blocks),
        1.5,
        repeats=7,
    )
    tracemalloc.start()
    H.spectrum()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    yield replace(measured, note=f"{peak / 1e9:.2f} GB, at most 1 GB")
    # The same end-to-end matrix, off balance: its pairs do not split in two.
    first, second, *others = net.weights
    off = hs.DeepLinear([1.01 * first, second / 1.01, *others])
    yield compare(
        "the same: pairs of a balanced network split in two",
        H.spectrum,
        "off balance by 1 %, where they do not",
        off.hessian(x, x @ (left * singular**0.5 @ right).T).spectrum,
        0.6,
        repeats=7,
    )


def _wide_twin() -> Comparison:
    rng = np.random.default_rng(1)
    W1, W2 = rng.normal(size=(10**5, 10)), rng.normal(size=(10, 10**5))
    x, y = rng.normal(size=(100, 10)), rng.normal(size=(100, 10))
    both = np.concatenate([W1, W2.T], axis=1)
    return compare(
        "TwoLayerLinear, m = 10⁵, D = K = 10",
        lambda: hs.TwoLayerLinear(W1, W2).hessian(x, y).spectrum(),
        "one SVD of the 10⁵ × 20 matrix (W1, W2ᵀ)",
        lambda: np.linalg.svd(both, full_matrices=False),
        3,
        repeats=7,
    )


def _against_dense_autodiff() -> Comparison:
    rng = np.random.default_rng(2)

    def instance(m: int) -> tuple[Any, ...]:
        n = m + 2
        weights = rng.normal(size=(m, m)) / m**0.5, rng.normal(size=(1, m)) / m**0.5
        return (*weights, rng.normal(size=(n, m)), rng.normal(size=(n, 1)))

    W1, W2, x, y = instance(150)
    m = 50
    few1, few2, few_x, few_y = (torch.from_numpy(a) for a in instance(m))

    def loss(p: torch.Tensor) -> torch.Tensor:
        f = few_x @ p[: m * m].reshape(m, m).T @ p[m * m :].reshape(1, m).T
        return ((f - few_y) ** 2).mean() / 2

    return compare_with_dense(
        "TwoLayerLinear, m = D = 150, K = 1: all 22 650",
        lambda: hs.TwoLayerLinear(W1, W2).hessian(x, y).spectrum().eigenvalues,
        loss,
        torch.cat([few1.ravel(), few2.ravel()]),
        150 * 151,
        1 / 1000,
    )


def _many_sharpnesses() -> Comparison:
    count, width, size = 200, 100, 10
    rng = np.random.default_rng(3)
    nets = [hs.init.standard((size, width, size), rng) for _ in range(count)]
    batch = hs.DeepLinear(
        [np.stack(layer) for layer in zip(*(n.weights for n in nets), strict=True)]
    )
    x = rng.normal(size=(1024, size))
    y = x @ rng.normal(size=(size, size)) + 0.1 * rng.normal(size=(1024, size))
    few = 5
    data = torch.from_numpy(x), torch.from_numpy(y)

    def together() -> Any:
        return batch.hessian(x, y).top(1, tol=1e-6).eigenvalues

    def one_by_one() -> None:
        from scipy.sparse.linalg import LinearOperator, eigsh

        for net in nets[:few]:
            layers = [torch.from_numpy(w).requires_grad_() for w in net.weights]
            f = data[0]
            for w in layers:
                f = f @ w.T
            loss = ((f - data[1]) ** 2).sum(dim=1).mean() / 2
            slopes = torch.autograd.grad(loss, layers, create_graph=True)
            flat = torch.cat([g.ravel() for g in slopes])

            def product(v: Any, flat: Any = flat, layers: Any = layers) -> Any:
                out = torch.autograd.grad(flat @ torch.from_numpy(v), layers, retain_graph=True)
                return torch.cat([g.ravel() for g in out]).numpy()

            p = flat.numel()
            operator = LinearOperator((p, p), matvec=product, dtype=np.float64)
            eigsh(operator, k=1, which="LA", tol=1e-6, return_eigenvectors=False)

    measured = compare(
        "200 networks of width 100, D = K = 10: sharpness",
        together,
        f"autodiff + eigsh one by one ({few} timed, ×{count // few})",
        one_by_one,
        1 / 20,
        repeats=3,
    )
    return replace(measured, reference_seconds=measured.reference_seconds * count / few)
