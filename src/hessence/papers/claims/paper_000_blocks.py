"""Claims of paper 000, sections D.3.3 and D.4: the blocks of two linear layers, and their trace."""

from __future__ import annotations

import numpy as np

from hessence.papers.claims.linear_networks import Linear, random_weights, white
from hessence.papers.claims.protocol import Claim, Verdict, judge


def _blocks() -> Verdict:
    rng = np.random.default_rng(162)
    gaps = []
    for size, width in ((2, 3), (3, 2), (3, 4)):
        X, Y = rng.normal(size=(2, size, 8))
        net = Linear(random_weights(rng, (size, width, size)), X, Y)
        hessian, cut, cov = net.hessian(), size * width, X @ X.T / 8
        first, second = net.weights
        gaps.append(float(np.max(np.abs(
            hessian[:cut, :cut] - np.kron(second.T @ second, cov)))))  # fmt: skip
        gaps.append(float(np.max(np.abs(
            hessian[cut:, cut:] - np.kron(np.eye(size), first @ cov @ first.T)))))  # fmt: skip
    return judge(gaps, "diagonal blocks of dense Hessians, any data, at any loss")


def _norms_below() -> Verdict:
    rng = np.random.default_rng(34)
    gaps = []
    for sizes in ((3, 4, 2), (2, 2, 3), (3, 2, 3), (1, 4, 1)) * 2:
        X = white(rng, sizes[0], 8)
        net = Linear(random_weights(rng, sizes), X, rng.normal(size=(sizes[2], 8)))
        top = float(np.linalg.eigvalsh(net.hessian())[-1])
        norms = [float(np.linalg.norm(weight, 2)) ** 2 for weight in net.weights]
        gaps.append(max(norms) / top - 1)
    return judge(gaps, f"largest ratio of norm to λ_max {1 + max(gaps):.3f}, at any loss")


def _trace_sum() -> Verdict:
    rng = np.random.default_rng(161)
    gaps, inside = [], []
    for i, (size, width) in enumerate(((2, 3), (3, 2), (3, 4), (2, 5))):
        X = white(rng, size, 8) if i % 2 else rng.normal(size=(size, 8))
        net = Linear(random_weights(rng, (size, width, size)), X, rng.normal(size=(size, 8)))
        total = size * float(sum(np.sum(weight**2) for weight in net.weights))
        gaps.append(abs(total / float(np.trace(net.hessian())) - 1))
        inside.append(bool(i % 2))
    return judge(gaps, "traces of dense Hessians at any loss", "the inputs are white", inside)


CLAIMS = (
    Claim(
        "000-blocks", "000 App D.3.3 and D.4",
        "the diagonal blocks of two linear layers are W2ᵀW2 ⊗ Σ and I ⊗ W1ΣW1ᵀ",
        _blocks,
    ),
    Claim(
        "000-norms-below", "000 App D.3.3",
        "two linear layers on white data have λ_max ≥ max(‖W1‖², ‖W2‖²)",
        _norms_below,
    ),
    Claim(
        "000-trace-sum", "000 App D.4",
        "the trace of two linear layers with D inputs and outputs is D(‖W1‖_F² + ‖W2‖_F²)",
        _trace_sum,
    ),
)  # fmt: skip
