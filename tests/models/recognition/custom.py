"""Models whose forward pass a test writes out."""

from __future__ import annotations

import torch
from torch import nn

torch_double = {"dtype": torch.float64}


def linear(d, k, bias=True):
    return nn.Linear(d, k, bias=bias, **torch_double)


class Custom(nn.Module):
    """A model whose forward is not that of an nn.Sequential, with parameters in another order."""

    def __init__(self, use):
        super().__init__()
        self.last = linear(2, 2)
        self.net = nn.Sequential(linear(2, 7), linear(7, 2))
        self.scale = nn.Parameter(torch.ones(2, **torch_double))
        self.use = use

    def forward(self, x):
        return self.use(self, x)
