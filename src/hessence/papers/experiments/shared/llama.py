"""LLaMA's architecture, as small as wanted, with the sinks of :mod:`language_models`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hessence.papers.experiments.shared.language_models import SinkAttention, enforce_sink

BASE = 10_000.0
"""The longest wavelength of the rotations, in tokens, is about this times 2π."""


@dataclass(frozen=True)
class LlamaShape:
    """How large a LLaMA is; several query heads may share a head of keys and values."""

    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int
    tied: bool = True

    def __post_init__(self) -> None:
        if min(self.width, self.hidden, self.layers, self.heads, self.kv_heads) < 1:
            raise ValueError("width, hidden, layers, heads and kv_heads must be at least 1")
        if self.width % (2 * self.heads) or self.heads % self.kv_heads:
            raise ValueError("width must be a multiple of 2 · heads, and heads of kv_heads")

    @property
    def head_size(self) -> int:
        """The length of a query."""
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """How many numbers the model consists of."""
        attention = 2 * self.width * (self.heads + self.kv_heads) * self.head_size
        block = attention + 3 * self.width * self.hidden + 2 * self.width
        embedding = self.vocabulary * self.width * (1 if self.tied else 2)
        return embedding + self.layers * block + self.width


class RmsNorm(nn.Module):  # type: ignore[misc]
    """Division by the root mean square, and a gain for each coordinate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return x / √(mean x² + 1e-5), times the gain."""
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5) * self.weight


def rotate(x: Tensor) -> Tensor:
    """Turn the pairs of coordinates (0, 1), (2, 3), … of the token at place t by t · BASE^(−i/d).

    `x` is (..., length, d), and i is the pair's first coordinate: rotary position embedding with
    neighbouring pairs, in which llama2.c stores its weights.
    """
    length, d = x.shape[-2:]
    pairs = torch.arange(0, d, 2, dtype=x.dtype, device=x.device)
    places = torch.arange(length, dtype=x.dtype, device=x.device)
    angles = places[:, None] * BASE ** (-pairs / d)
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class LlamaAttention(SinkAttention):
    """Attention with rotated queries and keys, and groups of heads that share keys and values."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        shared = shape.kv_heads * shape.head_size
        self.head_size, self.copies = shape.head_size, shape.heads // shape.kv_heads
        self.wq = nn.Linear(shape.width, shape.width, bias=False)
        self.wk = nn.Linear(shape.width, shared, bias=False)
        self.wv = nn.Linear(shape.width, shared, bias=False)
        self.wo = nn.Linear(shape.width, shape.width, bias=False)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project, split into heads, rotate, and repeat what heads share."""
        q, k, v = (
            weight(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for weight in (self.wq, self.wk, self.wv)
        )
        k, v = (part.repeat_interleave(self.copies, dim=1) for part in (k, v))
        return rotate(q), rotate(k), v

    def output(self, heads: Tensor) -> Tensor:
        """Mix the heads."""
        mixed: Tensor = self.wo(heads)
        return mixed


class SwiGlu(nn.Module):  # type: ignore[misc]
    """W₂ (silu(W₁ x) · W₃ x)."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.width, shape.hidden, bias=False)
        self.w2 = nn.Linear(shape.hidden, shape.width, bias=False)
        self.w3 = nn.Linear(shape.width, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer adds to its input."""
        added: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return added


class LlamaBlock(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward layer, each after a norm and added to its input."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = RmsNorm(shape.width), RmsNorm(shape.width)
        self.attention, self.feed = LlamaAttention(shape), SwiGlu(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream after the block."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed(self.feed_norm(x))


class Llama(nn.Module):  # type: ignore[misc]
    """A LLaMA; its weights are undefined until they are loaded."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.context = shape.context
        with torch.device("meta"):
            self.embedding = nn.Embedding(shape.vocabulary, shape.width)
            self.blocks = nn.ModuleList(LlamaBlock(shape) for _ in range(shape.layers))
            self.last = RmsNorm(shape.width)
            self.classifier = (
                None if shape.tied else nn.Linear(shape.width, shape.vocabulary, bias=False)
            )
        self.to_empty(device="cpu")
        enforce_sink(self, 0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, length) to logits (batch, vocabulary, length)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        output = self.embedding if self.classifier is None else self.classifier
        return F.linear(self.last(x), output.weight).transpose(1, 2)
