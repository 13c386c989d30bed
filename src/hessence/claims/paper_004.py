"""Claims of paper 004: depth separates the spectrum into two clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from hessence.claims.checking import Array, gradient
from hessence.claims.linear_networks import Linear, balanced_weights, padded_gap, white
from hessence.claims.protocol import Claim, Verdict, judge

RANK = 2


def _start(
    seed: int, depth: int, values: Sequence[float], target: float = 1.0, *, low_rank: bool = False
) -> Linear:
    """Draw aligned layers 4-4-…-3 and a target of rank two in their directions.

    The inputs are white or, if asked, white in the two directions of the target and zero elsewhere.
    """
    rng = np.random.default_rng(seed)
    weights = balanced_weights(rng, (*[4] * depth, 3), values)
    left, right = weights[-1] @ weights[-1].T, weights[0].T @ weights[0]
    u, v = np.linalg.eigh(left)[1][:, ::-1], np.linalg.eigh(right)[1][:, ::-1]
    product = weights[0]
    for weight in weights[1:]:
        product = weight @ product
    signs = np.sign(np.sum(u[:, :RANK] * (product @ v[:, :RANK]), axis=0))
    mapping = target * (u[:, :RANK] * signs) @ v[:, :RANK].T
    X = white(rng, 4, 6)
    if low_rank:
        X = v[:, :RANK] @ v[:, :RANK].T @ X
    return Linear(weights, X, mapping @ X)


def _descend(net: Linear, rate: float, steps: int) -> Linear:
    point = net.point
    for _ in range(steps):
        point = point - rate * gradient(net.loss, point)
    weights, start = [], 0
    for weight in net.weights:
        weights.append(point[start : start + weight.size].reshape(weight.shape))
        start += weight.size
    return replace(net, weights=tuple(weights))


def _largest(net: Linear, count: int) -> Array:
    return np.array([np.linalg.svd(weight, compute_uv=False)[:count] for weight in net.weights])


def _shared() -> Verdict:
    gaps = []
    for depth in (2, 3, 4):
        begun = _start(71, depth, (0.9, 0.7))
        ended = _descend(begun, 0.05, 30)
        values = np.array([0.9, 0.7])
        for _ in range(30):
            values = values - 0.05 * (values**depth - 1) * values ** (depth - 1)
        gaps.append(float(np.max(np.abs(_largest(ended, RANK) - values))))
        for before, after in zip(begun.weights, ended.weights, strict=True):
            # The singular vectors stay, so that both products of the two are symmetric.
            mixed = (before @ after.T, before.T @ after)
            gaps += [float(np.max(np.abs(each - each.T))) for each in mixed]
    return judge(gaps, "30 steps of descent on all weights, depths 2 to 4, against the recursion")


def _rest() -> tuple[list[float], list[float], list[bool]]:
    """Return how far singular values beyond the target's rank move, and how much is left."""
    moved, left, low = [], [], []
    for depth, low_rank in ((2, False), (3, False), (2, True), (3, True)):
        begun = _start(72, depth, (0.9, 0.8, 0.5), low_rank=low_rank)
        ended = _descend(begun, 0.1, 300)
        value = float(_largest(ended, 3)[:, 2].max())
        moved.append(abs(value - 0.5))
        left.append(value)
        low.append(low_rank)
    return moved, left, low


def _unchanged() -> Verdict:
    moved, _, low = _rest()
    return judge(
        moved, "change of the third singular value for a target of rank two, 300 steps",
        "the inputs have the target's rank", low,
    )  # fmt: skip


def _vanishing() -> Verdict:
    _, left, low = _rest()
    return judge(
        [value - 0.4 for value in left],
        f"third singular value after 300 steps from 0.5: {left[0]:.3f} and {left[1]:.3f} on white "
        f"inputs, {left[2]:.3f} and {left[3]:.3f} on inputs of the target's rank",
        "the inputs have full rank", [not is_low for is_low in low],
    )  # fmt: skip


def _functional() -> Verdict:
    gaps, ratios = [], []
    for depth in (2, 3, 4):
        begun = _start(75, depth, (0.8, 0.9))
        found = []
        for steps in (0, 5, 10, 20, 40):
            net = _descend(begun, 0.1, steps)
            norm = float(np.linalg.norm(net.hessian() - net.solved().hessian(), 2))
            found.append(norm / float(np.sqrt(net.loss(net.point[None])[0])))
        ratios.append(max(found))
        # On their way singular values stay below 1, the target's: fewer than L² pairs of layers,
        # each with a block of norm ‖Ω‖ at most, and ‖Ω‖ ≤ √(2ℓ) on white data.
        gaps.append(max(found) / (depth * (depth - 1) * np.sqrt(2)) - 1)
    return judge(
        gaps,
        "norm of H less its Gauss–Newton part over √ℓ, along 40 steps: at most "
        + ", ".join(f"{ratio:.2f}" for ratio in ratios)
        + " for depths 2, 3, 4",
    )


