"""Products of a term with several vectors: one by one, or at once where a trial says it pays."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hessence.models.parameters import Parameters
from hessence.models.setting import Mode
from hessence.models.terms import Term

TRIAL = 4
"""How many vectors the two ways to multiply are timed with."""

CLEARLY = 0.8
"""Blocks must take less than this share of the time of single vectors."""

BRIEF, REPEATS = 0.05, 5
"""A trial of less than so many seconds is repeated up to so many times."""


class BlockProducts:
    """Multiplies terms by vectors, which are rows here.

    Parameters
    ----------
    parameters : Parameters
        How a row is cut into tensors.
    chosen : sequence of int
        Which parameters of the term they are.
    mode : {"auto", "vectors", "blocks"}
        One by one, at once, or as a trial on the first term says.
    widest : callable
        Tells how many vectors there is room for at once.
    """

    def __init__(
        self, parameters: Parameters, chosen: Sequence[int], mode: Mode, widest: Callable[[], int]
    ) -> None:
        self._parameters, self._chosen, self._widest = parameters, chosen, widest
        self.mode: Mode = mode

    def multiply(self, term: Term, rows: Tensor) -> Tensor:
        """Return the products of a term with the rows."""
        if len(rows) == 1:
            return self._one(term, rows[0])[None]
        if not term.takes_blocks or not self._pays(term, rows):
            return self._one_by_one(term, rows)
        return self._at_once(term, rows)

    def _one(self, term: Term, row: Tensor) -> Tensor:
        parts = term.multiply(self._parameters.split(row), self._chosen)
        return self._parameters.join(parts).to(row.dtype)

    def _one_by_one(self, term: Term, rows: Tensor) -> Tensor:
        images = torch.empty_like(rows)
        for row, image in zip(rows, images, strict=True):
            image.copy_(self._one(term, row))
        return images

    def _at_once(self, term: Term, rows: Tensor) -> Tensor:
        images = torch.empty_like(rows)
        width = self._widest()
        for some, image in zip(rows.split(width), images.split(width), strict=True):
            try:
                image.copy_(self._block(term, some))
            except RuntimeError:  # from an operation that cannot be batched
                self.mode = "vectors"
                image.copy_(self._one_by_one(term, some))
        return images

    def _block(self, term: Term, rows: Tensor) -> Tensor:
        with warnings.catch_warnings():
            # An operation that PyTorch cannot batch is looped over, as without blocks.
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            parts = term.multiply(self._parameters.split(rows), self._chosen, batched=True)
        return self._parameters.join(parts)

    def _pays(self, term: Term, rows: Tensor) -> bool:
        """Decide once, by a trial, whether blocks are faster."""
        if self.mode == "auto":
            single, block = self._trial(term, rows[:TRIAL])
            if self.mode == "auto":  # and blocks have not failed
                self.mode = "blocks" if block < CLEARLY * single else "vectors"
        return self.mode == "blocks"

    def _trial(self, term: Term, rows: Tensor) -> tuple[float, float]:
        """Return how long one by one and at once take; the shortest times where they are short.

        Short times scatter, and the choice should be the same whenever it is made.
        """
        single: list[float] = []
        block: list[float] = []
        while not single or (single[0] < BRIEF and len(single) < REPEATS):
            single.append(_seconds(lambda: self._one_by_one(term, rows), rows.device))
            block.append(_seconds(lambda: self._at_once(term, rows), rows.device))
        return min(single), min(block)


def _seconds(work: Callable[[], Tensor], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
