"""A small transformer that has learnt to reverse sequences, for the command line.

    hessence spectrum examples/small_transformer.py:build

prints its largest eigenvalues and writes a picture of their density.
"""

import torch
from torch import nn

SYMBOLS, LENGTH, WIDTH = 8, 6, 16


class Transformer(nn.Module):
    """Reads sequences (n, length) and gives scores of symbols (n, symbols, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Parameter(0.5 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        return self.head(self.blocks(self.symbols(words) + self.places)).mT


def build():
    """Return model, data and loss."""
    torch.manual_seed(0)
    words = torch.randint(SYMBOLS, (256, LENGTH))
    model, loss, data = Transformer(), nn.CrossEntropyLoss(), (words, words.flip(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        loss(model(data[0]), data[1]).backward()
        optimizer.step()
    return model, data, loss
