"""Full-batch gradient descent of many networks at once, by 002's schedule.

A batch of networks is a list of arrays (networks, d_ℓ, d_{ℓ−1}), one for each layer; each network
has a learning rate of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import hessence as hs

PATIENCE = 100
"""Steps between looks at the loss (002 Appendix C)."""

PROGRESS = 1e-3
"""The learning rate is halved if the loss has fallen by less than this share meanwhile."""

Layers = list[Any]
Gradient = Callable[[Layers], tuple[Any, Layers]]
"""From layers to the losses (networks,) and the gradients, layer by layer."""


@dataclass(frozen=True)
class Checkpoint:
    """A batch of networks at some step of training.

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
    weights: Layers
    loss: Any
    rate: Any


def train(
    weights: Layers,
    gradient: Gradient,
    rate: float,
    steps: int,
    kept: Sequence[int],
    halving: bool = True,
    together: int = 1,
) -> Iterator[Checkpoint]:
    """Train a batch of networks and yield it at the steps that are to be kept.

    With `halving`, a network whose loss has fallen by less than 0.1 % in a hundred steps halves its
    learning rate, as 002 has it. So many steps `together` become one step of order four along the
    flow of the gradient, which they follow closely where the rate is far below 2/λ_max: it costs
    four gradients. The number has to divide a hundred, `steps` and all that is kept.
    """
    layers = list(weights)
    rates = np.full(len(layers[0]), rate, dtype=layers[0].dtype)
    seen = None
    wanted = frozenset(kept)
    for step in range(0, steps + 1, together):
        with np.errstate(over="ignore", invalid="ignore"):
            loss, gradients = gradient(layers)
        if not np.isfinite(loss).all():
            raise ValueError(
                f"training diverged at step {step} with a rate of {rate:g}; choose a smaller one"
            )
        if halving and step % PATIENCE == 0:
            if seen is not None:
                rates = np.where(loss > (1 - PROGRESS) * seen, rates / 2, rates)
            seen = loss
        if step in wanted:
            yield Checkpoint(step, layers, loss, rates)
        ahead = together * rates
        if together > 1:
            gradients = _average_gradient(layers, gradients, gradient, ahead)
        layers = _moved(layers, gradients, ahead)


def _average_gradient(layers: Layers, now: Layers, gradient: Gradient, ahead: Any) -> Layers:
    """Return the gradient's average along its flow, by the classical method of Runge and Kutta."""
    _, half = gradient(_moved(layers, now, ahead / 2))
    _, again = gradient(_moved(layers, half, ahead / 2))
    _, end = gradient(_moved(layers, again, ahead))
    return [(a + 2 * (b + c) + d) / 6 for a, b, c, d in zip(now, half, again, end, strict=True)]


def _moved(layers: Layers, gradients: Layers, ahead: Any) -> Layers:
    factor = ahead[:, None, None]
    return [w - factor * g for w, g in zip(layers, gradients, strict=True)]


def train_linear(
    weights: Layers, x: Any, y: Any, rate: float, steps: int, kept: Sequence[int]
) -> Iterator[Checkpoint]:
    """Train linear networks as :func:`train` does, from the moments of the data.

    In the basis in which E[x xᵀ] is diagonal it only scales inputs. For white inputs the gradient
    S_1ᵀ(M − C) of the first layer stays in the span of the first layer's rows and those of
    C = E[y xᵀ], so that d_1 + d_L inputs are enough, whatever d_0 is.
    """
    data = hs.Moments(x, y)
    covariance, size = data.yx, float(np.trace(data.yy))
    first, *rest = weights
    variances, basis = input_basis(first, data.xx, covariance)
    gradient = moment_gradient(variances, covariance @ basis, size)
    for point in train([first @ basis, *rest], gradient, rate, steps, kept):
        layers = [point.weights[0] @ _transpose(basis), *point.weights[1:]]
        yield Checkpoint(point.step, layers, point.loss, point.rate)


def white_sharpness(weights: Layers, x: Any, y: Any) -> Any:
    """Return the largest eigenvalue of each network's Hessian, for white inputs of variance 1.

    On inputs that neither W_1 nor the labels see, the Hessian is S_1ᵀ S_1, apart from everything
    else. On those that are seen it has S_1ᵀ S_1 as a block, so that its top is no smaller.
    """
    found = []
    for layers in zip(*weights, strict=True):
        first, *rest = layers
        basis = seen_inputs(first, y.T @ x / len(x))
        inputs = x
        if basis is not None:
            first, inputs = first @ basis, x @ basis
        top = hs.DeepLinear([first, *rest]).hessian(inputs, y).top(1, tol=1e-8)
        found.append(float(top.eigenvalues[0]))
    return np.asarray(found)


