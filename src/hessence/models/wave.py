"""A way to move tensors that nothing is symmetric under."""

from __future__ import annotations

import torch
from torch import Tensor


def wave(like: Tensor, phase: float = 0.0) -> Tensor:
    """Return numbers between −1 and 1, shaped like others, of which no two are the same."""
    count = torch.arange(1, like.numel() + 1, device=like.device)
    return (count.to(like.dtype) + phase).sin().reshape(like.shape)
