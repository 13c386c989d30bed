r"""What rounding does to the Hessian of a layer of attention.

An error of a score changes the attention weights of its row by that share, and with them the
moments of the tokens, whose sums of magnitudes are known. Predictions are moved by their errors to
see what that does to the derivatives of the loss.
"""

from __future__ import annotations

from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Numbers, constant, epsilon, like, to_double, transpose
from hessence.data.losses import PointwiseLoss
from hessence.data.rounding import moved_derivatives, terms
from hessence.networks.attention._matrix_attention_hessian import TokenMoments
from hessence.networks.attention.activations import Softmax, from_top, tokens_from_top
from hessence.networks.attention.attention_network import Sequences

Known = tuple[Numbers, Numbers]
"""Magnitudes, and bounds for their errors."""


def scalar_errors(net: Any, batch: Sequences, loss: PointwiseLoss) -> tuple[Any, Any]:
    """Return bounds for α, β, γ, ζ of the Gauss–Newton and of the functional part."""
    share = epsilon(batch.x) * (32 + 2 * terms(int(batch.x.shape[-1])))
    w = np.abs(to_double(net.w_v))
    h, first, second = _responses(net, batch, share)
    f = net.w_v[..., None, None] * net._responses(batch)[0]
    value = (w[..., None, None] + 0 * h[0], share * w[..., None, None] + 0 * h[0])
    reach = _product(share, value, h)[1]
    of_gradient, of_hessian = moved_derivatives(loss, f, batch.y, reach)
    weights = to_double(batch.weights)

    def average(*factors: Known) -> Any:
        return np.sum(weights * _product(share, *factors)[1], axis=(-2, -1))

    on_inner = average(of_gradient, first)
    zero = 0 * on_inner
    return (
        (average(of_hessian, h, h), average(value, of_hessian, h, first), zero,
         average(value, value, of_hessian, first, first)),
        (zero, on_inner, average(value, of_gradient, first), average(value, of_gradient, second)),
    )  # fmt: skip


def _responses(net: Any, batch: Sequences, share: float) -> list[Known]:
    """Return h = A x and its two derivatives in t, (..., sequences, n)."""
    scale = int(net.w_q.shape[-1]) ** -0.5
    tokens = np.abs(to_double(batch.x))
    along = scale * tokens[:, :, None] * tokens[:, None, :]
    units = share + 2 * epsilon(batch.x) * terms(int(net.w_q.shape[-1]))
    # The error of t = ⟨w_Q, w_K⟩ is relative to half of ‖w_Q‖² + ‖w_K‖².
    size = to_double(net._gram.norm)[..., None, None, None] * along
    for extra in (net.score_bias, net.sink):
        size = size + (0.0 if extra is None else float(np.abs(to_double(extra)).max(initial=0.0)))
    off = units * size
    scores, direction = net._scores(batch, net._gram.inner, net.sink)
    parts = [to_double(part) for part in net._rows.along(scores, direction, batch.keys)]
    moved = keys = tokens[:, None, :] + 0 * off
    if isinstance(net._rows, Softmax):
        # Derivatives see differences from the token with the largest weight only.
        top = net._rows.weights(scores, batch.keys)[1]
        whole = 0 * scores + batch.x[:, None, :]
        moved, along = (
            np.abs(to_double(from_top(a, top))) for a in (whole, 0 * scores + direction)
        )
        weights = np.abs(parts[0]) + _vanishing(batch) / units
        reach = along + (weights * along).sum(axis=-1, keepdims=True)
        spread = (weights * reach**2).sum(axis=-1, keepdims=True)
        sizes = [weights, weights * reach, weights * (reach**2 + spread)]
        worst = units + 8 * off.max(axis=-1, keepdims=True)
        errors = [worst * s for s in sizes]
    else:
        one = like(np.ones_like(off), batch.x)
        _, first, second = (np.abs(to_double(a)) for a in net._rows.along(scores, one, batch.keys))
        sizes = [np.abs(part) for part in parts]
        shifts = (first, second * along, 8 * (first + second) * along**2)
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


def _vanishing(batch: Sequences) -> float:
    """Return what an attention weight may be that is rounded to zero."""
    return float(api.array_namespace(batch.x).finfo(batch.x.dtype).smallest_normal)


def layer_sizes(net: Any, batch: Sequences, loss: PointwiseLoss) -> TokenMoments:
    """Return moments of the tokens without signs, whose layer has a Hessian that bounds the error.

    Every term of the Hessian has one derivative of the loss as a factor. In its place is what
    rounding does to it and, of the derivative, to the other factors.
    """
    xp, spacing = api.array_namespace(batch.x), epsilon(batch.x)
    share = spacing * (64 + 2 * terms(max(map(int, (*batch.x.shape, *net.W_q.shape)))))
    x, W_v, W_q, W_k = (abs(constant(a)) for a in (batch.x, net.W_v, net.W_q, net.W_k))
    attention, top = net._weights_and_top(batch)
    attention = constant(attention) + _vanishing(batch) / share
    sizes = net._scale * xp.matmul(xp.matmul(x, W_q), transpose(xp.matmul(x, W_k)))
    worst = xp.max(sizes + abs(net.sink) * batch.first, axis=-1, keepdims=True)
    share = share * (1 + 8 * worst)
    reach = to_double(share * xp.matmul(xp.matmul(attention, x), W_v))
    of_gradient, of_hessian = moved_derivatives(loss, net._predict(batch), batch.y, reach)
    counts = batch.weights[..., None]
    first = counts * (8 * share * like(of_gradient[0], x) + like(of_gradient[1], x))
    if of_hessian[0].ndim > 3:
        counts, share = counts[..., None], share[..., None]
    second = counts * (8 * share * like(of_hessian[0], x) + like(of_hessian[1], x))
    gap = abs(tokens_from_top(batch.x, top))
    gap = gap + xp.sum(attention[..., None] * gap, axis=-2, keepdims=True)
    return TokenMoments.of(x, attention, gap, first, second, W_v, net._scale)