def input_basis(first: Any, variance: Any, covariance: Any) -> tuple[Any, Any]:
    """Return orthonormal inputs (…, d_0, k) that suffice for training, and their variances."""
    if np.abs(variance - np.eye(len(variance))).max() < 1e-10:
        basis = seen_inputs(first, covariance)
        return np.ones(()), np.eye(len(variance)) if basis is None else basis
    variances, basis = np.linalg.eigh(variance)
    return variances, basis


def seen_inputs(first: Any, covariance: Any) -> Any:
    """Return a basis (…, d_0, d_1 + d_L) of the rows of W_1 and C, or None if that saves nothing.

    For white inputs orthogonal directions are no part of training.
    """
    if first.shape[-1] <= first.shape[-2] + len(covariance):
        return None
    also = np.broadcast_to(covariance, (*first.shape[:-2], *covariance.shape))
    return np.linalg.qr(_transpose(np.concatenate([first, also], axis=-2)))[0]


def moment_gradient(variances: Any, covariance: Any, size: float) -> Gradient:
    """Return the gradient of ½ E‖W_L ⋯ W_1 x − y‖² where E[x xᵀ] is diagonal.

    The variances of the inputs, E[y xᵀ] and E‖y‖² are enough. Of the products only three involve
    the inputs, and each of them has an output on its other side.
    """

    def gradient(layers: Layers) -> tuple[Any, Layers]:
        first, *rest = layers
        after = [np.eye(covariance.shape[-2])]
        for w in rest[::-1]:
            after.append(after[-1] @ w)
        last = after.pop()
        product = last @ first
        back = product * variances - covariance
        loss = (np.sum(product * (back - covariance), axis=(-2, -1)) + size) / 2
        gradients = [_transpose(last) @ back]
        before = back @ _transpose(first)
        for w, s in zip(rest, after[::-1], strict=True):
            gradients.append(_transpose(s) @ before)
            before = before @ _transpose(w)
        return loss, gradients

    return gradient


def activated_gradient(x: Any, y: Any, activation: str, last: bool = False) -> Gradient:
    """Return the gradient of ½ E‖f(x) − y‖² with an activation between layers, or after each."""
    act, derivative = ACTIVATIONS[activation]

    def gradient(layers: Layers) -> tuple[Any, Layers]:
        signals = [np.broadcast_to(x, (len(layers[0]), *x.shape))]
        for w in layers[:-1]:
            signals.append(act(signals[-1] @ _transpose(w)))
        outputs = signals[-1] @ _transpose(layers[-1])
        outputs = act(outputs) if last else outputs
        residual = outputs - y
        loss = np.sum(residual * residual, axis=(-2, -1)) / (2 * len(x))
        back = residual / len(x)
        back = back * derivative(outputs) if last else back
        gradients = []
        for index in reversed(range(len(layers))):
            gradients.append(_transpose(back) @ signals[index])
            if index:
                back = (back @ layers[index]) * derivative(signals[index])
        return loss, gradients[::-1]

    return gradient


ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "linear": (lambda z: z, np.ones_like),
    "tanh": (np.tanh, lambda out: 1 - out * out),
    "relu": (lambda z: np.maximum(z, 0), lambda out: (out > 0).astype(out.dtype)),
    "leaky-relu": (
        lambda z: np.where(z > 0, z, 0.1 * z),
        lambda out: np.where(out > 0, 1.0, 0.1),
    ),
}
"""Activations, and their derivatives as functions of what they return."""


def torch_model(layers: Layers, activation: str, last: bool = False) -> Any:
    """Return one network (not a batch) as a PyTorch model in double precision."""
    import torch
    from torch import nn

    between: dict[str, Any] = {
        "linear": nn.Identity,
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
    return nn.Sequential(*(parts if last else parts[:-1]))


def half_squared_error(prediction: Any, target: Any) -> Any:
    """Return the papers' loss ½ E‖f(x) − y‖²; PyTorch's own is 2/d_L times as large."""
    return ((prediction - target) ** 2).sum(-1).mean() / 2


def balanced_networks(dims: Sequence[int], largest: float, count: int, rng: Any) -> Layers:
    """Return random balanced networks; each draws its singular values between 0 and `largest`."""
    nets = [
        hs.DeepLinear.balanced(dims, rng.uniform(0, largest, size=min(dims)), rng=rng)
        for _ in range(count)
    ]
    return [np.stack(layers) for layers in zip(*(net.weights for net in nets), strict=True)]


def standard_networks(dims: Sequence[int], count: int, rng: Any) -> Layers:
    """Return random networks as PyTorch starts them: uniform in ±1/√fan_in."""
    nets = [hs.init.standard(dims, rng=rng) for _ in range(count)]
    return [np.stack(layers) for layers in zip(*(net.weights for net in nets), strict=True)]


def checkpoints(steps: int, count: int) -> list[int]:
    """Return steps from 0 to the last, more of them early on."""
    grid = np.geomspace(1, steps + 1, count) - 1
    return sorted({int(step) for step in grid.round()})


def _transpose(matrices: Any) -> Any:
    return np.swapaxes(matrices, -1, -2)
