"""Claims of paper 002, section 4: how the labels set the spectrum of balanced solutions.

The Gauss–Newton matrix is the Hessian at zero loss, so the dense Hessian of a solution stands for
both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from hessence.papers.claims.dense_hessians import Array
from hessence.papers.claims.linear_networks import Linear, balanced_weights, solved_draws
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.trained_networks import NetworkBatch, batched


def _solution(
    counts: Sequence[int], depth: int, scale: float = 1.0, seed: int = 0, copies: int = 1
) -> Linear:
    """Draw a balanced solution for so many samples of each class, on whitened inputs."""
    rng = np.random.default_rng((57, seed))
    X, Y = labelled(rng, counts, scale, copies)
    left, values, right = np.linalg.svd(Y @ X.T / (X.shape[1] * scale**2), full_matrices=False)
    bases = [right.T, *[np.eye(len(counts))] * (depth - 1), left]
    roots = values ** (1 / depth)
    return Linear(tuple(high * roots @ low.T for low, high in pairwise(bases)), X, Y)


def labelled(
    rng: np.random.Generator, counts: Sequence[int], scale: float = 1.0, copies: int = 1
) -> tuple[Array, Array]:
    """Draw whitened inputs that tell the labels linearly, and the labels."""
    Y = np.eye(len(counts))[np.repeat(np.arange(len(counts)), counts)].T
    Y = np.tile(Y, (1, copies))
    n = Y.shape[1]
    # The rows of X span those of Y, and one more where there is room.
    rows = np.concatenate([Y, rng.normal(size=(1, n))])[:n]
    basis = np.linalg.qr(rows.T)[0].T
    turn = np.linalg.qr(rng.normal(size=(len(basis),) * 2))[0]
    return np.asarray(scale * np.sqrt(n) * turn @ basis), Y


def _fitted() -> Iterator[tuple[Linear, float, int]]:
    """Give balanced solutions for one-hot labels, with σ_x and their depths."""
    for depth, scale in ((2, 1.0), (3, 0.7), (4, 1.5), (1, 2.0)):
        yield _solution((3 + depth, 2), depth, scale), scale, depth


def _top(net: Linear) -> float:
    return float(np.linalg.eigvalsh(net.hessian())[-1])


def _product() -> Verdict:
    gaps = []
    for net, var in solved_draws(56):
        moments = net.Y @ net.X.T / (net.X.shape[1] * var)
        gaps.append(float(np.max(np.abs(moments - net.product))))
    return judge(gaps, "products of random layers of depth 2 to 4 that fit their targets")


def _singular_values() -> Verdict:
    rng = np.random.default_rng(62)
    gaps, left = [], []
    for depth, scale in ((1, 2.0), (2, 1.0), (3, 0.7), (4, 1.5)):
        X, Y = labelled(rng, (5, 3), scale)
        sizes = (len(X), *[3] * (depth - 1), 2)
        start = balanced_weights(rng, sizes, (0.6 + 0.3 * rng.random(2)).tolist())
        # The flow keeps balance, and knows nothing of the solution that it comes to.
        end = NetworkBatch(batched([start]), X, Y).flow(0.04, 3200)
        left.append(float(end.losses()[0]))
        labels = np.linalg.svd(Y, compute_uv=False) / (np.sqrt(X.shape[1]) * scale)
        for weight in end.weights:
            own = np.linalg.svd(weight[0], compute_uv=False)[:2] ** depth
            gaps.append(float(np.max(np.abs(own - labels))))
    return judge(
        gaps, "singular values by LAPACK of every layer of balanced networks, depths 1 to 4, that "
        f"followed the flow of the gradient to a loss of {max(left):.0e} or less", tolerance=1e-6,
    )  # fmt: skip


def _sharpness() -> Verdict:
    gaps = []
    for net, scale, depth in _fitted():
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


def _any_number() -> Verdict:
    gaps = []
    for depth in (2, 3):
        tops = [_top(_solution((3, 1), depth, seed=n, copies=n)) for n in (1, 2, 5)]
        gaps += [abs(top / tops[0] - 1) for top in tops[1:]]
    return judge(gaps, "λ_max of dense Hessians at balanced solutions for 4, 8 and 20 samples")


def _larger_share() -> Verdict:
    gaps = []
    for depth in (1, 2, 3):
        tops = [_top(_solution((6 - k, k), depth)) for k in (3, 2, 1)]
        gaps += [before / after - 1 for before, after in pairwise(tops)]
    return judge(
        [gap + 1e-6 for gap in gaps],
        "λ_max of dense Hessians at balanced solutions for shares of 1/2, 2/3 and 5/6, depths 1 "
        "to 3: each over the next, less 1",
        "there are two layers at least", [False] * 2 + [True] * 4,
    )  # fmt: skip


def _deeper() -> Verdict:
    gaps, inside, told = [], [], []
    for counts, scale in (((3, 3), 1.0), ((2, 2, 2), 1.0), ((1,) * 6, 1.0), ((3, 3), 3.0)):
        tops = [_top(_solution(counts, depth, scale)) for depth in (1, 2, 3)]
        gaps += [low / high - 1 + 1e-6 for low, high in pairwise(tops)]
        inside += [max(counts) / sum(counts) > 1 / 4 and scale == 1] * 2
        told.append(", ".join(f"{top:.2f}" for top in tops))
    return judge(
        gaps,
        "λ_max of dense Hessians at balanced solutions of depth 1, 2, 3 with largest shares of "
        f"1/2, 1/3, 1/6, and of 1/2 with σ_x = 3: {'; '.join(told)}",
        "α_max > 1/4 and σ_x = 1", inside,
    )  # fmt: skip


CLAIMS = (
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
        "002-samples", "002 §4",
        "at fixed shares of the classes λ_max does not depend on the number of samples",
        _any_number,
    ),
    Claim(
        "002-largest-class", "002 §4",
        "the larger the share of the largest class, the larger λ_max of the solution",
        _larger_share, measured=True,
    ),
    Claim(
        "002-depth", "002 §4, Fig 1",
        "the deeper the network, the larger λ_max of its balanced solution",
        _deeper,
    ),
)  # fmt: skip
