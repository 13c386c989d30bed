"""Models of every kind that users bring, small enough for their dense matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

SAMPLES = 11


@dataclass
class Problem:
    """A model, data and a loss, with the loss written out as a user would."""

    model: nn.Module
    x: Any
    y: torch.Tensor
    loss: nn.Module

    @property
    def data(self):
        return self.x, self.y

    def predict(self):
        if isinstance(self.x, dict):
            return self.model(**self.x)
        return self.model(*self.x) if isinstance(self.x, tuple) else self.model(self.x)

    def value(self):
        return self.loss(self.predict(), self.y)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def tanh_mlp():
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    return Problem(model, numbers(SAMPLES, 3), numbers(SAMPLES, 2), nn.MSELoss())


def relu_mlp():
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    return Problem(model, numbers(SAMPLES, 3), torch.randint(3, (SAMPLES,)), nn.CrossEntropyLoss())


def conv_net():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(2, 3, 2), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3),
    )  # fmt: skip
    x = numbers(SAMPLES, 1, 6, 6)
    return Problem(model, x, torch.randint(3, (SAMPLES,)), nn.CrossEntropyLoss())


def layer_norm():
    model = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 2))
    nn.init.normal_(model[1].weight)
    nn.init.normal_(model[1].bias)
    return Problem(model, numbers(SAMPLES, 3), numbers(SAMPLES, 2), nn.MSELoss())


def group_norm():
    model = nn.Sequential(nn.Linear(3, 6), nn.GroupNorm(2, 6), nn.Softplus(), nn.Linear(6, 1))
    nn.init.normal_(model[1].weight)
    return Problem(model, numbers(SAMPLES, 3), numbers(SAMPLES, 1), nn.MSELoss(reduction="sum"))


def batch_norm():
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))
    model(numbers(20, 3).float())
    nn.init.normal_(model[1].weight)
    return Problem(model.eval(), numbers(SAMPLES, 3), numbers(SAMPLES, 2), nn.MSELoss())


def embedding():
    model = nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(12, 3))
    x = torch.randint(6, (SAMPLES, 4))
    return Problem(model, x, torch.randint(3, (SAMPLES,)), nn.CrossEntropyLoss())


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.recurrent = kind(2, 3, batch_first=True, **options)
        self.out = nn.Linear(3 * (1 + self.recurrent.bidirectional), 2)

    def forward(self, x):
        return self.out(self.recurrent(x)[0][:, -1])


def lstm():
    return Problem(Recurrent(nn.LSTM), numbers(7, 4, 2), torch.randint(2, (7,)),
                   nn.CrossEntropyLoss())  # fmt: skip


def gru():
    model = Recurrent(nn.GRU, bidirectional=True)
    return Problem(model, numbers(7, 4, 2), numbers(7, 2), nn.MSELoss())


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=5, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.layer(x).mean(1))


def encoder_layer():
    return Problem(Encoder().eval(), numbers(5, 3, 4), numbers(5, 2), nn.MSELoss())


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    """Causal attention, affine layer norms, and one matrix for embedding and output."""

    def __init__(self, tokens=5, length=4, width=4, heads=2, depth=2):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.positions = nn.Parameter(torch.randn(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x).transpose(1, 2)


def gpt():
    model = Gpt(depth=1)
    tokens = torch.randint(5, (6, 5))
    return Problem(model, tokens[:, :-1], tokens[:, 1:], nn.CrossEntropyLoss())


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.idle, self.last = nn.Linear(3, 3), nn.Linear(3, 4), nn.Linear(3, 1)
        self.factor = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) * self.factor)


def unused_parameters():
    return Problem(Unused(), numbers(SAMPLES, 3), numbers(SAMPLES, 1), nn.MSELoss())


def linear():
    return Problem(nn.Linear(4, 3), numbers(SAMPLES, 4), numbers(SAMPLES, 3), nn.MSELoss())


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.out = nn.Linear(2, 3), nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, left, right):
        return self.out(torch.tanh(self.left(left)) * torch.sigmoid(self.right(right)))


def two_inputs():
    x = numbers(SAMPLES, 2), numbers(SAMPLES, 4)
    return Problem(Pair(), x, numbers(SAMPLES, 2), nn.MSELoss())


def inputs_by_name():
    x = {"right": numbers(SAMPLES, 4), "left": numbers(SAMPLES, 2)}
    return Problem(Pair(), x, torch.randint(2, (SAMPLES,)), nn.CrossEntropyLoss(reduction="sum"))


MODELS = {f.__name__: f for f in (
    tanh_mlp, relu_mlp, conv_net, layer_norm, group_norm, batch_norm, embedding, lstm, gru,
    encoder_layer, gpt, unused_parameters, linear, two_inputs, inputs_by_name,
)}  # fmt: skip


def problem(name, dtype=torch.float64):
    """Build a problem, the same one every time, without touching the global random state."""
    with torch.random.fork_rng():
        torch.manual_seed(20260)
        made = MODELS[name]()
    made.model.to(dtype)
    if dtype != torch.float64:
        made.x, made.y = _cast(made.x, dtype), _cast(made.y, dtype)
    return made


def _cast(x, dtype):
    if isinstance(x, tuple):
        return tuple(_cast(part, dtype) for part in x)
    if isinstance(x, dict):
        return {name: _cast(part, dtype) for name, part in x.items()}
    return x.to(dtype) if x.is_floating_point() else x
