"""Tensors from files in the safetensors format, without running or trusting anything in them.

A file is the length of its header in 8 bytes, little-endian, the header, and the tensors' bytes.
The header is JSON: for each tensor its type, its shape, and where its bytes begin and end after the
header. The tensors fill the rest of the file, without gaps or overlaps.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hessence._common.schema import fits
from hessence.papers.experiments.datasets import MissingDataError

LENGTH = struct.Struct("<Q")
LONGEST = 2**24
"""No header has more bytes; that of GPT-2 has some ten thousand."""

MOST_DIMENSIONS = 8

FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""The types that are read, and NumPy's name for how they lie in the file."""


@dataclass(frozen=True)
class Entry:
    """A tensor's type, its shape, and where its bytes are after the header."""

    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Tensors:
    """The tensors of a file by name; each is read when it is asked for."""

    path: Path
    entries: Mapping[str, Entry]
    start: int

    def read(self, name: str) -> Any:
        """Return a tensor as an array of float32, all of it finite."""
        entry = self.entries[name]
        if entry.kind not in FLOATS:
            known = ", ".join(FLOATS)
            raise MissingDataError(
                f"{self.path} holds {name} as {entry.kind}, where {known} are read."
            )
        count = math.prod(entry.shape)
        raw = np.fromfile(self.path, FLOATS[entry.kind], count, offset=self.start + entry.begin)
        if entry.kind == "BF16":
            # The upper half of a float32.
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        values = raw.astype(np.float32)
        if not np.isfinite(values).all():
            raise MissingDataError(f"{self.path} holds {name} with NaN or infinite values.")
        return values.reshape(entry.shape)


def open_tensors(path: Path) -> Tensors:
    """Read and check the header of a file; no tensor is read yet."""
    held = path.stat().st_size
    try:
        with path.open("rb") as stream:
            (length,) = LENGTH.unpack(stream.read(LENGTH.size))
            if length > min(LONGEST, held - LENGTH.size):
                raise ValueError(f"its header cannot have {length} bytes")
            header = _table(stream.read(length))
        entries = {name: _entry(name, fields) for name, fields in header.items()
                   if name != "__metadata__"}  # fmt: skip
        start = LENGTH.size + length
        _require_full(entries, held - start)
    except struct.error as error:
        raise MissingDataError(f"{path} is not a safetensors file: it is too short.") from error
    except ValueError as error:
        raise MissingDataError(f"{path} is not a safetensors file: {error}.") from error
    return Tensors(path, entries, start)


def _table(content: bytes) -> dict[str, Any]:
    def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError
        return dict(pairs)

    try:
        table = json.loads(content, object_pairs_hook=without_repetition)
    except (ValueError, RecursionError) as error:
        raise ValueError("its header is no JSON, or names something twice") from error
    if not isinstance(table, dict):
        raise ValueError("its header is no table")
    return table


def _entry(name: str, fields: Any) -> Entry:
    told = f"{name[:60]!r} has no type, shape and offsets that fit together"
    if not isinstance(fields, dict) or fields.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(told)
    kind, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(kind, str) or not all(
        isinstance(numbers, list)
        and len(numbers) <= MOST_DIMENSIONS
        and all(fits(n, int) and n >= 0 for n in numbers)
        for numbers in (shape, offsets)
    ):
        raise ValueError(told)
    # Types are called after their bits: F32, BF16, I64, F8_E4M3; a truth value takes a byte.
    bits = 8 if kind == "BOOL" else int((re.search(r"\d{1,3}", kind) or ["0"])[0])
    if len(offsets) != 2 or 8 * (offsets[1] - offsets[0]) != bits * math.prod(shape) or not bits:
        raise ValueError(told)
    return Entry(kind, tuple(shape), *offsets)


def _require_full(entries: Mapping[str, Entry], size: int) -> None:
    """Refuse tensors that overlap, leave gaps, or do not end where the file does."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != end:
            raise ValueError(f"{name[:60]!r} begins at byte {entry.begin} and not at {end}")
        end = entry.end
    if end != size:
        raise ValueError(f"its tensors have {end} bytes, and {size} follow the header")
