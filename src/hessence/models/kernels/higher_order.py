"""Derivatives beyond the second, and when the written-out operations are not to be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def pull_back_through_slope(
    slope: Callable[..., Any], inputs: Sequence[Tensor], pulled: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Differentiate a slope by PyTorch's own rules, so that it can be differentiated on and on.

    Parameters
    ----------
    slope : callable
        The slope as a function of the inputs, in operations that PyTorch can differentiate.
    inputs : sequence of Tensor
        Where; each may depend on the others.
    pulled : sequence of Tensor or None
        The derivative in each output of the slope.
    """
    with torch._C.DisableTorchFunction():
        apart = [i.view_as(i) if i.requires_grad else i for i in inputs]
        outputs = slope(*apart)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        live = [
            (o, p)
            for o, p in zip(outputs, pulled, strict=True)
            if p is not None and o.requires_grad
        ]
        wanted = [a for a in apart if a.requires_grad]
        if not live or not wanted:
            return (None,) * len(inputs)
        found = iter(
            torch.autograd.grad(
                [o for o, _ in live],
                wanted,
                [p for _, p in live],
                create_graph=True,
                allow_unused=True,
            )
        )
        return tuple(next(found) if a.requires_grad else None for a in apart)


def gradient(function: Callable[..., Tensor], inputs: Sequence[Tensor], pulled: Tensor) -> Any:
    """Return the gradient of ⟨pulled, function(inputs)⟩ in the inputs, as a recorded function."""
    value = function(*inputs)
    return torch.autograd.grad(value, inputs, pulled, create_graph=True)


def is_plain_reverse_mode() -> bool:
    """Whether nothing but backward passes differentiates: no forward mode, no transformation."""
    return not torch._C._are_functorch_transforms_active() and forward_ad._current_level < 0
