"""Text as whole numbers, for language models.

``stdlib`` is the source code of Python's standard library: text of some megabytes that is there
wherever this library runs, though it differs a little between versions of Python. A path stands
for any other file. Both are read byte by byte, so that there are 256 tokens. ``openwebtext`` is
GPT-2's own kind of data: the file ``train.bin`` that nanoGPT's ``data/openwebtext/prepare.py``
writes, tokens of GPT-2's vocabulary of 50 257 in 16 bits each.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hessence.papers.experiments.datasets import MissingDataError, openwebtext_file

STDLIB, OPENWEBTEXT = "stdlib", "openwebtext"
GPT2_VOCABULARY = 50_257


def text_data(text: str) -> tuple[str, ...]:
    """Return the data sets that must be there for this text, for ``Experiment(data=...)``."""
    return (OPENWEBTEXT,) if text == OPENWEBTEXT else ()


def require_text(text: str, least: int, known: Sequence[str] = (STDLIB, OPENWEBTEXT)) -> None:
    """Raise ValueError unless `text` is known or a file of at least so many bytes."""
    if text in known:
        return
    if not os.path.isfile(text):
        raise ValueError(
            f"text must be {', '.join(known)} or the path of a file, and there is no file {text!r}"
        )
    size = os.path.getsize(text)
    if size < least:
        raise ValueError(f"text must hold at least {least} bytes, and {text!r} holds {size}")


def load_tokens(text: str) -> Any:
    """Return all tokens of a text as an array of whole numbers."""
    if text == OPENWEBTEXT:
        path = openwebtext_file()
        size = path.stat().st_size
        if size == 0 or size % 2:
            raise MissingDataError(
                f"{path} must hold tokens of two bytes each, and holds {size} bytes."
            )
        return np.memmap(path, dtype="<u2", mode="r")
    content = _standard_library() if text == STDLIB else Path(text).read_bytes()
    return np.frombuffer(content, np.uint8)


def windows(tokens: Any, count: int, length: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Draw stretches of a text: tokens (count, length), and for each the token after it."""
    if len(tokens) <= length:
        raise ValueError(
            f"text must hold more than {length} tokens, as many as the context, and holds "
            f"{len(tokens)}"
        )
    starts = rng.integers(len(tokens) - length, size=count)
    drawn = np.stack([tokens[start : start + length + 1] for start in starts]).astype(np.int64)
    # Only what is drawn: a look at all of the nine billion tokens would take minutes.
    if drawn.size and drawn.max() >= GPT2_VOCABULARY:
        raise ValueError(
            f"text must hold tokens of GPT-2, below {GPT2_VOCABULARY}, and holds {drawn.max()}, "
            "as if train.bin had been made with another vocabulary"
        )
    return drawn[:, :-1], drawn[:, 1:]


def _standard_library() -> bytes:
    """Return the modules at the top of the standard library, in the order of their names."""
    folder = Path(sysconfig.get_path("stdlib"))
    modules = sorted(folder.glob("*.py"), key=lambda path: path.name)
    if not modules:
        raise MissingDataError(
            f"{folder} holds no source code of the standard library; give a file with --set text."
        )
    return b"".join(path.read_bytes() for path in modules)
