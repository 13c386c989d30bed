"""Gradient descent on a solvable network, without paying for its width at every step."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arguments import as_number, as_positive, require_int, seed
from hessence._common.arrays import Array, Numbers, integers, to_numpy
from hessence.data.losses import PointwiseLoss
from hessence.dynamics.trajectory import Trajectory
from hessence.networks.descent import Descent, Rule
from hessence.networks.network import Network


def gradient_descent(
    net: Network,
    x: Array,
    y: Array = None,
    *,
    lr: float = 0.1,
    steps: int = 100,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    batches: Any = None,
    sam: float = 0.0,
    loss: str | PointwiseLoss = "mse",
    mask: Array = None,
    rng: Any = 0,
) -> Trajectory:
    """Train a network by gradient descent and keep the spectrum at every step.

    The update is that of PyTorch's SGD: b ← momentum · b + g + weight_decay · θ, then
    θ ← θ − lr · b, from b = 0, with g the gradient of the loss at θ, of all samples or of a batch.

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
    weight_decay : float
        What to add to the gradient for each unit of the weights. It is no part of the loss, nor of
        the Hessian, that is reported.
    batches : int, or sequence of arrays of int, optional
        Mini-batches: their size, for new random ones in every epoch, or the indices of each step's
        samples (of sequences, for attention), from the start again at the end. Loss and spectra are
        those of all samples.
    sam : float
        The radius ρ of sharpness-aware minimisation: g is then taken at θ + ρ ∇ℓ/‖∇ℓ‖.
    loss : str or PointwiseLoss
        As in ``net.hessian``.
    mask : array of bool, optional
        For SelfAttention: which tokens exist.
    rng : int or numpy.random.Generator
        The source of random batches.

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
    width (for ReLU: two in each cell), with momentum, weight decay, batches and ``sam`` too. A ReLU
    unit whose v changes sign changes cell; the step that does this is taken on the weights, and the
    reduction starts anew behind it. Self-attention needs three numbers.

    A linear network of any depth that is aligned, which is checked, stays so: its singular values
    follow a recursion of their own. It is trained on its weights, from the moments of the data, if
    it is not aligned, with ``batches`` or ``sam``, and where a saddle would magnify what little it
    is off. All other networks are trained on their weights.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> net = hs.ScalarLinear(w=[0.1, 0.2], v=[0.3, -0.1])
    >>> t = hs.gradient_descent(net, [1.0, -1.0], [1.0, -1.0], lr=0.1, steps=100)
    >>> len(t), float(t.loss[0].round(3)), float(t.loss[-1].round(6))
    (101, 0.49, 0.0)
    >>> t.phase[0], t.phase[-1]
    ('early', 'late')

    Weight decay balances the layers, with batches of one sample:

    >>> t = hs.gradient_descent(
    ...     net, [1.0, -1.0], [1.0, -1.0], steps=2000, weight_decay=0.1, batches=1
    ... )
    >>> bool(np.allclose(t[2000].w, t[2000].v))
    True
    """
    if not isinstance(net, Network):
        raise TypeError(
            "net must be one of the library's networks, such as hs.ScalarLinear or hs.DeepLinear, "
            f"got {type(net).__name__}."
        )
    rule = Rule(
        as_positive("lr", lr),
        as_number("momentum", momentum, "at least 0 and below 1", lambda number: 0 <= number < 1),
        _as_strength("weight_decay", weight_decay),
        _as_strength("sam", sam),
    )
    try:
        count = operator.index(steps)
    except TypeError:
        raise TypeError(f"steps must be an integer, got {type(steps).__name__}.") from None
    if count < 0:
        raise ValueError(f"steps must not be negative, got {count}.")
    if mask is not None and not net.takes_mask:
        raise ValueError(f"mask is for SelfAttention, not for {type(net).__name__}.")
    options: dict[str, Array] = {} if mask is None else {"mask": mask}
    descent = net.descent(x, y, loss, **options)
    if batches is None:
        return Trajectory(descent.reduced(rule, count), rule, count)
    if y is None or not np.shape(y):
        raise ValueError("batches need samples: give x and y as arrays, not as moments.")
    if net.takes_mask and len(np.shape(x)) == net.rank:
        raise ValueError("batches are of sequences: give x as a batch of them, (sequences, n).")
    indices = _batch_indices(batches, len(x), rng)

    @lru_cache(maxsize=64)
    def on(chosen: bytes) -> Descent:
        own = np.frombuffer(chosen, dtype=np.int64)
        some = {name: _rows(array, own) for name, array in options.items()}
        return net.descent(_rows(x, own), _rows(y, own), loss, **some)

    return Trajectory(
        descent, rule, count, lambda step: on(indices(step).astype(np.int64).tobytes())
    )


def _as_strength(name: str, value: Any) -> float:
    wanted = "a number that is not negative"
    return as_number(name, value, wanted, lambda number: 0 <= number < math.inf)


def _batch_indices(batches: Any, samples: int, rng: Any) -> Callable[[int], Numbers]:
    """Return a function from the step to the indices of its samples, from a size or from indices.

    A size takes all samples in a new order in every epoch; its last batch holds what is left.
    """
    if isinstance(batches, Sequence) or np.ndim(batches):
        given = [_indices(batch, samples) for batch in batches]
        if not given:
            raise ValueError("batches must not be empty: give a size, or indices for each step.")
        return lambda step: given[step % len(given)]
    require_int("batches", batches, 1, samples)
    start, count = seed(rng), -(-samples // int(batches))

    @lru_cache(maxsize=1)
    def order(epoch: int) -> Numbers:
        return np.random.default_rng([start, epoch]).permutation(samples)

    def drawn(step: int) -> Numbers:
        epoch, place = divmod(step, count)
        return order(epoch)[place * batches : (place + 1) * batches]

    return drawn


def _rows(array: Any, indices: Numbers) -> Array:
    """Return some rows of an array of any kind, or of a list."""
    if not api.is_array_api_obj(array):
        return np.asarray(array)[indices]
    return api.array_namespace(array).take(array, integers(indices, array), axis=0)


def _indices(batch: Any, samples: int) -> Numbers:
    found = np.asarray(to_numpy(batch) if api.is_array_api_obj(batch) else batch)
    right = found.ndim == 1 and found.size and found.dtype.kind in "iu"
    if not right or found.min() < 0 or found.max() >= samples:
        raise ValueError(
            f"batches must hold indices from 0 to {samples - 1} for each step, got {batch!r}."
        )
    return found
