"""Claims of paper 000, section 4.3: Gauss–Newton and attention sinks in language models.

The models have a hundred parameters or two, learn a Markov chain of five tokens and have no
normalisations; what a model of a hundred million parameters does, they cannot tell.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from hessence.claims.dense_hessians import Array
from hessence.claims.protocol import Claim, Verdict, judge
from hessence.claims.tiny_transformers import Block, draw

MARKS = (160, 320)
SEEDS = 8


@cache
def _errors(first: Block) -> tuple[Array, Array]:
    """Return |λ_max(H) − λ_max(GGN)| / λ_max(H) and the losses, (seeds, marks)."""
    errors, losses = [], []
    for seed in range(SEEDS):
        net, done = draw(seed, (first, "layers")), 0
        for mark in MARKS:
            net, done = net.descend(0.1, mark - done), mark
            top, ggn = net.sharpness(), net.gauss_newton()
            errors.append(abs(top - ggn) / top)
            losses.append(net.loss())
    return np.reshape(errors, (SEEDS, -1)), np.reshape(losses, (SEEDS, -1))


def _worse_with_attention() -> Verdict:
    (with_it, losses), (without, others) = _errors("attention"), _errors("layers")
    middles = [np.median(each, axis=0) for each in (with_it, without)]
    told = [
        f"{one:.1%} and {two:.1%} at step {mark} (losses {loss:.2f}, {other:.2f})"
        for one, two, mark, loss, other in zip(
            *middles, MARKS, losses.mean(axis=0), others.mean(axis=0), strict=True
        )
    ]
    return judge(
        (middles[1] - middles[0]).tolist(),
        "error of λ_max by Gauss–Newton with attention and without, 117 parameters each, medians "
        f"of {SEEDS}: {', '.join(told)}",
    )


def _largest_at_first() -> Verdict:
    gaps, told = [], []
    kinds: tuple[Block, ...] = ("attention", "layers")
    for first in kinds:
        starts = [draw(seed, (first, "layers")) for seed in range(SEEDS)]
        tops = [(net.sharpness(), net.gauss_newton()) for net in starts]
        initial = float(np.median([abs(top - ggn) / top for top, ggn in tops]))
        later = np.median(_errors(first)[0], axis=0)
        gaps.append(float(later.max()) - initial)
        told.append(f"{initial:.1%} at the start, then {later.max():.1%} at most")
    return judge(gaps, f"medians with attention {told[0]}; without {told[1]}")


def _sinks() -> Verdict:
    rises, weights = [], []
    for seed in range(3):
        net = draw(seed, ("attention", "layers", "attention", "layers")).descend(0.1, 400)
        sunk = [replace(net, sink=sink) for sink in (0.0, 2.0, 4.0)]
        tops = [each.sharpness() for each in sunk]
        rises.append([top / tops[0] for top in tops[1:]])
        weights.append([each.attended() for each in sunk])
    mean = np.mean(weights, axis=0)
    return judge(
        [float((np.diff([1.0, *row]) <= 0).any()) for row in rises],
        "λ_max with biases of 2 and 4 over that without, two blocks, 189 parameters, trained "
        f"(the first token's weight goes from {mean[0]:.2f} to {mean[-1]:.2f}): "
        + "; ".join(", ".join(f"{rise:.2f}" for rise in row) for row in rises),
    )


CLAIMS = (
    Claim(
        "000-ggn-attention", "000 §4.3, Fig 5, 23 and 25",
        "once training is under way, λ_max of Gauss–Newton is farther from that of the Hessian in "
        "language models with attention than in those without, of as many parameters",
        _worse_with_attention,
    ),
    Claim(
        "000-ggn-start", "000 §4.3, Fig 25",
        "the error of Gauss–Newton falls with the residuals: it is largest at initialisation",
        _largest_at_first,
    ),
    Claim(
        "000-gpt-sinks", "000 §4.3, Fig 6",
        "the more prominent the attention sinks of a trained language model, the larger its λ_max",
        _sinks,
    ),
)  # fmt: skip
