"""Claims of paper 002, eq 10, 11 and appendix B: two layers, balanced or not.

The Gauss–Newton matrix is the Hessian at zero loss, so the dense Hessian of a network that has its
own predictions for targets stands for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from hessence.papers.claims.linear_networks import (
    Linear,
    padded_gap,
    random_weights,
    tangent_kernel,
    white,
)
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.trained_networks import NetworkBatch, batched


def _shallow() -> Iterator[tuple[Linear, float]]:
    rng = np.random.default_rng(55)
    for i, sizes in enumerate(((4, 2, 3), (3, 5, 4), (3, 3, 2), (2, 3, 4))):
        X = white(rng, sizes[0], 9, 0.5 + i / 2)
        yield Linear(random_weights(rng, sizes), X, X).solved(), (0.5 + i / 2) ** 2


def _shallow_top() -> Verdict:
    gaps = []
    for net, var in _shallow():
        top = float(np.linalg.eigvalsh(net.hessian())[-1])
        norms = [float(np.linalg.norm(weight, 2)) ** 2 for weight in net.weights]
        gaps.append(abs(var * sum(norms) / top - 1))
    return judge(gaps, "λ_max of dense Hessians of random two-layer networks")


def _shallow_trace() -> Verdict:
    gaps = []
    for net, var in _shallow():
        low, high = (float(np.sum(weight**2)) for weight in net.weights)
        printed = var * (high * net.weights[0].shape[1] + low * net.weights[1].shape[0])
        gaps.append(abs(printed / float(np.trace(net.hessian())) - 1))
    return judge(gaps, "traces of dense Hessians of random two-layer networks")


def _shallow_pairs() -> Verdict:
    gaps, inside = [], []
    for net, var in _shallow():
        low, high = (np.linalg.svd(weight, compute_uv=False) ** 2 for weight in net.weights)
        pairs = [var * float(i + j) for i in low for j in high]
        gaps.append(padded_gap(pairs, net.hessian()))
        hidden, inputs = net.weights[0].shape
        inside.append(hidden >= max(inputs, net.weights[1].shape[0]))
    return judge(gaps, "all eigenvalues of dense Hessians", "d1 ≥ d0 and d1 ≥ d2", inside)


def _kernel_vectors() -> Verdict:
    gaps = []
    for net, var in _shallow():
        kernel = tangent_kernel(net)
        _, low, right = np.linalg.svd(net.weights[0])
        left, high, _ = np.linalg.svd(net.weights[1])
        for i, j in product(range(len(low)), range(len(high))):
            vector = np.kron(net.X.T @ right[i], left[:, j])
            value = var * (low[i] ** 2 + high[j] ** 2)
            error = np.linalg.norm(kernel @ vector - value * vector)
            gaps.append(float(error / (value * np.linalg.norm(vector))))
    return judge(gaps, "residuals with the tangent kernel from differences of outputs")


def _closer() -> Verdict:
    rng = np.random.default_rng(211)
    X = white(rng, 4, 12)
    nets = [random_weights(rng, (4, 6, 3)) for _ in range(6)]
    batch = NetworkBatch(batched(nets), X, rng.normal(size=(3, 4)) @ X)
    rows = []
    for steps in (0, 20, 20, 40, 80):
        batch = batch.descend(0.05, steps)
        values = np.linalg.eigvalsh(batch.hessians())[:, ::-1][:, :5]
        squares = [np.linalg.svd(weight, compute_uv=False) ** 2 for weight in batch.weights]
        low = np.pad(squares[0], ((0, 0), (0, 4 - squares[0].shape[1])))
        sums = low[:, :, None] + squares[1][:, None, :]
        printed = np.sort(sums.reshape(len(nets), -1))[:, ::-1][:, :5]
        rows.append(float(np.mean(np.abs(printed / values - 1))))
    return judge(
        np.diff(rows).tolist(),
        f"mean error of the top five: {', '.join(f'{row:.1e}' for row in rows)} along training",
    )


CLAIMS = (
    Claim(
        "002-eq10", "002 eq 10",
        "two layers, balanced or not, have λ_max = σ_x²(‖W1‖² + ‖W2‖²)",
        _shallow_top,
    ),
    Claim(
        "002-eq11", "002 eq 11",
        "the trace of two layers is σ_x²(d2‖W1‖_F² + d0‖W2‖_F²)",
        _shallow_trace,
    ),
    Claim(
        "002-eq15", "002 eq 15",
        "two layers have the eigenvalues σ_x²(s_i²(W1) + s_j²(W2)), i ≤ min(d0, d1), "
        "j ≤ min(d1, d2), and zeros",
        _shallow_pairs,
    ),
    Claim(
        "002-eq16", "002 eq 16",
        "the tangent kernel's eigenvectors are Xᵀv_i ⊗ u_j",
        _kernel_vectors,
    ),
    Claim(
        "002-closer", "002 App B, Fig 4",
        "eq 15 becomes more precise as training goes on",
        _closer, measured=True,
    ),
)  # fmt: skip
