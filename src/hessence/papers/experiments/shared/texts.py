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


STORIES = (
    "Once upon a time, there was a little boy named Tom. Tom had a red kite and he loved it very "
    "much. One sunny day, he took his kite to the big hill behind his house. The wind was strong "
    "and the kite went up, up, up into the blue sky. Tom laughed and ran in the grass. But then "
    "the string broke! The kite flew away over the trees. Tom was very sad and he started to cry. "
    "His sister Mia heard him and came to help. They looked and looked, and at last they saw the "
    "kite in a tall tree. A kind man with a ladder got it down for them. Tom gave him a big hug "
    'and said, "Thank you!" From that day on, Tom always tied the string very well.',
    "One day, a small brown dog named Max was walking in the park. He saw a duck in the pond. "
    '"Hello, duck," said Max. "Do you want to play with me?" The duck shook her head. "I can '
    'not play now," she said. "I lost my egg and I do not know where it is." Max wanted to help. '
    "He put his nose on the ground and sniffed. He sniffed near the bench and he sniffed under "
    'the bush. Then he found something round and white in the soft leaves. "Is this your egg?" '
    'he asked. The duck was so happy that she jumped. "Yes, it is! You are a good friend," she '
    "said. They sat together and kept the egg warm. The next week, a tiny yellow duck came out.",
    "Lily and her grandma liked to bake cakes together. On Saturday they wanted to make a cake "
    "for Lily's dad, because it was his birthday. Lily put the flour in a bowl. Grandma put in the "
    "eggs and the milk. Then Lily saw a jar with white powder and she thought it was sugar. She "
    "put a lot of it in the bowl. When the cake was ready, Grandma took a small bite and made a "
    'funny face. "Oh no, Lily, this was salt!" she said. Lily felt bad and wanted to cry. But '
    'Grandma smiled and said, "We all make mistakes. Let us try again." They made a new cake, '
    "and this time it was sweet. Dad ate three big pieces and said it was the best cake ever.",
    "There was an old tree in the middle of the forest. Many birds lived in the tree and they "
    "sang every morning. One winter it was very cold and there was a lot of snow. The birds were "
    "hungry and could not find any food. A little girl named Anna looked out of her window and "
    "saw them. She asked her mom if she could give them some bread. Her mom said yes. Anna put on "
    "her warm coat and her blue hat and went outside. She put the bread under the old tree. The "
    "birds came down and ate it all. Every day Anna came back with more. When spring came, the "
    "birds sang the most beautiful song for her, and Anna was very happy.",
)


def stories_of(text: str) -> tuple[str, ...]:
    """Return the stories of a file, which blank lines or ``<|endoftext|>`` divide; or our own.

    `text` is ``"stories"`` for our own, or the path of a file.
    """
    if text == "stories":
        return STORIES
    content = Path(text).read_text(encoding="utf-8", errors="replace")
    mark = "<|endoftext|>"
    parts = content.split(mark if mark in content else "\n\n")
    return tuple(part.strip() for part in parts if part.strip())
