"""Two models that users have: a small classifier, trained, and a language model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

GPT_STEPS = 20
"""Steps of Adam on one batch of text."""


def digits_classifier(steps: int, width: int = 64) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return a tanh network 64-width-width-10 in float64 after steps of Adam, and its digits."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images) / 16, torch.from_numpy(labels)
    first, second, last = nn.Linear(64, width), nn.Linear(width, width), nn.Linear(width, 10)
    model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last).double()
    _train(model, (x, y), steps)
    return model, (x, y)


def small_gpt() -> tuple[nn.Module, nn.Module, tuple[Tensor, Tensor]]:
    """Return a GPT with fused attention, the same one with attention spelled out, and a batch."""
    torch.manual_seed(0)
    explicit = Gpt(fused=False)
    text = _text(samples=8, length=129, vocabulary=512)
    data = text[:, :-1], text[:, 1:]
    _train(explicit, data, GPT_STEPS)
    fused = Gpt(fused=True)
    fused.load_state_dict(explicit.state_dict())
    return fused, explicit, data


def _train(model: nn.Module, data: tuple[Tensor, Tensor], steps: int) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(data[0]), data[1]).backward()
        optimiser.step()
    optimiser.zero_grad()


def _text(samples: int, length: int, vocabulary: int) -> Tensor:
    """Return random walks through a vocabulary in which every token has four successors."""
    successors = torch.randint(vocabulary, (vocabulary, 4))
    tokens = [torch.randint(vocabulary, (samples,))]
    for _ in range(length - 1):
        tokens.append(successors[tokens[-1], torch.randint(4, (samples,))])
    return torch.stack(tokens, dim=1)


class Attention(nn.Module):
    """Causal attention with several heads, fused or spelled out."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        samples, length, width = x.shape
        shape = samples, length, 3, self.heads, width // self.heads
        q, k, v = self.inward(x).view(shape).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.mT / (width // self.heads) ** 0.5
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            mixed = scores.masked_fill(later, float("-inf")).softmax(dim=-1) @ v
        return self.outward(mixed.transpose(1, 2).reshape(samples, length, width))


class Block(nn.Module):
    """One layer of a GPT."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width, heads, fused=fused)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add what attention and the perceptron have to say."""
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    """A GPT with four layers whose predictions are (samples, vocabulary, positions)."""

    def __init__(
        self,
        *,
        fused: bool,
        width: int = 128,
        context: int = 128,
        vocabulary: int = 512,
        layers: int = 4,
        heads: int = 4,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads, fused=fused) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Predict the next token at every position."""
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x))).mT
