"""Language models that others have trained, from files, and text in their own tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hessence.papers.experiments.datasets import checkpoint_files, gpt2_files
from hessence.papers.experiments.shared.byte_pairs import START, load_byte_pairs
from hessence.papers.experiments.shared.gpt2 import load_gpt2
from hessence.papers.experiments.shared.language_training import device
from hessence.papers.experiments.shared.llama2c import load_checkpoint, load_tokenizer
from hessence.papers.experiments.shared.texts import OPENWEBTEXT, load_tokens, stories_of, windows

GPT2 = "gpt2"
"""The name of a checkpoint; all others end in ``.bin`` and are models of llama2.c."""


def load_pretrained(
    checkpoint: str, text: str, sequences: int, context: int, rng: np.random.Generator
) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a model, sequences of text (sequences, context), and for each token the one after it.

    A sequence is the beginning of a story, after the token that starts a text. Only of OpenWebText
    it is any stretch of the text.
    """
    model, encode, longest = _model(checkpoint)
    if context > longest:
        raise ValueError(f"context must be at most {longest} for {checkpoint}, got {context}")
    where = device()
    if text == OPENWEBTEXT:
        x, y = windows(load_tokens(text), sequences, context, rng)
        return model.to(where), torch.from_numpy(x).to(where), torch.from_numpy(y).to(where)
    length = context + 1
    told = [tokens for story in stories_of(text) if len(tokens := encode(story)) >= length]
    if len(told) < sequences:
        raise ValueError(
            f"text must hold {sequences} stories of {length} tokens or more, and {text!r} holds "
            f"{len(told)}; lower sequences or context"
        )
    chosen = rng.choice(len(told), sequences, replace=False)
    drawn = torch.tensor([told[i][:length] for i in sorted(chosen)], device=where)
    return model.to(where), drawn[:, :-1], drawn[:, 1:]


def _model(checkpoint: str) -> tuple[Any, Callable[[str], list[int]], int]:
    """Return a model, the tokens of a text with the start in front, and the longest sequence."""
    if checkpoint == GPT2:
        weights, vocabulary, merges = gpt2_files()
        gpt = load_gpt2(weights)
        pairs = load_byte_pairs(vocabulary, merges, gpt.embedding.num_embeddings)
        longest = gpt.positions.num_embeddings
        return gpt, lambda story: [pairs.numbers[START], *pairs.encode(story)], longest
    path, tokenizer_path = checkpoint_files(checkpoint)
    llama = load_checkpoint(path)
    tokenizer = load_tokenizer(tokenizer_path, llama.embedding.num_embeddings)
    return llama, tokenizer.encode, llama.context
