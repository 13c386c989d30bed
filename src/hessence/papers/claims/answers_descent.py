"""Answers to what the papers leave open: which ways of training keep to lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

import hessence as hs
from hessence.papers.claims.attention_layers import attention_draws
from hessence.papers.claims.dense_hessians import Array, Loss, eigenvalue_gap, gradient
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.scalar_networks import scalar_draws

MOMENTUM, DECAY, RADIUS, STEPS = 0.6, 0.05, 0.05, 30


def _descent(losses: Sequence[Loss], point: Array, rate: float) -> Array:
    """Return all points of descent with momentum, weight decay, batches and sharpness-aware steps.

    There is a loss for each batch, in turn.
    """
    points, push = [point], np.zeros(len(point))
    for step in range(STEPS):
        now, loss = points[-1], losses[step % len(losses)]
        slope = gradient(loss, now)
        ahead = now + RADIUS * slope / np.linalg.norm(slope)
        push = MOMENTUM * push + gradient(loss, ahead) + DECAY * now
        points.append(now - rate * push)
    return np.array(points)


def _off_lines(one: Array, other: Array) -> float:
    """Return how far sum and difference of two weights leave their lines, over their length."""
    length = np.linalg.norm(np.concatenate([one, other], axis=1), axis=1)
    found = []
    for moved in (one + other, one - other):
        line = moved[0] / np.linalg.norm(moved[0])
        across = moved - np.outer(moved @ line, line)
        found.append(float(np.max(np.linalg.norm(across, axis=1) / length)))
    return max(found)


def _lines() -> Verdict:
    batches, gaps = ([0, 1, 2], [3, 4], [5, 6]), []
    for net in scalar_draws(309, 8):
        rate = 0.2 / float(np.linalg.eigvalsh(net.hessian())[-1])
        losses = [replace(net, x=net.x[some], y=net.y[some]).loss for some in batches]
        points = _descent(losses, net.point, rate)
        v, w = np.split(points, 2, axis=1)
        path = hs.gradient_descent(
            hs.ScalarLinear(net.w, net.v), net.x, net.y, lr=rate, steps=STEPS, batches=batches,
            momentum=MOMENTUM, weight_decay=DECAY, sam=RADIUS,
        )  # fmt: skip
        end = replace(net, w=w[-1], v=v[-1])
        gaps += [_off_lines(v, w), eigenvalue_gap(path.spectrum(STEPS).eigenvalues, end.hessian())]
    for layer in attention_draws(310, 8):
        rate = 0.2 / float(np.linalg.norm(layer.hessian(), 2))
        points = _descent([layer.loss], layer.point, rate)
        query, key = np.split(points[:, 1:], 2, axis=1)
        trained = hs.gradient_descent(
            hs.SelfAttention(layer.w_v, layer.w_q, layer.w_k), layer.x, layer.y, lr=rate,
            steps=STEPS, momentum=MOMENTUM, weight_decay=DECAY, sam=RADIUS,
        )  # fmt: skip
        last = replace(layer, w_v=float(points[-1, 0]), w_q=query[-1], w_k=key[-1])
        values = trained.spectrum(STEPS).eigenvalues
        gaps += [_off_lines(query, key), eigenvalue_gap(values, last.hessian())]
    return judge(
        gaps,
        f"{STEPS} steps on all weights, gradients by complex steps, with momentum {MOMENTUM}, "
        f"weight decay {DECAY}, ρ = {RADIUS} and, but for attention, batches: how far the two "
        "vectors leave their lines; and all eigenvalues that hs.gradient_descent has from two "
        "numbers in the end (attention: three), against those of the dense Hessian",
        tolerance=1e-8,
    )


CLAIMS = (
    Claim(
        "A-000-descent", "000 Corollary 3.1, continued",
        "momentum, weight decay, mini-batches and sharpness-aware steps keep w + v and w − v on "
        "their lines as well, and w_Q + w_K and w_Q − w_K of self-attention, so that two numbers, "
        "or three, tell the whole spectrum all along",
        _lines,
    ),
)  # fmt: skip
