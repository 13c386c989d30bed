r"""The logarithm of softmax, and the cross-entropy that is made of it.

For :math:`y = z - \log \sum e^z` and :math:`p = e^y` the slope is :math:`g - p \sum g`, and the
slope's own backward pass takes c to :math:`c - \langle p, c\rangle` for g and to
:math:`-(\sum g)\, p \circ c` for y.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hessence.models.kernels.higher_order import pull_back_through_slope
from hessence.models.kernels.softmax import usual_dimension


def log_softmax(original: Callable[..., Tensor], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply PyTorch's logarithm of softmax."""
    dim = usual_dimension(input, args, kwargs)
    if dim is None:
        return original(input, *args, **kwargs)
    return _LogSoftmax.apply(input, dim)


def cross_entropy(
    original: Callable[..., Tensor],
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Apply PyTorch's cross-entropy."""
    classes = 0 if input.ndim == 1 else 1
    shape = input.shape[:classes] + input.shape[classes + 1 :]
    known = target.dtype == torch.int64 and target.shape == shape and input.requires_grad
    weighed = weight is None or (
        weight.dtype == input.dtype and weight.shape == input.shape[classes : classes + 1]
    )
    old = size_average is not None or reduce is not None
    usual = reduction in ("mean", "sum", "none") and not label_smoothing
    # PyTorch says what is wrong with anything else.
    if not known or not weighed or old or not usual:
        return original(
            *(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        )
    kept = target != ignore_index
    chosen = torch.where(kept, target, 0)
    factors = torch.where(kept, input.new_ones(()) if weight is None else weight[chosen], 0)
    logarithms = _LogSoftmax.apply(input, classes)
    picked = logarithms.gather(classes, chosen.unsqueeze(classes)).squeeze(classes)
    losses = -factors * torch.where(kept, picked, 0)
    if reduction == "none":
        return losses
    return losses.sum() / factors.sum() if reduction == "mean" else losses.sum()


class _LogSoftmax(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, scores: Tensor, dim: int) -> Tensor:
        logarithms = torch.log_softmax(scores, dim)
        ctx.dim = dim
        ctx.save_for_backward(logarithms, logarithms.exp())
        return logarithms

    @staticmethod
    def backward(ctx: Any, pulled: Tensor) -> Any:
        logarithms, shares = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _Slope.apply(logarithms, pulled, shares, ctx.dim), None
        return pulled - shares * pulled.sum(ctx.dim, keepdim=True), None


class _Slope(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, logarithms: Tensor, pulled: Tensor, shares: Tensor, dim: int) -> Tensor:
        weighted = shares * pulled.sum(dim, keepdim=True)
        ctx.dim = dim
        ctx.save_for_backward(logarithms, pulled, shares, -weighted)
        return pulled - weighted

    @staticmethod
    def backward(ctx: Any, pulled: Tensor) -> Any:
        logarithms, incoming, shares, weighted = ctx.saved_tensors
        dim = ctx.dim
        if torch.is_grad_enabled():
            images = pull_back_through_slope(
                lambda y, g: g - y.exp() * g.sum(dim, keepdim=True),
                (logarithms, incoming),
                (pulled,),
            )
            return *images, None, None
        for_pulled = None
        if ctx.needs_input_grad[1]:
            for_pulled = pulled - (shares * pulled).sum(dim, keepdim=True)
        return weighted * pulled, for_pulled, None, None
