"""Random and aligned linear networks with data, and their Hessians."""

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

import hessence as hs
from tests.linear_oracle import LinearCase

DIMS = st.lists(st.integers(1, 5), min_size=2, max_size=5).filter(
    lambda dims: sum(a * b for a, b in pairwise(dims)) <= 70
)


def random_case(dims, seed, *, rank=None, zero=None, scale=1.0, samples=7, loss="mse"):
    """Draw weights and data; `rank` limits the inputs, `zero` kills a layer."""
    rng = np.random.default_rng(seed)
    weights = [scale * rng.normal(size=(b, a)) for a, b in pairwise(dims)]
    if zero is not None:
        weights[zero % len(weights)] *= 0
    x = rng.normal(size=(samples, dims[0]))
    if rank is not None:
        x = rng.normal(size=(samples, rank)) @ rng.normal(size=(rank, dims[0]))
    y = rng.normal(size=(samples, dims[-1]))
    if loss == "logistic":
        y = np.sign(y)
    if loss == "cross-entropy":
        y = rng.integers(dims[-1], size=samples)
    return LinearCase(weights, x, y, loss)


def aligned_case(dims, values, seed, *, solved=False, variance=1.0):
    """Build an aligned network from its singular vectors, with a target along the same ones."""
    rng = np.random.default_rng(seed)
    bases = [np.linalg.qr(rng.normal(size=(d, d)))[0] for d in dims]

    def layer(out, inn, s):
        core = np.zeros((out.shape[0], inn.shape[0]))
        np.fill_diagonal(core[: len(s), : len(s)], s)
        return out @ core @ inn.T

    weights = [
        layer(bases[i + 1], bases[i], [v[i] for v in values][: min(dims[i], dims[i + 1])])
        for i in range(len(dims) - 1)
    ]
    spread = variance * np.ones(dims[0]) if np.ndim(variance) == 0 else np.asarray(variance)
    n = 3 * dims[0]
    white = np.linalg.qr(rng.normal(size=(n, dims[0])))[0] * n**0.5
    x = white * np.sqrt(spread) @ bases[0].T
    product = np.linalg.multi_dot(weights[::-1]) if len(weights) > 1 else weights[0]
    target = layer(bases[-1], bases[0], rng.normal(size=min(dims[0], dims[-1])))
    return LinearCase(weights, x, x @ (product if solved else target).T)


def operator(case):
    return hs.DeepLinear(case.weights).hessian(case.x, case.y, case.loss)
