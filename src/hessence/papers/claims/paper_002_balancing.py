"""Claims of paper 002, section 3: what brings layers into balance that do not start so."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from hessence.papers.claims.dense_hessians import Array
from hessence.papers.claims.linear_networks import random_weights, white
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.trained_networks import NetworkBatch, batched

SHAPES = ((3, 4, 3), (3, 4, 4, 2))
NETWORKS = 6


def _drawn(seed: int, sizes: tuple[int, ...]) -> NetworkBatch:
    """Draw networks without balance, on white inputs with targets that they can reach."""
    rng = np.random.default_rng((230, seed, len(sizes)))
    X = white(rng, sizes[0], 8)
    nets = [random_weights(rng, sizes) for _ in range(NETWORKS)]
    return NetworkBatch(batched(nets), X, rng.normal(size=(sizes[-1], sizes[0])) @ X)


def _imbalance(batch: NetworkBatch) -> Array:
    """Return the Frobenius norm of all W_ℓW_ℓᵀ − W_{ℓ+1}ᵀW_{ℓ+1}, of every network."""
    squares = [
        np.sum((low @ np.swapaxes(low, 1, 2) - np.swapaxes(high, 1, 2) @ high) ** 2, axis=(1, 2))
        for low, high in pairwise(batch.weights)
    ]
    return np.asarray(np.sqrt(np.sum(squares, axis=0)))


def _decayed() -> Verdict:
    gaps, told = [], []
    for decay in (0.05, 0.2):
        for sizes in SHAPES:
            batch = _drawn(0, sizes)
            seen = [_imbalance(batch)]
            for _ in range(4):
                for _ in range(500):
                    pairs = zip(batch.weights, batch.gradients(), strict=True)
                    moved = tuple(w - 0.01 * (g + decay * w) for w, g in pairs)
                    batch = replace(batch, weights=moved)
                seen.append(_imbalance(batch))
            gaps += [float((after / before).max()) - 1 for before, after in pairwise(seen)]
            # The flow shrinks what is out of balance by e^{−2λt}, whatever the data.
            told.append(f"{np.median(seen[-1] / seen[0]):.0e} beside {np.exp(-40 * decay):.0e}")
    return judge(
        gaps,
        "what is out of balance, looked at every 500 steps of descent, falls in every network; "
        "what is left in the median, beside e^(−2λt), for weight decay λ = 0.05 and 0.2, depths 2 "
        f"and 3 each: {', '.join(told)}",
    )


def _at_the_edge() -> Verdict:
    gaps, inside, told = [], [], []
    for share in (0.2, 1.15):
        for sizes in SHAPES:
            start = _drawn(1, sizes)
            slow = start.descend(0.02, 3000)
            # Beyond 2/λ_max, descent cannot stay at the solution that a slow one finds.
            rates = (share * 2 / slow.sharpness())[:, None, None]
            now = start
            for _ in range(3000):
                pairs = zip(now.weights, now.gradients(), strict=True)
                now = replace(now, weights=tuple(w - rates * g for w, g in pairs))
            left = _imbalance(now) / _imbalance(slow)
            gaps += [float(value) - 0.96 for value in left]
            inside += [share > 1] * NETWORKS
            told.append(f"{np.median(left):.2f} ({share:g}, depth {len(sizes) - 1})")
    return judge(
        gaps,
        "what is out of balance at the end, over what slow descent leaves, in the median, by the "
        f"share of 2/λ_max of slow descent's solution that the rate is: {', '.join(told)}; a loss "
        "of four per cent is asked for",
        "the rate is beyond 2/λ_max of the solution that slow descent finds", inside,
    )  # fmt: skip


CLAIMS = (
    Claim(
        "002-weight-decay", "002 §3, after assumption 3",
        "weight decay brings layers into balance that do not start so",
        _decayed,
    ),
    Claim(
        "002-edge-balances", "002 §3, after assumption 3",
        "descent at the edge of stability brings layers into balance",
        _at_the_edge,
    ),
)  # fmt: skip