def _linear_rate() -> Verdict:
    gaps, rates = [], []
    for depth in (2, 3, 4):
        begun = _start(76, depth, (0.8, 0.9))
        losses = []
        for steps in (0, 10, 20, 30):
            net = _descend(begun, 0.1, steps)
            losses.append(float(net.loss(net.point[None])[0]))
        # Both values grow towards 1, so the smallest on the way is the first, and a step shrinks
        # the distance of their products from 1 by this factor at least, before squaring.
        factor = (1 - 0.1 * depth * 0.8 ** (2 * depth - 2)) ** 20
        drops = [after / before for before, after in pairwise(losses)]
        rates.append(f"{max(drops):.1e} of {factor:.1e}")
        gaps.append(max(drops) / factor - 1)
    return judge(gaps, f"what ten steps leave of the loss, at most: {', '.join(rates)}")


def _clusters() -> Verdict:
    gaps = []
    for depth in (2, 3, 4):
        net = _descend(_start(73, depth, (0.97, 1.02)), 0.1, 60)
        s = _largest(net, RANK)
        least, most = float(s.min()), float(s.max())
        values = np.linalg.eigvalsh(net.hessian())[::-1]
        # Weyl: what the loss still adds to the Gauss–Newton matrix.
        slack = float(np.linalg.norm(net.hessian() - net.solved().hessian(), 2))
        bulk = RANK * (4 + 3 - 2 * RANK)
        power = 2 * depth - 2
        top, middle = values[: RANK**2], values[RANK**2 : RANK**2 + bulk]
        gaps += [
            float(top.max()) - depth * most**power - slack,
            depth * least**power - float(top.min()) - slack,
            float(middle.max()) - most**power - slack,
            least**power - float(middle.min()) - slack,
            float(np.max(np.abs(values[RANK**2 + bulk :]))) - slack,
        ]
    return judge(gaps, "dense eigenvalues after 60 steps of descent, depths 2 to 4, against "
                 "L s^{2L−2} and s^{2L−2} with the distance of Weyl's inequality")  # fmt: skip


def _uniform() -> Verdict:
    gaps, ratios = [], []
    for depth in (2, 3, 4):
        s = 1.2
        net = _start(74, depth, (s, s)).solved()
        bulk = s ** (2 * depth - 2)
        values = [depth * bulk] * RANK**2 + [bulk] * (RANK * (4 + 3 - 2 * RANK))
        hessian = net.hessian()
        gaps.append(padded_gap(values, hessian))
        found = np.linalg.eigvalsh(hessian)[::-1]
        ratios.append(f"{found[0] / found[RANK**2]:.6f}")
    return judge(gaps, f"all dense eigenvalues at zero loss; ratios {', '.join(ratios)}")


CLAIMS = (
    Claim(
        "004-L3.4", "004 Lemma 3.4, eq 6",
        "descent keeps aligned layers aligned, and one recursion moves their singular values",
        _shared,
    ),
    Claim(
        "004-L3.4-rest", "004 Lemma 3.4",
        "singular values beyond the target's rank stay at their initial values",
        _unchanged,
    ),
    Claim(
        "004-LA.3", "004 Lemma A.3",
        "singular values beyond the target's rank decrease towards 0",
        _vanishing,
    ),
    Claim(
        "004-LA.6", "004 Lemma A.6",
        "the Hessian less its Gauss–Newton part is bounded by a constant times the loss's root",
        _functional,
    ),
    Claim(
        "004-LA.7", "004 Lemma A.7",
        "the loss falls exponentially, at a rate set by the smallest singular value on the way",
        _linear_rate,
    ),
    Claim(
        "004-T3.5", "004 Theorem 3.5",
        "r² eigenvalues are about L s^{2L−2}, r(d0 + dL − 2r) about s^{2L−2}, the others vanish",
        _clusters,
    ),
    Claim(
        "004-C3.6", "004 Corollary 3.6",
        "with equal singular values there are two non-zero eigenvalues, and their ratio is L",
        _uniform,
    ),
)  # fmt: skip
