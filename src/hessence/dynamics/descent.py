"""Gradient descent on a solvable network, without paying for its width at every step."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from hessence._common.arrays import Array
from hessence.data.losses import PointwiseLoss
from hessence.dynamics.trajectory import Trajectory
from hessence.networks.descent import Rule
from hessence.networks.network import Network


def gradient_descent(
    net: Network,
    x: Array,
    y: Array = None,
    *,
    lr: float = 0.1,
    steps: int = 100,
    momentum: float = 0.0,
    loss: str | PointwiseLoss = "mse",
    mask: Array = None,
) -> Trajectory:
    """Train a network by full-batch gradient descent and keep the spectrum at every step.

    The update is PyTorch's: b ← momentum · b + ∇ℓ, θ ← θ − lr · b, from b = 0.

    Parameters
    ----------
    net : Network
        Where training starts. A batch of networks is trained in one go, ReLU networks excepted.
    x, y : array
        The data, as ``net.hessian`` takes them.
    lr : float
        The learning rate, positive.
    steps : int
        How many updates.
    momentum : float
        Heavy-ball momentum, at least 0 and below 1.
    loss : str or PointwiseLoss
        As in ``net.hessian``.
    mask : array of bool, optional
        For SelfAttention: which tokens exist.

    Returns
    -------
    Trajectory
        Loss, sharpness and trace at each of the ``steps + 1`` points, and the networks themselves;
        for scalar networks also ``outliers``, ``bulk`` and ``phase``, for SelfAttention also
        ``outliers``, ``bulk`` and the norms of the weights.

    Notes
    -----
    The network says in which coordinates it descends (``net.descent``). Gradient descent moves
    w + v along one line and w − v along another, so two numbers follow the whole spectrum at any
    width (for ReLU: two in each cell). A ReLU unit whose v changes sign changes cell; the step that
    does this is taken on the weights, and the reduction starts anew behind it. Self-attention needs
    three numbers.

    A linear network of any depth that is aligned, which is checked, stays so: its singular values
    follow a recursion of their own. One that is not is trained on its weights, from the moments of
    the data. All other networks are trained on their weights.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> net = hs.ScalarLinear(w=[0.1, 0.2], v=[0.3, -0.1])
    >>> t = hs.gradient_descent(net, [1.0, -1.0], [1.0, -1.0], lr=0.1, steps=100)
    >>> len(t), float(t.loss[0].round(3)), float(t.loss[-1].round(6))
    (101, 0.49, 0.0)
    >>> t.phase[0], t.phase[-1]
    ('early', 'late')
    """
    if not isinstance(net, Network):
        raise TypeError(
            "net must be one of the library's networks, such as hs.ScalarLinear or hs.DeepLinear, "
            f"got {type(net).__name__}."
        )
    _require_number("lr", lr, lambda value: value > 0, "a positive number")
    _require_number("momentum", momentum, lambda value: 0 <= value < 1, "at least 0 and below 1")
    try:
        count = operator.index(steps)
    except TypeError:
        raise TypeError(f"steps must be an integer, got {type(steps).__name__}.") from None
    if count < 0:
        raise ValueError(f"steps must not be negative, got {count}.")
    if mask is not None and not net.takes_mask:
        raise ValueError(f"mask is for SelfAttention, not for {type(net).__name__}.")
    options: dict[str, Array] = {} if mask is None else {"mask": mask}
    rule = Rule(float(lr), float(momentum))
    return Trajectory(net.descent(x, y, loss, **options).trusted(rule, count), rule, count)


def _require_number(name: str, value: Any, holds: Callable[[float], bool], wanted: str) -> None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}.") from None
    if not (math.isfinite(number) and holds(number)):
        raise ValueError(f"{name} must be {wanted}, got {value}.")
