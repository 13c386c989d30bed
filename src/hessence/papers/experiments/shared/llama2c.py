"""The files of llama2.c, a small C program that runs LLaMA: checkpoints and their tokenizer.

A checkpoint of the first format, such as ``stories15M.bin``, holds seven 32-bit numbers (width,
hidden width, layers, heads, heads of keys and values, vocabulary, context; a negative vocabulary
says that the output is not tied to the embedding) and then all weights in float32: each kind of
weight for all layers before the next kind. ``tokenizer.bin`` holds the longest token's length and,
for each token, its score in float32, its length and its bytes.
"""

from __future__ import annotations

import heapq
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hessence._common.files import read_regular
from hessence.papers.experiments.datasets import MissingDataError
from hessence.papers.experiments.shared.llama import Llama, LlamaShape

HEADER = struct.Struct("<7i")
NEWER = 0x616B3432
"""The first number of the later formats, "ak42"."""

START = 1
"""The token that every text starts with."""

BYTES = 3
"""The token of byte 0; tokens of the other bytes follow."""

LONGEST = 2**28
"""No tokenizer has more bytes."""

LARGEST, DEEPEST = 1_000_000, 1_000
"""No number of a header is larger, and no model has more layers."""


def load_checkpoint(path: Path) -> Llama:
    """Return the model of a checkpoint of llama2.c's first format, in float32 on the CPU."""
    with path.open("rb") as stream:
        shape = _shape(path, stream.read(HEADER.size))
    # The file also holds cosines and sines of all rotations, which are not needed.
    turns = 2 * shape.context * (shape.head_size // 2)
    expected = HEADER.size + 4 * (shape.parameters + turns)
    held = path.stat().st_size
    if held != expected:
        raise MissingDataError(
            f"{path} should hold {expected} bytes by its header and holds {held}."
        )
    values = np.fromfile(path, "<f4", offset=HEADER.size)
    if not np.isfinite(values).all():
        raise MissingDataError(f"{path} holds weights that are NaN or infinite.")
    model = Llama(shape)
    places = _places(model)
    last = None if shape.tied else places.pop()
    start = 0
    for place in places:
        start = _fill(place, values, start)
    if last is not None:
        _fill(last, values, start + turns)
    return model


def _shape(path: Path, header: bytes) -> LlamaShape:
    numbers = HEADER.unpack(header) if len(header) == HEADER.size else (0,) * 7
    if numbers[0] == NEWER:
        raise MissingDataError(f"{path} has llama2.c's newer format; export it with --version 0.")
    width, hidden, layers, heads, kv_heads, vocabulary, context = numbers
    try:
        if vocabulary == 0 or context < 1 or layers > DEEPEST or max(map(abs, numbers)) > LARGEST:
            raise ValueError
        return LlamaShape(width, hidden, layers, heads, kv_heads, abs(vocabulary), context,
                          tied=vocabulary > 0)  # fmt: skip
    except ValueError as error:
        raise MissingDataError(f"{path} is not a checkpoint of llama2.c.") from error


def _places(model: Llama) -> list[torch.Tensor]:
    """Return the parameters in the order of the file; a classifier is the last one."""
    of_layers = ("attention_norm", "attention.wq", "attention.wk", "attention.wv", "attention.wo",
                 "feed_norm", "feed.w1", "feed.w2", "feed.w3")  # fmt: skip
    places = [model.embedding.weight]
    for name in of_layers:
        places += [block.get_submodule(name).weight for block in model.blocks]
    places.append(model.last.weight)
    if model.classifier is not None:
        places.append(model.classifier.weight)
    return places


def _fill(place: torch.Tensor, values: Any, start: int) -> int:
    end = start + int(place.numel())
    with torch.no_grad():
        place.copy_(torch.from_numpy(values[start:end]).view_as(place))
    return end


@dataclass(frozen=True)
class Tokenizer:
    """Pieces of text with their scores, in the order of their numbers.

    Examples
    --------
    >>> pieces = [b"<unk>", b"<s>", b"</s>", *(bytes([i]) for i in range(256)), b" ", b"a", b" a"]
    >>> Tokenizer(tuple(pieces), (0.0,) * 259 + (-1.0, -2.0, -3.0)).encode("aé")
    [1, 261, 198, 172]
    """

    pieces: tuple[bytes, ...]
    scores: tuple[float, ...]

    def encode(self, text: str) -> list[int]:
        """Return the start and the tokens of a text, which is given a space in front.

        Characters are looked up first, in bytes if they are unknown; then, as long as two
        neighbours make a piece, those are joined whose piece has the highest score, the leftmost
        of equals first.
        """
        # Tokens of bytes spell like the characters after them: the later one is meant.
        number = {piece: i for i, piece in enumerate(self.pieces)}
        tokens: list[int] = []
        for character in " " + text if text else "":
            spelt = character.encode()
            tokens += [number[spelt]] if spelt in number else [BYTES + byte for byte in spelt]
        return [START, *self._joined(tokens, number)]

    def _joined(self, tokens: list[int], number: dict[bytes, int]) -> list[int]:
        """Join neighbours, best first: a heap of candidates over a linked list."""
        alive: list[int | None] = [*tokens]
        after = list(range(1, len(tokens) + 1))
        before = list(range(-1, len(tokens) - 1))
        heap: list[tuple[float, int, int, int, int]] = []

        def offer(left: int) -> None:
            right = after[left] if left >= 0 else len(tokens)
            if left < 0 or right >= len(tokens):
                return
            first, second = alive[left], alive[right]
            assert first is not None
            assert second is not None
            joint = number.get(self.pieces[first] + self.pieces[second])
            if joint is not None:
                heapq.heappush(heap, (-self.scores[joint], left, joint, first, second))

        for left in range(len(tokens) - 1):
            offer(left)
        while heap:
            _, left, joint, first, second = heapq.heappop(heap)
            right = after[left]
            if alive[left] != first or right >= len(tokens) or alive[right] != second:
                continue
            alive[left], alive[right] = joint, None
            after[left] = after[right]
            if after[left] < len(tokens):
                before[after[left]] = left
            offer(before[left])
            offer(left)
        return [token for token in alive if token is not None]


def load_tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    """Return the tokenizer of a file that holds so many tokens."""
    pieces, scores, at = [], [], 4
    try:
        content = read_regular(path, LONGEST)
        for _ in range(vocabulary):
            score, length = struct.unpack_from("<fi", content, at)
            piece = content[at + 8 : at + 8 + length]
            if length < 0 or len(piece) != length or not math.isfinite(score):
                raise ValueError
            pieces.append(piece)
            scores.append(score)
            at += 8 + length
        if at != len(content):
            raise ValueError
    except (struct.error, ValueError) as error:
        raise MissingDataError(
            f"{path} is not llama2.c's tokenizer of {vocabulary} tokens."
        ) from error
    return Tokenizer(tuple(pieces), tuple(scores))
