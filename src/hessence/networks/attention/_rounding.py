r"""What rounding does to the Hessian of a layer of attention.

An error of a score is one of the logarithm of its weight: it changes the attention of its row by
that share, and with it the moments of the tokens. All that is added up is added up with positive
signs, and predictions are moved by their errors to see what that does to the derivatives of the
loss.
"""

from __future__ import annotations

import math
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import constant, epsilon, like, to_numpy, transpose
from hessence.data.losses import PointwiseLoss
from hessence.data.rounding import moved_derivatives, terms
from hessence.networks.attention._matrix_attention_hessian import TokenMoments
from hessence.networks.attention.activations import Softmax, from_top
from hessence.networks.attention.attention_network import Sequences


def scalar_errors(net: Any, batch: Sequences, loss: PointwiseLoss) -> tuple[Any, Any]:
    """Return bounds for α, β, γ, ζ of the Gauss–Newton and of the functional part."""
    xp, w, tokens = api.array_namespace(net.w_q), abs(constant(net.w_v)), batch.x[:, None, :]
    size = xp.vecdot(abs(constant(net.w_q)), abs(constant(net.w_k)))
    scores, direction = map(constant, net._scores(batch, net._gram.inner, net.sink))
    weights, *bends = net._rows.along(scores, direction, batch.keys)
    if isinstance(net._rows, Softmax):
        # Derivatives of the attention, without the signs of deviations from its mean.
        far = abs(direction) + xp.sum(abs(weights * direction), axis=-1, keepdims=True)
        spread = far * far + xp.sum(weights * far * far, axis=-1, keepdims=True)
        bends = [weights * far, weights * spread]
    h, first, second = (xp.sum(abs(a * tokens), axis=-1) for a in (weights, *bends))
    loud = abs(direction) * size[..., None, None, None] + abs(scores)
    loudest = xp.max(xp.where(batch.keys, loud, 0 * loud), axis=(-3, -2, -1))
    count = math.prod(batch.x.shape) + int(net.w_q.shape[-1])
    share = epsilon(w) * (64 + 2 * terms(count)) * (1 + loudest)
    own = share[..., None, None]
    reach = to_numpy(own * w[..., None, None] * h).astype(np.float64)
    found = moved_derivatives(loss, constant(net._predict(batch)), batch.y, reach)
    slope, curve = (own * like(size, h) + like(off, h) for size, off in found)
    zero, on_inner = 0 * w, batch.average(slope * first)
    ggn = (
        batch.average(curve * h * h),
        w * batch.average(curve * h * first),
        zero,
        w * w * batch.average(curve * first * first),
    )
    functional = zero, on_inner, w * on_inner, w * batch.average(slope * second)
    mine, rest = ([to_numpy(number) for number in part] for part in (ggn, functional))
    return mine, rest


def layer_sizes(net: Any, batch: Sequences, loss: PointwiseLoss) -> TokenMoments:
    """Return moments of the tokens without signs, whose layer has a Hessian that bounds the error.

    Every term of the Hessian has one derivative of the loss as a factor. In its place is what
    rounding does to it and, of the derivative, to the other factors.
    """
    xp, spacing = api.array_namespace(batch.x), epsilon(batch.x)
    share = spacing * (64 + 2 * terms(max(map(int, (*batch.x.shape, *net.W_q.shape)))))
    x, W_v, W_q, W_k = (abs(constant(a)) for a in (batch.x, net.W_v, net.W_q, net.W_k))
    attention, top = net._weights_and_top(batch)
    sizes = net._scale * xp.matmul(xp.matmul(x, W_q), transpose(xp.matmul(x, W_k)))
    worst = xp.max(sizes + abs(net.sink) * batch.first, axis=-1, keepdims=True)
    share = share * (1 + 8 * worst)
    mean = xp.matmul(attention, x)
    reach = to_numpy(share * xp.matmul(mean, W_v)).astype(np.float64)
    slope, bend = moved_derivatives(loss, net._predict(batch), batch.y, reach)
    counts = batch.weights[..., None]
    first = counts * (8 * share * like(slope[0], x) + like(slope[1], x))
    if bend[0].ndim > 3:
        counts, share = counts[..., None], share[..., None]
    second = counts * (8 * share * like(bend[0], x) + like(bend[1], x))
    tokens = transpose(0 * attention[..., None] + batch.x[:, None, :, :])
    gap = abs(transpose(from_top(tokens, top[..., None, :] + 0 * top[..., None, :])))
    gap = gap + xp.sum(attention[..., None] * gap, axis=-2, keepdims=True)
    weighted = attention[..., None] * gap
    along = xp.matmul(gap, xp.matmul(first, transpose(W_v))[..., None])
    covariance, skew = (xp.matmul(transpose(gap), part) for part in (weighted, along * weighted))
    x, mean, covariance, skew, first, second = (
        xp.reshape(part, (-1, *part.shape[2:]))
        for part in (x, mean, covariance, skew, first, second)
    )
    return TokenMoments(x, mean, covariance, skew, first, second, W_v, net._scale)
