r"""Softmax, and the attention that is made of it.

For :math:`P = \mathrm{softmax}(S)` row by row the slope is :math:`P \circ D` with
:math:`D = G - \langle P, G\rangle`. With :math:`K = C - \langle P, C\rangle` the slope's own
backward pass takes C to :math:`P \circ K` for G and to :math:`D \circ K` for P, up to a number for
each row that the softmax does not feel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hessence.models.kernels.higher_order import pull_back_through_slope


def softmax(original: Callable[..., Tensor], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply PyTorch's softmax."""
    dim = usual_dimension(input, args, kwargs)
    if dim is None:
        return original(input, *args, **kwargs)
    return _Softmax.apply(input, dim, torch.softmax)


def usual_dimension(scores: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Return the dimension that is summed over; None if anything about the call is unusual."""
    dim = kwargs.get("dim", args[0] if args else None)
    plain = isinstance(scores, Tensor) and scores.requires_grad and scores.ndim > 0
    usual = isinstance(dim, int) and len(args) < 2 and kwargs.get("dtype") is None
    return dim if plain and usual else None


def attention(
    original: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Apply PyTorch's scaled dot-product attention."""
    if dropout_p > 0 or enable_gqa or (is_causal and attn_mask is not None):
        return original(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    scores = query * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.mT
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        scores = scores + _as_bias(attn_mask, scores)
    # Those who may attend to nothing get zeros, as in PyTorch.
    shares: Tensor = _Softmax.apply(scores, -1, torch._safe_softmax)
    return shares @ value


def _as_bias(mask: Tensor, scores: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -torch.inf)


class _Softmax(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, scores: Tensor, dim: int, kernel: Callable[..., Tensor]) -> Tensor:
        shares = kernel(scores, dim)
        ctx.dim = dim
        ctx.save_for_backward(shares)
        return shares

    @staticmethod
    def backward(ctx: Any, pulled: Tensor) -> Any:
        (shares,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _Slope.apply(shares, pulled, ctx.dim), None, None
        return torch._softmax_backward_data(pulled, shares, ctx.dim, shares.dtype), None, None


class _Slope(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, shares: Tensor, pulled: Tensor, dim: int) -> Tensor:
        centred = pulled - (shares * pulled).sum(dim, keepdim=True)
        ctx.dim = dim
        ctx.save_for_backward(shares, pulled, centred)
        return shares * centred

    @staticmethod
    def backward(ctx: Any, pulled: Tensor) -> Any:
        shares, incoming, centred = ctx.saved_tensors
        dim = ctx.dim
        if torch.is_grad_enabled():
            images = pull_back_through_slope(
                lambda p, g: p * (g - (p * g).sum(dim, keepdim=True)),
                (shares, incoming),
                (pulled,),
            )
            return *images, None
        own = pulled - (shares * pulled).sum(dim, keepdim=True)
        return centred * own, shares * own, None
