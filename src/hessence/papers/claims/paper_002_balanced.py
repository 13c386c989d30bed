"""Claims of paper 002, section 3: layers that are balanced.

The Gauss–Newton matrix is the Hessian at zero loss, so the dense Hessian of a network that has its
own predictions for targets stands for both.
"""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np

from hessence.papers.claims.dense_hessians import Array
from hessence.papers.claims.linear_networks import (
    Linear,
    balanced_draws,
    balanced_weights,
    nonzero,
    padded_gap,
    tangent_kernel,
)
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.trained_networks import Activation, NetworkBatch, batched


def _shared() -> Verdict:
    rng = np.random.default_rng(205)
    gaps = []
    for sizes in ((4, 2, 3), (2, 3, 4, 4), (3, 3, 3)):
        weights = [rng.normal(size=(sizes[1], sizes[0]))]
        for size in sizes[2:]:
            # W_ℓᵀ = QR has RᵀR = W_ℓW_ℓᵀ, and so has R behind any columns that are orthonormal.
            root = np.linalg.qr(weights[-1].T)[1]
            turn = np.linalg.qr(rng.normal(size=(size, size)))[0]
            weights.append(turn[:, : len(root)] @ root)
        for low, high in pairwise(weights):
            gaps.append(float(np.max(np.abs(low @ low.T - high.T @ high))))
            one, two = (np.linalg.svd(each, compute_uv=False) for each in (low, high))
            longest = max(len(one), len(two))
            one, two = (np.pad(each, (0, longest - len(each))) for each in (one, two))
            gaps.append(float(np.max(np.abs(one - two))))
    return judge(gaps, "singular values by LAPACK of layers that are drawn to be balanced, no more")


def alignment(*, printed: bool) -> list[float]:
    """Return how far one layer's singular vectors are from the next one's, as printed or not."""
    gaps = []
    for net, _, values in balanced_draws(206):
        rank = len(values)
        for low, high in pairwise(net.weights):
            left, _, right = np.linalg.svd(low)
            after, _, before = np.linalg.svd(high)
            one = right[:rank].T if printed else left[:, :rank]
            other = after[:, :rank] if printed else before[:rank].T
            if len(one) != len(other):
                gaps.append(1.0)
                continue
            gaps.append(float(np.max(np.abs(np.abs(one.T @ other) - np.eye(rank)))))
    return gaps


def _flow() -> Verdict:
    rng = np.random.default_rng(209)
    gaps, inside = [], []
    activations: tuple[Activation, ...] = ("linear", "tanh")
    for activation in activations:
        for sizes in ((3, 3, 2), (2, 3, 3, 2)):
            weights = balanced_weights(rng, sizes, (0.9, 0.6))
            X = rng.normal(size=(sizes[0], 6))
            batch = NetworkBatch(batched([weights]), X, rng.normal(size=(sizes[-1], 6)), activation)
            layers = [weight[0] for weight in batch.flow(0.02, 100).weights]
            gaps.append(max(float(np.max(np.abs(low @ low.T - high.T @ high)))
                            for low, high in pairwise(layers)))  # fmt: skip
            inside.append(activation == "linear")
    return judge(
        gaps, "W_ℓW_ℓᵀ − W_{ℓ+1}ᵀW_{ℓ+1} after 100 steps of order four along the gradient's flow",
        "there is no activation between the layers", inside, tolerance=1e-7,
    )  # fmt: skip


def _powers() -> Verdict:
    gaps = []
    for net, _, _ in balanced_draws(207):
        first, last, depth = net.weights[0], net.weights[-1], len(net.weights)
        printed = sum(
            np.kron(
                net.X.T @ np.linalg.matrix_power(first.T @ first, k - 1) @ net.X / net.X.shape[1],
                np.linalg.matrix_power(last @ last.T, depth - k),
            )
            for k in range(1, depth + 1)
        )
        kernel = tangent_kernel(net)
        gaps.append(float(np.max(np.abs(printed - kernel)) / np.max(np.abs(kernel))))
    return judge(gaps, "J Jᵀ/n of balanced layers by differences of outputs")


def _deep_vectors() -> Verdict:
    gaps = []
    for net, var, values in balanced_draws(208):
        kernel, depth = tangent_kernel(net), len(net.weights)
        right = np.linalg.svd(net.weights[0])[2]
        left = np.linalg.svd(net.weights[-1])[0]
        kept = np.sort(values)[::-1]
        for i, j in product(range(len(kept)), repeat=2):
            vector = np.kron(net.X.T @ right[i], left[:, j])
            value = var * sum(kept[j] ** (2 * (depth - k)) * kept[i] ** (2 * (k - 1))
                              for k in range(1, depth + 1))  # fmt: skip
            error = np.linalg.norm(kernel @ vector - value * vector)
            gaps.append(float(error / (value * np.linalg.norm(vector))))
    return judge(gaps, "residuals with the tangent kernel of balanced layers from differences")


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
    for net, var, values in balanced_draws(53):
        gaps.append(padded_gap([var * value for value in _sums(net, values)], net.hessian()))
    return judge(gaps, "all eigenvalues of dense Hessians, i ≤ dL and j ≤ d0, zeros filled in")


def _balanced_quotient() -> Verdict:
    gaps, inside = [], []
    for net, var, values in balanced_draws(54):
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


def _counts() -> Verdict:
    gaps, inside = [], []
    for net, _, values in balanced_draws(60):
        found, rank = len(nonzero(net.hessian())), len(values)
        gaps.append(float(max(0, found - rank**2)))
        ends = (net.weights[0].shape[1], net.weights[-1].shape[0])
        inside.append(ends == (rank, rank))
    return judge(
        gaps, "eigenvalues of dense Hessians that are not zero, less the printed number",
        "d0 = dL = min(d0, …, dL)", inside,
    )  # fmt: skip


CLAIMS = (
    Claim(
        "002-shared", "002 §3, assumption 3",
        "balanced layers share their non-zero singular values",
        _shared,
    ),
    Claim(
        "002-flow", "002 §3",
        "layers that are balanced at first stay so along the flow of the gradient",
        _flow,
    ),
    Claim(
        "002-eq8", "002 eq 8",
        "for balanced layers P_ℓᵀP_ℓ and S_ℓS_ℓᵀ in the kernel are powers of W_1ᵀW_1 and W_LW_Lᵀ",
        _powers,
    ),
    Claim(
        "002-vectors", "002 §3",
        "the kernel's eigenvectors are Xᵀv_i ⊗ u_j",
        _deep_vectors,
    ),
    Claim(
        "002-eq9a", "002 eq 9a",
        "balanced layers have the eigenvalues σ_x² Σ_ℓ s_i^{2(L−ℓ)} s_j^{2(ℓ−1)}",
        _balanced_sum,
    ),
    Claim(
        "002-eq9b", "002 eq 9b",
        "eigenvalues of balanced layers are quotients of differences, or L s^{2(L−1)}, of non-zero "
        "singular values",
        _balanced_quotient,
    ),
    Claim(
        "002-counts", "002 §3",
        "at most min(d0, …, dL)² eigenvalues are not zero",
        _counts,
    ),
)  # fmt: skip
