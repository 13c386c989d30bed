"""Everything the papers state or show, item by item, and which entries of the ledger judge it.

``docs/papers.md`` is the table that ``docs/gallery.py`` makes of it. An item with a `reason` is not
complete, and the reason says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("items.txt")
QUICK_ONLY = "quick only: "
"""Begins a reason that holds as long as the figure's experiment was not run at the paper's size."""


@dataclass(frozen=True)
class Item:
    """One theorem, formula, sentence or figure of a paper.

    Attributes
    ----------
    paper, name : str
        Its number and what the paper calls the item.
    judged : str
        Entries of the ledger that judge it, separated by spaces.
    figure : str
        The experiment that draws it, if it is a figure.
    reason : str
        Why it is not complete, if it is not.
    """

    paper: str
    name: str
    judged: str
    figure: str = ""
    reason: str = ""


@cache
def all_items() -> tuple[Item, ...]:
    """Return the items in the papers' order."""
    items, paper = [], ""
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            paper = line[3:]
        elif line and not line.startswith("#"):
            items.append(Item(paper, *(cell.strip() for cell in line.split("|"))))
    return tuple(items)
