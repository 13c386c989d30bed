"""A small GPT in the shape of nanoGPT's, with attention or without, and sinks that can be enforced.

Attention is written out rather than called, so that its weights can be looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SPREAD = 0.02
"""The standard deviation of GPT-2's initial weights."""


@dataclass(frozen=True)
class GptShape:
    """How large a GPT is; `context` is the longest sequence.

    With `biases` it is OpenAI's GPT-2, whose GELU is the approximation by tanh.
    """

    vocabulary: int
    context: int
    width: int
    heads: int
    layers: int
    biases: bool = False

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of the heads, {self.heads}")


class SinkAttention(nn.Module):  # type: ignore[misc]
    """Causal attention whose first head scores the first token higher by ``sink``.

    Subclasses say what queries, keys and values are, and what becomes of the heads' outputs.
    """

    sink: Tensor

    def __init__(self) -> None:
        super().__init__()
        # A buffer, since operators on a model copy its buffers and stay what they are.
        self.register_buffer("sink", torch.zeros(()))

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (batch, length, width) to three tensors (batch, heads, length, head size)."""
        raise NotImplementedError

    def output(self, heads: Tensor) -> Tensor:
        """Map (batch, length, width), all heads side by side, to what the layer adds."""
        raise NotImplementedError

    def weights(self, x: Tensor) -> Tensor:
        """Return the attention (batch, heads, length, length) of each query to each key."""
        q, k, _ = self.queries_keys_values(x)
        return self._weights(q, k)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer adds to its input."""
        q, k, v = self.queries_keys_values(x)
        heads = self._weights(q, k) @ v
        return self.output(heads.transpose(1, 2).flatten(2))

    def _weights(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        first = torch.zeros(scores.shape[1:], dtype=scores.dtype, device=scores.device)
        first[0, :, 0] = 1.0
        later = torch.ones_like(first[0], dtype=torch.bool).triu(1)
        return (scores + self.sink * first).masked_fill(later, -math.inf).softmax(dim=-1)


class GptAttention(SinkAttention):
    """GPT-2's attention."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.projections = nn.Linear(shape.width, 3 * shape.width, bias=shape.biases)
        self.out = nn.Linear(shape.width, shape.width, bias=shape.biases)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split one projection into three, and each into heads."""
        parts = self.projections(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        return q, k, v

    def output(self, heads: Tensor) -> Tensor:
        """Mix the heads."""
        mixed: Tensor = self.out(heads)
        return mixed


class GptMlp(nn.Module):  # type: ignore[misc]
    """Two layers with GELU between them, four times as wide as the model."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.gelu = nn.GELU("tanh" if shape.biases else "none")
        self.hidden = nn.Linear(shape.width, 4 * shape.width, bias=shape.biases)
        self.out = nn.Linear(4 * shape.width, shape.width, bias=shape.biases)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer adds to its input."""
        added: Tensor = self.out(self.gelu(self.hidden(x)))
        return added


class Gpt(nn.Module):  # type: ignore[misc]
    """A GPT without dropout, its output tied to its embedding, as nanoGPT trains it.

    Parameters
    ----------
    shape : GptShape
        How large it is.
    generator : torch.Generator, optional
        Where the initial weights come from, on the CPU; without one they are undefined until they
        are loaded.
    attention : bool
        Without attention, the attention layers are left out and half as many layers of MLP are
        added, which have as many parameters: 8 d² each rather than 4 d².

    Examples
    --------
    >>> shape = GptShape(vocabulary=256, context=16, width=8, heads=2, layers=4)
    >>> generator = torch.Generator().manual_seed(0)
    >>> Gpt(shape, generator)(torch.zeros(3, 16, dtype=torch.long)).shape
    torch.Size([3, 256, 16])
    """

    def __init__(
        self, shape: GptShape, generator: torch.Generator | None = None, attention: bool = True
    ) -> None:
        super().__init__()
        if not attention and shape.layers % 2:
            raise ValueError(f"layers must be even without attention, got {shape.layers}")
        # Built without values first: PyTorch's own initialisation would draw from global state.
        with torch.device("meta"):
            kinds = (
                [GptAttention, GptMlp] * shape.layers
                if attention
                else [GptMlp] * (shape.layers + shape.layers // 2)
            )
            self.embedding = nn.Embedding(shape.vocabulary, shape.width)
            self.positions = nn.Embedding(shape.context, shape.width)
            self.norms = nn.ModuleList(nn.LayerNorm(shape.width, bias=shape.biases) for _ in kinds)
            self.layers = nn.ModuleList(kind(shape) for kind in kinds)
            self.last = nn.LayerNorm(shape.width, bias=shape.biases)
        self.to_empty(device="cpu")
        enforce_sink(self, 0.0)
        if generator is not None:
            self._initialise(generator)

    def _initialise(self, generator: torch.Generator) -> None:
        """Draw GPT-2's initial weights: those that write to the stream shrink with the depth."""
        shrunk = SPREAD / math.sqrt(len(self.layers))
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 1:
                nn.init.ones_(parameter)
            else:
                spread = shrunk if name.endswith("out.weight") else SPREAD
                nn.init.normal_(parameter, 0.0, spread, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, length) to logits (batch, vocabulary, length)."""
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return F.linear(self.last(x), self.embedding.weight).transpose(1, 2)


def enforce_sink(model: nn.Module, strength: float) -> None:
    """Raise the scores of the first token, in the first head of all layers, by so much."""
    for layer in _attention_layers(model):
        layer.sink.fill_(strength)


def sink_attention(model: nn.Module, tokens: Tensor) -> float:
    """Return the first heads' attention to the first token, averaged over layers and queries."""
    shares: list[Tensor] = []

    def note(layer: SinkAttention, inputs: tuple[Tensor], _: Tensor) -> None:
        shares.append(layer.weights(inputs[0])[:, 0, :, 0].mean())

    handles = [layer.register_forward_hook(note) for layer in _attention_layers(model)]
    try:
        with torch.no_grad():
            model(tokens)
    finally:
        for handle in handles:
            handle.remove()
    return float(torch.stack(shares).mean())


def sink_for_attention(model: nn.Module, tokens: Tensor, attention: float) -> float:
    """Return the strength at which `sink_attention` is `attention`, found by bisection."""
    low, high = -STRONGEST, STRONGEST
    before = float(_attention_layers(model)[0].sink)
    try:
        while high - low > PRECISION:
            middle = (low + high) / 2
            enforce_sink(model, middle)
            low, high = (
                (middle, high) if sink_attention(model, tokens) < attention else (low, middle)
            )
    finally:
        enforce_sink(model, before)
    return (low + high) / 2


STRONGEST, PRECISION = 40.0, 1e-3
"""Sinks are looked for up to this strength, and told apart from this distance on."""


def _attention_layers(model: nn.Module) -> list[SinkAttention]:
    return [layer for layer in model.modules() if isinstance(layer, SinkAttention)]
