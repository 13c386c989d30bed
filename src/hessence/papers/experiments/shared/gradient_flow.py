"""Training of a batch of networks along the gradient flow, each until its loss is low enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hessence.papers.experiments.shared.network_batches import Activation, Networks

SMALL_RATE, LONGER, SHORTER = 1e-3, 1.1, 0.5
KEPT = 0.8
"""Which share of what the gradient promises a step has to keep."""

NOTHING = 1e-15
"""A step that promises this share of the loss is none."""


def least_loss(x: Any, y: Any, noise: Any, activation: Activation) -> float:
    """Return the loss to compare with: that of the best linear map, or that of the noise in y."""
    if activation == "relu":
        return float(np.sum(noise * noise)) / len(x) / 2
    return _samples(x, y, activation)[2]


def train(
    nets: Networks, x: Any, y: Any, activation: Activation, goal: float, steps: int
) -> tuple[Networks, Any]:
    """Train each network until its loss is at most `goal`; return them and their losses (N,).

    The steps follow the gradient flow on all samples, as SGD with a small rate does: one is taken
    only if the loss falls by nearly all that the gradient promises, and the next is a little
    longer; otherwise a shorter one is tried. A network rests where its gradient vanishes, and all
    of them do after so many `steps`.
    """
    inputs, targets, least = _samples(x, y, activation)
    trained, losses = [w.astype(np.float64) for w in nets.weights], np.empty(len(nets.weights[0]))
    layers, shares = [w.astype(np.float32) for w in nets.weights], np.asarray(nets.rates)
    awake, rate = np.arange(len(losses)), np.full(len(losses), SMALL_RATE)
    loss, gradients = _gradients(layers, nets.multipliers, inputs, targets, activation)
    for step in range(steps + 1):
        promised = rate * (shares @ [np.sum(g * g, axis=(1, 2), dtype=float) for g in gradients])
        rests = (loss + least <= goal) | (promised <= NOTHING * loss) | (step == steps)
        if rests.any():
            losses[awake[rests]] = loss[rests]
            for whole, layer in zip(trained, layers, strict=True):
                whole[awake[rests]] = layer[rests]
            awake, rate, loss, promised = (a[~rests] for a in (awake, rate, loss, promised))
            layers, gradients = ([a[~rests] for a in part] for part in (layers, gradients))
        if not len(awake):
            break
        lengths = np.multiply.outer(shares, rate).astype(np.float32)[..., None, None]
        trial = [w - length * g for w, length, g in zip(layers, lengths, gradients, strict=True)]
        with np.errstate(over="ignore", invalid="ignore"):
            after, slopes = _gradients(trial, nets.multipliers, inputs, targets, activation)
        # Across a kink of ReLU no step keeps what is promised; small ones cross it and slide along.
        slides = (rate <= SMALL_RATE) & (after <= 2 * loss)
        taken = (loss - after >= KEPT * promised) | slides
        for old, new in zip([*layers, *gradients], [*trial, *slopes], strict=True):
            np.copyto(old, new, where=taken[:, None, None])
        loss = np.where(taken, after, loss)
        rate = np.where(taken, LONGER * rate, SHORTER * rate)
    return replace(nets, weights=tuple(trained)), losses + least


def _samples(x: Any, y: Any, activation: Activation) -> tuple[Any, Any, float]:
    """Return inputs and targets as columns, 1/√n in them, and what is missing in their loss.

    Layers without biases are homogeneous, so the mean over samples can go into the samples. A
    linear network sees its data through their moments: D samples x̃ with the same ones, and the best
    map's outputs as targets, give the loss above the least.
    """
    x, y = x / len(x) ** 0.5, y / len(y) ** 0.5
    least = 0.0
    if activation == "linear":
        basis, triangle = np.linalg.qr(x)
        seen = basis.T @ y
        least = float(np.sum((y - basis @ seen) ** 2)) / 2
        x, y = triangle, seen
    return x.T.astype(np.float32), y.T.astype(np.float32), least


def _gradients(
    layers: list[Any], multipliers: Sequence[float], inputs: Any, targets: Any,
    activation: Activation,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """Return half the summed squared errors (N,), and their gradients in the layers."""
    scaled = [np.float32(c) * w for c, w in zip(multipliers, layers, strict=True)]
    before = [np.broadcast_to(inputs, (len(layers[0]), *inputs.shape))]
    for i, w in enumerate(scaled):
        out = w @ before[-1]
        if activation == "relu" and i < len(scaled) - 1:
            np.maximum(out, 0, out=out)
        before.append(out)
    back = before.pop() - targets
    loss = np.sum(back * back, axis=(1, 2), dtype=float) / 2
    gradients = []
    for i in reversed(range(len(scaled))):
        gradients.append(np.float32(multipliers[i]) * (back @ np.swapaxes(before[i], 1, 2)))
        if i:
            back = np.swapaxes(scaled[i], 1, 2) @ back
            if activation == "relu":
                back *= before[i] > 0
    return loss, gradients[::-1]
