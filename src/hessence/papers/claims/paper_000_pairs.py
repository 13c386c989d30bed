"""Claims of paper 000, section 4.1: two eigenvalues that sum up to a fraction of the trace."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hessence as hs
from hessence.papers.claims.dense_hessians import Array
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.scalar_networks import orthogonal_draw
from hessence.papers.claims.trained_networks import Activation, NetworkBatch, batched

SIZES = (3, 5, 8)
WIDTH = 10
NETWORKS = 8
OTHERS = (0.8, 0.87, 0.93, 1.07, 1.13, 1.2)
CONTROLLED = (
    "at first a pair within a mean eigenvalue of tr/D was enough, which dense spectra have by "
    "chance, and a verdict of its own asked whether other targets are missed by ten times as much; "
    "now the pair counts only if they are missed by twice as much"
)


def pairs_near(values: NDArray[Any], target: float) -> tuple[float, float]:
    """Return how far the closest and the second closest sum of two values is from a target.

    Examples
    --------
    >>> pairs_near(np.array([1.0, 2.0, 4.0]), 5.5)
    (0.5, 0.5)
    """
    one, two = np.triu_indices(len(values), 1)
    best, second = np.partition(np.abs(values[one] + values[two] - target), 1)[:2]
    return float(best), float(second)


def hypothesis() -> Verdict:
    """Check the sum of a pair against the fraction of the trace."""
    rng = np.random.default_rng(44)
    gaps: list[float] = []
    inside: list[bool] = []
    for inputs in (1, 2, 3, 4, 3, 4):
        net = orthogonal_draw(rng, inputs + 1, inputs)
        is_orthogonal = len(gaps) < 4
        if not is_orthogonal:
            net = type(net)(net.w, rng.normal(size=net.V.shape), net.x, net.y)
        values = np.linalg.eigvalsh(net.hessian())
        trace = float(values.sum())
        nearest = min(abs(a + b - trace / inputs) for a, b in combinations(values, 2))
        gaps.append(float(nearest / trace))
        inside.append(is_orthogonal)
    return judge(
        gaps,
        "a pair of dense eigenvalues that sums up to tr/D, D = 1 to 4, white data, E[yx] = 0",
        "V has orthogonal columns of one length",
        inside,
    )


def other_fraction() -> tuple[float, float]:
    """Return how far the closest pair is from tr/D and from tr/m, as shares of the trace."""
    inputs, width = 1, 3
    net = orthogonal_draw(np.random.default_rng(151), width, inputs)
    values = np.linalg.eigvalsh(net.hessian())
    trace = float(values.sum())
    one, two = (pairs_near(values, trace / by)[0] / trace for by in (inputs, width))
    return one, two


def _best_pair() -> Verdict:
    rng = np.random.default_rng(152)
    gaps, nearest, apart = [], [], []
    for inputs in SIZES:
        for _ in range(3):
            net = orthogonal_draw(rng, WIDTH, inputs)
            values = np.linalg.eigvalsh(net.hessian())
            best, second = pairs_near(values, float(values.sum()) / inputs)
            mean = float(values.mean())
            nearest.append(best / mean)
            apart.append(second / max(best, 1e-15 * mean))
            gaps.append(max(best / mean - 1e-2, 100 - apart[-1]))
    return judge(
        gaps,
        f"dense eigenvalues, D = 3 to 8: the closest pair is off by {max(nearest):.0e} mean "
        f"eigenvalues at most, the second closest at least {min(apart):.0e} times as far",
    )


@cache
def _spectra(depth: int, activation: Activation, size: int) -> Array:
    """Return spectra of networks as PyTorch draws them, on standardised data."""
    rng = np.random.default_rng((153, depth, size, activation == "relu"))
    data = rng.normal(size=(size + 1, 4 * WIDTH))
    data = (data - data.mean(axis=1, keepdims=True)) / data.std(axis=1, keepdims=True)
    dims = (size, *[WIDTH if depth == 2 else 6] * (depth - 1), 1)
    nets = [hs.init.standard(dims, rng).weights for _ in range(NETWORKS)]
    batch = NetworkBatch(batched(nets), data[:size], data[size:], activation)
    return np.asarray(np.linalg.eigvalsh(batch.hessians()))


def _looked_at(depth: int, activation: Activation) -> Iterator[tuple[float, float, float]]:
    """Give the closest pair in mean eigenvalues, then the second and other targets beside it."""
    for size in SIZES:
        rows = []
        for values in _spectra(depth, activation, size):
            target, mean = float(values.sum()) / size, float(values.mean())
            best, second = pairs_near(values, target)
            others = [pairs_near(values, factor * target)[0] for factor in OTHERS]
            rows.append((best / mean, second / best, float(np.median(others)) / best))
        yield tuple(np.median(rows, axis=0).tolist())


KINDS: tuple[tuple[int, Activation], ...] = ((2, "linear"), (4, "linear"), (2, "relu"), (4, "relu"))


def _close(depth: int, activation: Activation) -> Verdict:
    looked = list(_looked_at(depth, activation))
    # Where eigenvalues are dense, some pair is close to any target. The closest one says something
    # of tr/D if it is at least twice as close as to targets nearby.
    return judge(
        [max(best - 1, 2 - control) for best, _, control in looked],
        "the closest pair is off tr/D by "
        + ", ".join(f"{best:.2g}" for best, _, _ in looked)
        + " mean eigenvalues for D = 3, 5, 8, medians of dense spectra; from targets within a "
        "fifth of tr/D, as a control, the closest pairs are "
        + ", ".join(f"{control:.2g}" for _, _, control in looked)
        + " times as far",
    )


def _two_linear() -> Verdict:
    return _close(2, "linear")


def _four_linear() -> Verdict:
    return _close(4, "linear")


def _two_relu() -> Verdict:
    return _close(2, "relu")


def _four_relu() -> Verdict:
    return _close(4, "relu")


def _no_best() -> Verdict:
    looked = [each for kind in KINDS for each in _looked_at(*kind)]
    return judge(
        [second - 100 for _, second, _ in looked],
        "the second closest pair is "
        f"{min(second for _, second, _ in looked):.1f} to "
        f"{max(second for _, second, _ in looked):.1f} times as far, medians for each D and kind",
    )


def _owed() -> Verdict:
    looked = [other for kind in KINDS for _, _, other in _looked_at(*kind)]
    return judge(
        [2 - other for other in looked],
        "six other targets within 20% of tr/D are missed by "
        f"{min(looked):.2f} to {max(looked):.2f} times as much, {np.median(looked):.2f} in the "
        "median over D and kinds of networks; a pair of its own would make it far more",
    )


CLAIMS = (
    Claim(
        "000-hypothesis", "000 §4.1",
        "for D inputs there is a pair of eigenvalues that sums up to 1/D of the trace",
        hypothesis,
    ),
    Claim(
        "000-best-pair", "000 §4.1, Fig 3a",
        "with orthogonal weights on decorrelated data, one pair is closer to tr/D than the next "
        "and than a mean eigenvalue by orders of magnitude",
        _best_pair, measured=True,
    ),
    Claim(
        "000-pair-two-linear", "000 §4.1, Fig 3b",
        "with standard weights and data, two linear layers with three inputs or more have a pair "
        "within a mean eigenvalue of tr/D, closer than to other targets nearby",
        _two_linear, measured=True, revised=CONTROLLED,
    ),
    Claim(
        "000-pair-mixed", "000 Fig 10",
        "with orthonormal weights on standardised data, and with standard weights on decorrelated "
        "data, two linear layers have a pair within a mean eigenvalue of tr/D, closer than to "
        "other targets nearby",
        None, measured=True,
    ),
    Claim(
        "000-pair-four-linear", "000 §4.1, Fig 11",
        "with standard weights and data, four linear layers have a pair within a mean "
        "eigenvalue of tr/D, closer than to other targets nearby",
        _four_linear, measured=True, revised=CONTROLLED,
    ),
    Claim(
        "000-pair-two-relu", "000 §4.1, Fig 12",
        "with standard weights and data, two layers with ReLU have a pair within a mean "
        "eigenvalue of tr/D, closer than to other targets nearby",
        _two_relu, measured=True, revised=CONTROLLED,
    ),
    Claim(
        "000-pair-four-relu", "000 §4.1, Fig 13",
        "with standard weights and data, four layers with ReLU have a pair within a mean "
        "eigenvalue of tr/D, closer than to other targets nearby",
        _four_relu, measured=True, revised=CONTROLLED,
    ),
    Claim(
        "000-no-best-pair", "000 §4.1",
        "beyond the assumptions the second closest pair is close too",
        _no_best, measured=True,
    ),
    Claim(
        "000-pair-persists", "000 §1 and §4.1",
        "the pair persists beyond the assumptions: two eigenvalues come at least twice as close to "
        "tr/D as to other targets nearby",
        _owed, measured=True,
    ),
)  # fmt: skip
