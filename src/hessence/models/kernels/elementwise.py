r"""Activations that act on every number alone.

The slope of :math:`a = \varphi(z)` is :math:`s = \varphi'(z)\, g`, and the slope's own backward
pass takes c to :math:`\varphi''(z)\, g\, c` for z and to :math:`\varphi'(z)\, c` for g.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hessence.models.kernels.higher_order import gradient, pull_back_through_slope

Activation = Callable[[Tensor], Tensor]


def derivatives(activation: Activation, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return φ(z), φ′(z) and φ″(z); the activation must not change z in place."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        value = activation(z)
        (first,) = torch.autograd.grad(value.sum(), z, create_graph=True)
        if not first.requires_grad:
            return value.detach(), first, torch.zeros_like(first)
        (second,) = torch.autograd.grad(first.sum(), z, materialize_grads=True)
    return value.detach(), first.detach(), second


def activate(original: Callable[..., Tensor], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply one of PyTorch's activations."""
    in_place = True in args or kwargs.get("inplace", False)
    if in_place or not isinstance(input, Tensor) or not input.requires_grad:
        return original(input, *args, **kwargs)
    return _Activation.apply(input, lambda z: original(z, *args, **kwargs))


class _Activation(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, z: Tensor, activation: Activation) -> Tensor:
        with torch.enable_grad():
            live = z.detach().requires_grad_()
            value = activation(live)
            (first,) = torch.autograd.grad(value.sum(), live)
        ctx.activation = activation
        ctx.save_for_backward(z, first)
        return value.detach()

    @staticmethod
    def backward(ctx: Any, pulled: Tensor) -> Any:
        z, first = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _Slope.apply(z, pulled, first, ctx.activation), None
        return pulled * first, None


class _Slope(Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, pulled: Tensor, first: Tensor, activation: Activation
    ) -> Tensor:
        with torch._C.DisableTorchFunction():
            _, _, second = derivatives(activation, z)
        ctx.activation = activation
        ctx.save_for_backward(z, pulled, first, second * pulled)
        return pulled * first

    @staticmethod
    def backward(ctx: Any, pulled: Tensor) -> Any:
        z, incoming, first, second = ctx.saved_tensors
        if torch.is_grad_enabled():
            images = pull_back_through_slope(
                lambda z, g: gradient(ctx.activation, (z,), g), (z, incoming), (pulled,)
            )
            return *images, None, None
        return second * pulled, first * pulled, None, None
