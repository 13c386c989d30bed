r"""Losses of logits whose derivatives keep their digits where a prediction is as good as decided.

PyTorch differentiates :math:`\log\sum_k e^{z_k}` as the softmax p, and that as
:math:`p_k v_k - p_k\langle p, v\rangle`. Both cancel as some :math:`p_k` goes to 1: in single
precision nothing is left of :math:`p_k - 1` and :math:`p_k - p_k^2` at a margin of 17. Measured
from the largest logit m, the same numbers are sums of terms of one sign,

.. math:: \log p_k = (z_k - z_m) - \log\Bigl(1 + \sum_{j \ne m} e^{z_j - z_m}\Bigr),

and so are all derivatives of what is written in these steps: m is a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import _reduction
from torch.nn import functional as F


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """Return log p, as ``F.log_softmax`` does."""
    if dim is None or not input.numel():
        return F.log_softmax(input, dim, dtype=dtype)
    z = input if dtype is None else input.to(dtype)
    place = z.detach().argmax(dim, keepdim=True)
    # The largest itself is at 0, a constant: as a difference it would leave rounding in gradients.
    apart = (z - z.gather(dim, place)).scatter(dim, place, 0.0)
    return apart - apart.exp().scatter(dim, place, 0.0).sum(dim, keepdim=True).log1p()


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return −Σ_k t_k log p_k for classes or probabilities t, as ``F.cross_entropy`` does."""
    classes = 1 if input.ndim > 1 else 0
    logarithms = log_softmax(input, classes)
    if not target.is_floating_point() and not label_smoothing:
        return F.nll_loss(logarithms, target, weight, size_average, ignore_index, reduce, reduction)
    reduction = _named(reduction, size_average, reduce)
    count = input.shape[classes]
    along = [1] * input.ndim
    along[classes] = count
    scales = torch.ones_like(input) if weight is None else weight.reshape(along).expand_as(input)
    if target.is_floating_point():
        shares = target * (1 - label_smoothing) + label_smoothing / count
        each = -(scales * shares * logarithms).sum(classes)
        return _reduced(each, reduction, each.numel())
    kept = target != ignore_index
    chosen = torch.where(kept, target, 0).long().unsqueeze(classes)
    spread = -(scales * logarithms).sum(classes) * (label_smoothing / count)
    own = scales.gather(classes, chosen).squeeze(classes)
    each = spread - (1 - label_smoothing) * own * logarithms.gather(classes, chosen).squeeze(
        classes
    )
    return _reduced(torch.where(kept, each, 0.0), reduction, torch.where(kept, own, 0.0).sum())


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Return π y log(1 + e^{−z}) + (1 − y) log(1 + e^z), as PyTorch's function does."""
    if target.shape != input.shape:
        return F.binary_cross_entropy_with_logits(
            input, target, weight, size_average, reduce, reduction, pos_weight
        )
    yes = target if pos_weight is None else pos_weight * target
    each = yes * softplus(-input) + (1 - target) * softplus(input)
    each = each if weight is None else each * weight
    return _reduced(each, _named(reduction, size_average, reduce), each.numel())


def softplus(z: Tensor) -> Tensor:
    """Return log(1 + e^z), whose derivatives are accurate on both sides of 0 and at 0."""
    positive = z.detach() >= 0
    return torch.where(positive, z, 0.0) + torch.where(positive, -z, z).exp().log1p()


def _logsigmoid(input: Tensor) -> Tensor:
    return -softplus(-input)


def _soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    each = softplus(-target * input)
    return _reduced(each, _named(reduction, size_average, reduce), each.numel())


def _named(reduction: str, size_average: bool | None, reduce: bool | None) -> str:
    """Return the reduction that PyTorch's older arguments stand for."""
    if size_average is None and reduce is None:
        return reduction
    return str(_reduction.legacy_get_string(size_average, reduce))


def _reduced(each: Tensor, reduction: str, count: Any) -> Tensor:
    if reduction == "none":
        return each
    return each.sum() if reduction == "sum" else each.sum() / count


ACCURATE: dict[Callable[..., Any], Callable[..., Any]] = {
    F.cross_entropy: cross_entropy,
    F.binary_cross_entropy_with_logits: binary_cross_entropy_with_logits,
    F.soft_margin_loss: _soft_margin_loss,
    F.log_softmax: log_softmax,
    torch.log_softmax: lambda input, dim, dtype=None: log_softmax(input, dim, dtype=dtype),
    Tensor.log_softmax: lambda input, dim, dtype=None: log_softmax(input, dim, dtype=dtype),
    F.logsigmoid: _logsigmoid,
}
"""PyTorch's functions, and those that are called in their place."""
