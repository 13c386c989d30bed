"""Claims of paper 002: linear networks of any depth, and their data.

The Gauss–Newton matrix is the Hessian at zero loss, so the dense Hessian of a network that has its
own predictions for targets stands for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

import numpy as np

from hessence.claims.checking import Array
from hessence.claims.linear_networks import (
    Linear,
    balanced_weights,
    nonzero,
    padded_gap,
    random_weights,
    white,
)
from hessence.claims.protocol import Claim, Verdict, judge

SHAPES = ((4, 2, 3), (3, 4, 4, 2), (2, 3, 2, 3, 2), (3, 2, 4), (3, 3, 3))


def _random(seed: int) -> Iterator[tuple[Linear, float]]:
    """Draw networks of depth 2 to 4 at zero loss, on white data, with σ_x²."""
    rng = np.random.default_rng(seed)
    for i, sizes in enumerate(SHAPES):
        X = white(rng, sizes[0], 9, 0.5 + i / 2)
        yield Linear(random_weights(rng, sizes), X, X).solved(), (0.5 + i / 2) ** 2


def _balanced(seed: int) -> Iterator[tuple[Linear, float, Array]]:
    """Draw strongly balanced ones, with σ_x² and the singular values the layers share."""
    rng = np.random.default_rng(seed)
    for i, sizes in enumerate(SHAPES):
        values = 0.5 + rng.random(min(sizes))
        X = white(rng, sizes[0], 9, 0.5 + i / 2)
        net = Linear(balanced_weights(rng, sizes, values.tolist()), X, X).solved()
        yield net, (0.5 + i / 2) ** 2, values


def _bound() -> Verdict:
    gaps = []
    for net, var in _random(51):
        top = float(np.linalg.eigvalsh(net.hessian())[-1])
        terms = [
            np.linalg.norm(net.below(layer), 2) ** 2 * np.linalg.norm(net.above(layer), 2) ** 2
            for layer in range(len(net.weights))
        ]
        gaps.append(top / (var * float(sum(terms))) - 1)
    return judge(gaps, f"λ_max / bound between {1 + min(gaps):.3f} and {1 + max(gaps):.3f}")


def _trace() -> Verdict:
    gaps = []
    for net, var in _random(52):
        trace = float(np.trace(net.hessian()))
        terms = [
            np.sum(net.below(layer) ** 2) * np.sum(net.above(layer) ** 2)
            for layer in range(len(net.weights))
        ]
        gaps.append(abs(var * float(sum(terms)) / trace - 1))
    return judge(gaps, "against the trace of the dense Hessian, depths 2 to 4")


def _sums(net: Linear, values: Array) -> list[float]:
    depth = len(net.weights)
    first = np.concatenate([values, np.zeros(net.weights[0].shape[1] - len(values))])
    last = np.concatenate([values, np.zeros(net.weights[-1].shape[0] - len(values))])
    return [
        float(sum(i ** (2 * (depth - k)) * j ** (2 * (k - 1)) for k in range(1, depth + 1)))
        for i, j in product(last, first)
    ]


def _balanced_sum() -> Verdict:
    gaps = []
    for net, var, values in _balanced(53):
        gaps.append(padded_gap([var * value for value in _sums(net, values)], net.hessian()))
    return judge(gaps, "all eigenvalues of dense Hessians, i ≤ dL and j ≤ d0, zeros filled in")


def _balanced_quotient() -> Verdict:
    gaps, inside = [], []
    for net, var, values in _balanced(54):
        depth = len(net.weights)
        printed = [
            depth * i ** (2 * depth - 2)
            if i == j
            else (i ** (2 * depth) - j ** (2 * depth)) / (i**2 - j**2)
            for i, j in product(values, values)
        ]
        gaps.append(padded_gap([var * float(value) for value in printed], net.hessian()))
        ends = (net.weights[0].shape[1], net.weights[-1].shape[0])
        inside.append(ends == (len(values), len(values)))
    return judge(
        gaps, "dense Hessians, i and j over the non-zero singular values",
        "d0 = dL = min(d0, …, dL)", inside,
    )  # fmt: skip


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


def _kernel(net: Linear) -> Array:
    """Return J Jᵀ / n, samples first, from differences of outputs, linear in each parameter."""
    point = net.point
    columns = []
    for direction in np.eye(len(point)):
        outputs = []
        for moved in (point + direction, point - direction):
            start, value = 0, net.X
            for weight in net.weights:
                value = moved[start : start + weight.size].reshape(weight.shape) @ value
                start += weight.size
            outputs.append(value.T.ravel())
        columns.append((outputs[0] - outputs[1]) / 2)
    jacobian = np.array(columns).T
    return np.asarray(jacobian @ jacobian.T / net.X.shape[1])


def _kernel_vectors() -> Verdict:
    gaps = []
    for net, var in _shallow():
        kernel = _kernel(net)
        _, low, right = np.linalg.svd(net.weights[0])
        left, high, _ = np.linalg.svd(net.weights[1])
        for i, j in product(range(len(low)), range(len(high))):
            vector = np.kron(net.X.T @ right[i], left[:, j])
            value = var * (low[i] ** 2 + high[j] ** 2)
            error = np.linalg.norm(kernel @ vector - value * vector)
            gaps.append(float(error / (value * np.linalg.norm(vector))))
    return judge(gaps, "residuals with the tangent kernel from differences of outputs")


def _fitted(seed: int) -> Iterator[tuple[Linear, float, int]]:
    """Draw balanced solutions for one-hot labels, with σ_x and their depths."""
    rng = np.random.default_rng(seed)
    for depth, scale in ((2, 1.0), (3, 0.7), (4, 1.5), (1, 2.0)):
        labels = np.repeat([0, 1], (3 + depth, 2))
        Y = np.eye(2)[labels].T
        n = len(labels)
        # Whitened inputs that tell the labels: their rows span those of Y, and one more.
        rows = np.concatenate([Y, rng.normal(size=(1, n))])
        basis = np.linalg.qr(rows.T)[0].T
        X = scale * np.sqrt(n) * np.linalg.qr(rng.normal(size=(3, 3)))[0] @ basis
        left, values, right = np.linalg.svd(Y @ X.T / (n * scale**2), full_matrices=False)
        bases = [right.T, *[np.eye(2)] * (depth - 1), left]
        roots = values ** (1 / depth)
        weights = tuple(high * roots @ low.T for low, high in pairwise(bases))
        yield Linear(weights, X, Y), scale, depth


def _product() -> Verdict:
    gaps = []
    for net, var in _random(56):
        moments = net.Y @ net.X.T / (net.X.shape[1] * var)
        gaps.append(float(np.max(np.abs(moments - net.product))))
    return judge(gaps, "products of random layers of depth 2 to 4 that fit their targets")


def _singular_values() -> Verdict:
    gaps = []
    for net, scale, depth in _fitted(57):
        own = np.linalg.svd(net.weights[0], compute_uv=False)[:2] ** depth
        labels = np.linalg.svd(net.Y, compute_uv=False)
        gaps.append(float(np.max(np.abs(own - labels / (np.sqrt(net.X.shape[1]) * scale)))))
    return judge(gaps, "singular values by LAPACK, depths 1 to 4")


def _sharpness() -> Verdict:
    gaps = []
    for net, scale, depth in _fitted(58):
        share = float(np.max(np.mean(net.Y, axis=1)))
        printed = depth * scale ** (2 / depth) * share ** (1 - 1 / depth)
        top = float(np.linalg.eigvalsh(net.hessian())[-1])
        gaps.append(abs(printed / top - 1))
    return judge(gaps, "λ_max of dense Hessians at balanced solutions, depths 1 to 4")


def _proportions() -> Verdict:
    rng = np.random.default_rng(59)
    gaps = []
    for classes in (2, 3, 5):
        labels = np.concatenate([np.arange(classes), rng.integers(classes, size=17)])
        Y = np.eye(classes)[labels].T
        found = np.linalg.svd(Y, compute_uv=False) ** 2 / len(labels)
        counted = np.sort(np.bincount(labels))[::-1] / len(labels)
        gaps.append(float(np.max(np.abs(found - counted))))
    return judge(gaps, "singular values of one-hot labels against counts")


def _counts() -> Verdict:
    gaps, inside = [], []
    for net, _, values in _balanced(60):
        found, rank = len(nonzero(net.hessian())), len(values)
        gaps.append(float(max(0, found - rank**2)))
        ends = (net.weights[0].shape[1], net.weights[-1].shape[0])
        inside.append(ends == (rank, rank))
    return judge(
        gaps, "eigenvalues of dense Hessians that are not zero, less the printed number",
        "d0 = dL = min(d0, …, dL)", inside,
    )  # fmt: skip


CLAIMS = (
    Claim("002-eq6", "002 eq 6", "λ_max is at most σ_x² Σ ‖P_ℓ‖²‖S_ℓ‖²", _bound),
    Claim("002-eq7", "002 eq 7", "the trace is σ_x² Σ ‖P_ℓ‖_F²‖S_ℓ‖_F²", _trace),
    Claim(
        "002-eq9a", "002 eq 9a",
        "balanced layers have the eigenvalues σ_x² Σ_ℓ s_i^{2(L−ℓ)} s_j^{2(ℓ−1)}",
        _balanced_sum,
    ),
    Claim(
        "002-eq9b", "002 eq 9b",
        "they are quotients of differences, or L s^{2(L−1)}, of non-zero singular values",
        _balanced_quotient,
    ),
    Claim(
        "002-counts", "002 §3",
        "at most min(d0, …, dL)² eigenvalues are not zero",
        _counts,
    ),
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
        "002-eq12", "002 eq 12",
        "at zero loss with white data the layers' product is YXᵀ/nσ_x²",
        _product,
    ),
    Claim(
        "002-eq13", "002 eq 13",
        "at balanced solutions s_i^L = σ_i(Y)/√n σ_x",
        _singular_values,
    ),
    Claim(
        "002-labels", "002 §4",
        "σ_i²(Y)/n of one-hot labels are the classes' proportions",
        _proportions,
    ),
    Claim(
        "002-eq14", "002 eq 14",
        "the largest class alone tells the sharpness, λ_max = L σ_x^{2/L} α_max^{1−1/L}",
        _sharpness,
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
)  # fmt: skip
