r"""What rounding does to the Hessian of a layer of attention.

An error of a score changes the attention weights of its row by that share, and with them the
moments of the tokens, whose sums of magnitudes are known. Predictions are moved by their errors to
see what that does to the derivatives of the loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hessence._common.arrays import Array, Numbers, epsilon, like, to_numpy
from hessence.data.losses import PointwiseLoss
from hessence.data.rounding import moved_derivatives, terms
from hessence.networks.attention.activations import Softmax, from_top
from hessence.networks.attention.attention_network import Sequences

Known = tuple[Numbers, Numbers]
"""Magnitudes, and bounds for their errors."""


def scalar_errors(net: Any, batch: Sequences, loss: PointwiseLoss) -> tuple[Any, Any]:
    """Return bounds for α, β, γ, ζ of the Gauss–Newton and of the functional part."""
    share = epsilon(batch.x) * (32 + 2 * terms(int(batch.x.shape[-1])))
    w = np.abs(_plain(net.w_v))
    h, first, second = _responses(net, batch, share)
    f = net.w_v[..., None, None] * net._responses(batch)[0]
    value = (w[..., None, None] + 0 * h[0], share * w[..., None, None] + 0 * h[0])
    reach = _product(share, value, h)[1]
    slope, bend = moved_derivatives(loss, f, batch.y, reach)
    weights = _plain(batch.weights)

    def average(*factors: Known) -> Any:
        return np.sum(weights * _product(share, *factors)[1], axis=(-2, -1))

    on_inner = average(slope, first)
    zero = 0 * on_inner
    return (
        (average(bend, h, h), average(value, bend, h, first), zero,
         average(value, value, bend, first, first)),
        (zero, on_inner, average(value, slope, first), average(value, slope, second)),
    )  # fmt: skip


def _responses(net: Any, batch: Sequences, share: float) -> list[Known]:
    """Return h = A x and its two derivatives in t, (..., sequences, n)."""
    scale = int(net.w_q.shape[-1]) ** -0.5
    tokens = np.abs(_plain(batch.x))
    along = scale * tokens[:, :, None] * tokens[:, None, :]
    units = share + 2 * epsilon(batch.x) * terms(int(net.w_q.shape[-1]))
    # The error of t = ⟨w_Q, w_K⟩ is relative to half of ‖w_Q‖² + ‖w_K‖².
    size = _plain(net._gram.norm)[..., None, None, None] * along
    for extra in (net.score_bias, net.sink):
        size = size + (0.0 if extra is None else float(np.abs(_plain(extra)).max(initial=0.0)))
    off = units * size
    scores, direction = net._scores(batch, net._gram.inner, net.sink)
    parts = [_plain(part) for part in net._rows.along(scores, direction, batch.keys)]
    moved = keys = tokens[:, None, :] + 0 * off
    if isinstance(net._rows, Softmax):
        # Derivatives see differences from the token with the largest weight only.
        top = net._rows.weights(scores, batch.keys)[1]
        whole = 0 * scores + batch.x[:, None, :]
        moved, along = (np.abs(_plain(from_top(a, top))) for a in (whole, 0 * scores + direction))
        weights = np.abs(parts[0])
        reach = along + (weights * along).sum(axis=-1, keepdims=True)
        spread = (weights * reach**2).sum(axis=-1, keepdims=True)
        sizes = [weights, weights * reach, weights * (reach**2 + spread)]
        worst = units + 8 * off.max(axis=-1, keepdims=True)
        errors = [worst * s for s in sizes]
    else:
        one = like(np.ones_like(off), batch.x)
        _, rise, bend = (np.abs(_plain(a)) for a in net._rows.along(scores, one, batch.keys))
        sizes = [np.abs(part) for part in parts]
        shifts = (rise, bend * along, 8 * (rise + bend) * along**2)
        errors = [share * s + off * m for s, m in zip(sizes, shifts, strict=True)]
    return [
        ((s * x).sum(axis=-1), ((error + share * s) * x).sum(axis=-1))
        for error, s, x in zip(errors, sizes, (keys, moved, moved), strict=True)
    ]


def _product(share: float, *factors: Known) -> Known:
    """Return the product of magnitudes, and a bound for its error."""
    size, off = factors[0]
    for other, error in factors[1:]:
        size, off = size * other, off * other + size * error
    return size, off + share * size


def _plain(array: Array) -> Numbers:
    return to_numpy(array).astype(np.float64)
