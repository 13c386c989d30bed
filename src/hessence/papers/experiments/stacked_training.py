"""Full-batch gradient descent of many networks at once, by 002's schedule, and its data.

A stack of networks is a list of arrays (networks, d_ℓ, d_{ℓ−1}), one for each layer; each network
has a learning rate of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import hessence as hs
from hessence.papers.experiments.datasets import LabelledImages, load_images

PATIENCE = 100
"""Steps between looks at the loss (002 Appendix C)."""

PROGRESS = 1e-3
"""The learning rate is halved if the loss has fallen by less than this share meanwhile."""

Stack = list[Any]
Gradient = Callable[[Stack], tuple[Any, Stack]]
"""From a stack to the losses (networks,) and the gradients, layer by layer."""


@dataclass(frozen=True)
class Snapshot:
    """A stack at some step of training.

    Attributes
    ----------
    step : int
        How many updates were made.
    weights : list of array (networks, d_ℓ, d_{ℓ−1})
        The layers.
    loss, rate : array (networks,)
        Loss and learning rate of each network.
    """

    step: int
    weights: Stack
    loss: Any
    rate: Any


def train(
    weights: Stack,
    gradient: Gradient,
    rate: float,
    steps: int,
    kept: Sequence[int],
    halving: bool = True,
) -> Iterator[Snapshot]:
    """Train a stack and yield it at the steps that are to be kept.

    With `halving`, a network whose loss has fallen by less than 0.1 % in a hundred steps halves its
    learning rate, as 002 has it.
    """
    layers = list(weights)
    rates = np.full(len(layers[0]), float(rate))
    seen = None
    wanted = frozenset(kept)
    for step in range(steps + 1):
        with np.errstate(over="ignore", invalid="ignore"):
            loss, slopes = gradient(layers)
        if not np.isfinite(loss).all():
            raise ValueError(
                f"training diverged at step {step} with a rate of {rate:g}; choose a smaller one"
            )
        if halving and step % PATIENCE == 0:
            if seen is not None:
                rates = np.where(loss > (1 - PROGRESS) * seen, rates / 2, rates)
            seen = loss
        if step in wanted:
            yield Snapshot(step, layers, loss, rates)
        factor = rates[:, None, None]
        layers = [w - factor * g for w, g in zip(layers, slopes, strict=True)]


def train_linear(
    weights: Stack, x: Any, y: Any, rate: float, steps: int, kept: Sequence[int]
) -> Iterator[Snapshot]:
    """Train linear networks as :func:`train` does, from the moments of the data.

    For white inputs the gradient S_1ᵀ(M − C) of the first layer stays in the span of the first
    layer's rows and those of C = E[y xᵀ], so that d_1 + d_L inputs are enough, whatever d_0 is.
    """
    data = hs.Moments(x, y)
    variance, covariance, size = data.xx, data.yx, float(np.trace(data.yy))
    first, *rest = weights
    white = bool(np.abs(variance - np.eye(len(variance))).max() < 1e-10)
    basis = seen_inputs(first, covariance) if white else None
    if basis is None:
        gradient = moment_gradient(None if white else variance, covariance, size)
        yield from train(weights, gradient, rate, steps, kept)
        return
    gradient = moment_gradient(None, covariance @ basis, size)
    for shot in train([first @ basis, *rest], gradient, rate, steps, kept):
        layers = [shot.weights[0] @ _transpose(basis), *shot.weights[1:]]
        yield Snapshot(shot.step, layers, shot.loss, shot.rate)


def seen_inputs(first: Any, covariance: Any) -> Any:
    """Return a basis (…, d_0, d_1 + d_L) of the rows of W_1 and C, or None if that saves nothing.

    Orthogonal directions of white inputs reach the Hessian through W_2 alone: on them it is
    S_1ᵀ S_1, apart from everything else.
    """
    if first.shape[-1] <= first.shape[-2] + len(covariance):
        return None
    also = np.broadcast_to(covariance, (*first.shape[:-2], *covariance.shape))
    return np.linalg.qr(_transpose(np.concatenate([first, also], axis=-2)))[0]


def moment_gradient(variance: Any, covariance: Any, size: float) -> Gradient:
    """Return the gradient of ½ E‖W_L ⋯ W_1 x − y‖² from E[x xᵀ] (None: 1), E[y xᵀ] and E‖y‖²."""

    def gradient(layers: Stack) -> tuple[Any, Stack]:
        before = [layers[0]]
        for w in layers[1:]:
            before.append(w @ before[-1])
        product = before.pop()
        back = (product if variance is None else product @ variance) - covariance
        loss = (np.sum(product * (back - covariance), axis=(-2, -1)) + size) / 2
        slopes = []
        for w, p in zip(layers[:0:-1], before[::-1], strict=True):
            slopes.append(back @ _transpose(p))
            back = _transpose(w) @ back
        slopes.append(back)
        return loss, slopes[::-1]

    return gradient


def activated_gradient(x: Any, y: Any, activation: str) -> Gradient:
    """Return the gradient of ½ E‖f(x) − y‖² where hidden layers have an activation."""
    act, slope_of = ACTIVATIONS[activation]

    def gradient(layers: Stack) -> tuple[Any, Stack]:
        signals = [np.broadcast_to(x, (len(layers[0]), *x.shape))]
        for w in layers[:-1]:
            signals.append(act(signals[-1] @ _transpose(w)))
        residual = signals[-1] @ _transpose(layers[-1]) - y
        loss = np.sum(residual * residual, axis=(-2, -1)) / (2 * len(x))
        back = residual / len(x)
        slopes = []
        for index in reversed(range(len(layers))):
            slopes.append(_transpose(back) @ signals[index])
            if index:
                back = (back @ layers[index]) * slope_of(signals[index])
        return loss, slopes[::-1]

    return gradient


ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tanh": (np.tanh, lambda out: 1 - out * out),
    "relu": (lambda z: np.maximum(z, 0), lambda out: (out > 0).astype(out.dtype)),
    "leaky-relu": (
        lambda z: np.where(z > 0, z, 0.1 * z),
        lambda out: np.where(out > 0, 1.0, 0.1),
    ),
}
"""Activations, and their derivatives as functions of what they return."""


def torch_model(layers: Stack, activation: str) -> Any:
    """Return one network (of no stack) as a PyTorch model in double precision."""
    import torch
    from torch import nn

    between: dict[str, Any] = {
        "tanh": nn.Tanh,
        "relu": nn.ReLU,
        "leaky-relu": lambda: nn.LeakyReLU(0.1),
    }
    parts: list[Any] = []
    for w in layers:
        linear = nn.Linear(w.shape[1], w.shape[0], bias=False, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(np.array(w)))
        parts += [linear, between[activation]()]
    return nn.Sequential(*parts[:-1])


def half_squared_error(prediction: Any, target: Any) -> Any:
    """Return the papers' loss ½ E‖f(x) − y‖²; PyTorch's own is 2/d_L times as large."""
    return ((prediction - target) ** 2).sum(-1).mean() / 2


def balanced_stack(dims: Sequence[int], largest: float, count: int, rng: Any) -> Stack:
    """Return random balanced networks; each draws its singular values between 0 and `largest`."""
    nets = [
        hs.DeepLinear.balanced(dims, rng.uniform(0, largest, size=min(dims)), rng=rng)
        for _ in range(count)
    ]
    return [np.stack(layers) for layers in zip(*(net.weights for net in nets), strict=True)]


def standard_stack(dims: Sequence[int], count: int, rng: Any) -> Stack:
    """Return random networks as PyTorch starts them: uniform in ±1/√fan_in."""
    nets = [hs.init.standard(dims, rng=rng) for _ in range(count)]
    return [np.stack(layers) for layers in zip(*(net.weights for net in nets), strict=True)]


def class_subset(
    name: str, samples: int, share: float, shares: Sequence[float], rng: Any
) -> LabelledImages:
    """Return a subset in which class 0 has the given share and the others have equal parts.

    The size is the same for all `shares`: at most `samples`, and no more than the images of any
    class allow. (002 prints ⌊(1 − α)n⌋ for each of the other nine classes; the nearest whole
    number to a ninth of it is taken here.)
    """
    images = load_images(name)
    counts = np.bincount(images.labels)
    others = len(counts) - 1
    size = min(
        samples,
        int(counts[0] / max(shares)),
        int(counts[1:].min() * others / (1 - min(shares))),
    )
    while any(_taken(size, a, others)[0] > counts[0] for a in shares):
        size -= 1
    wanted = _taken(size, share, others)
    chosen = np.concatenate(
        [
            rng.permutation(np.flatnonzero(images.labels == label))[:take]
            for label, take in enumerate(wanted)
        ]
    )
    return LabelledImages(images.x[chosen], images.labels[chosen], images.shape)


def _taken(size: int, share: float, others: int) -> list[int]:
    """Return how many samples of each class make up a subset."""
    each = round((1 - share) * size / others)
    return [size - others * each, *[each] * others]


def white_inputs(x: Any, scale: float = 1.0) -> Any:
    """Return whitened inputs, without pixels that depend on others (such as those always blank)."""
    from scipy.linalg import qr

    r, order = qr(x, mode="r", pivoting=True)
    size = np.abs(np.diagonal(r))
    rank = int((size > 1e-10 * size[0]).sum())
    return hs.whiten(x[:, np.sort(order[:rank])], scale)


def checkpoints(steps: int, count: int) -> list[int]:
    """Return steps from 0 to the last, more of them early on."""
    grid = np.geomspace(1, steps + 1, count) - 1
    return sorted({int(step) for step in grid.round()})


def _transpose(stack: Any) -> Any:
    return np.swapaxes(stack, -1, -2)
