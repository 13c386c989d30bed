"""GPT-2's vocabulary: text to tokens by byte pairs.

Words, numbers, runs of other characters and of white space are encoded one by one. Each starts as
its bytes; then, as long as two neighbours are a pair of the list of merges, the pair that comes
first in the list is joined, wherever it occurs. The files spell each byte as a printable character.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hessence._common.files import read_regular
from hessence._common.schema import fits
from hessence.papers.experiments.datasets import MissingDataError

START = "<|endoftext|>"
"""The token between two texts, and so before each."""

LARGEST = 2**26
"""No file of a vocabulary has more bytes; GPT-2's have a million and half a million."""

KEPT = "strevmld' "
"""The characters that the pattern needs to see as they are."""

PATTERN = re.compile(r"'(?:[stmd]|re|ve|ll)| ?[astrevmld]+| ?1+| ?[!']+|[ _]+(?![^ _])|[ _]+")
"""GPT-2's: contractions, letters, numbers, others, and white space, whose last belongs to what
follows. Letters are written a, numbers 1, white space but " " is _, and all others are !."""


def _spelling() -> list[str]:
    """Return the character for each byte: itself if printable in Latin-1, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelt = {byte: chr(byte) for byte in printable}
    spelt |= {byte: chr(0x100 + i) for i, byte in enumerate(others)}
    return [spelt[byte] for byte in range(256)]


SPELLING = _spelling()


def pieces(text: str) -> list[str]:
    """Cut a text where GPT-2's pattern cuts it.

    Examples
    --------
    >>> pieces("It's 10 o'clock,  Tom.")
    ['It', "'s", ' 10', ' o', "'", 'clock', ',', ' ', ' Tom', '.']
    """
    classes = "".join(map(_class, text))
    return [text[piece.start() : piece.end()] for piece in PATTERN.finditer(classes)]


def _class(character: str) -> str:
    """Return one letter for all characters that the pattern does not tell apart.

    Python's regular expressions know no classes of Unicode, and GPT-2's pattern is made of them.
    """
    if character in KEPT:
        return character
    kind = unicodedata.category(character)[0]
    return {"L": "a", "N": "1"}.get(kind, "_" if character.isspace() else "!")


@dataclass(frozen=True)
class BytePairs:
    """The numbers of all tokens, as they are spelt in the file, and the ranks of all merges.

    Examples
    --------
    >>> numbers = {character: i for i, character in enumerate(SPELLING)} | {"ab": 256, "Ġab": 257}
    >>> BytePairs(numbers, {("a", "b"): 0, ("Ġ", "ab"): 1}).encode("ab ab")
    [256, 257]
    """

    numbers: dict[str, int]
    ranks: dict[tuple[str, str], int]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        tokens: list[int] = []
        for piece in pieces(text):
            spelt = [SPELLING[byte] for byte in piece.encode()]
            tokens += [self.numbers[part] for part in self._merged(spelt)]
        return tokens

    def _merged(self, parts: list[str]) -> list[str]:
        while len(parts) > 1:
            pairs = set(pairwise(parts))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            joined: list[str] = []
            for part in parts:
                if joined and (joined[-1], part) == best:
                    joined[-1] += part
                else:
                    joined.append(part)
            parts = joined
        return parts


def load_byte_pairs(vocabulary: Path, merges: Path, count: int) -> BytePairs:
    """Return the vocabulary of two files, if it has so many tokens.

    `vocabulary` is GPT-2's ``encoder.json``, or ``vocab.json`` by another name; `merges` is
    ``vocab.bpe``, or ``merges.txt``.
    """
    numbers = _numbers(vocabulary, count)
    ranks: dict[tuple[str, str], int] = {}
    for line in _text(merges).split("\n"):
        if line.startswith("#version") or not line.strip():
            continue
        parts = line.rstrip("\r").split(" ")
        if len(parts) != 2 or any(part not in numbers for part in (*parts, "".join(parts))):
            raise MissingDataError(
                f"{merges} does not belong to {vocabulary.name}: it merges {line[:60]!r}."
            )
        ranks[parts[0], parts[1]] = len(ranks)
    return BytePairs(numbers, ranks)


def _numbers(path: Path, count: int) -> dict[str, int]:
    try:
        numbers = json.loads(_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise MissingDataError(f"{path} is not a vocabulary: no JSON in it.") from error
    whole = isinstance(numbers, dict) and all(fits(number, int) for number in numbers.values())
    if not whole or sorted(numbers.values()) != list(range(count)):
        raise MissingDataError(f"{path} should number {count} tokens, as many as the model has.")
    missing = [name for name in (*SPELLING, START) if name not in numbers]
    if missing:
        raise MissingDataError(f"{path} is not GPT-2's vocabulary: it lacks {missing[0]!r}.")
    found: dict[str, int] = numbers
    return found


def _text(path: Path) -> str:
    if path.stat().st_size > LARGEST:
        raise MissingDataError(f"{path} has more than {LARGEST} bytes, which no vocabulary has.")
    try:
        return read_regular(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise MissingDataError(f"{path} is not a text in UTF-8.") from error
