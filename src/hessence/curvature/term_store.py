"""The terms of an operator over all batches: kept while they fit into memory, else built again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hessence.curvature.batches import Batches, is_sample_pair, merged
from hessence.curvature.memory import graph_bytes
from hessence.curvature.terms import Term

CHUNK_BYTES = 2.0**27
"""Small batches are merged until their graph holds so much, and larger ones cut."""

LEAST_CHUNK_BYTES = 2.0**24
"""However little memory there is, batches are not cut into smaller pieces than this."""

PROBE = 64
"""How many samples the graph is measured with."""


class TermStore:
    """The terms of all batches, in order.

    Parameters
    ----------
    build : callable
        Makes the term of a batch.
    batches : Batches
        The data.
    separable : bool
        Whether batches may be merged and cut.
    memory : float
        How many bytes all kept graphs may hold together.
    """

    def __init__(
        self,
        build: Callable[[Any], Term],
        batches: Batches,
        *,
        separable: bool,
        memory: float,
    ) -> None:
        self._build, self._batches, self._memory = build, batches, memory
        self._separable = separable
        self._kept: dict[int, Term] = {}
        self._held = 0.0
        self._chunks: list[Any] | None = None
        self._measured: tuple[int, float] | None = None
        self.count: float | None = None

    def __iter__(self) -> Iterator[Term]:
        count = 0.0
        for index, chunk in enumerate(self._all_chunks()):
            term = self._kept.get(index)
            if term is None:
                term = self._build(chunk)
                self._keep(index, term)
            count += term.count
            yield term
        self.count = count

    def first(self) -> Term:
        """Return the term of the first chunk."""
        return next(iter(self))

    @property
    def first_chunk(self) -> Any:
        """The data of the first term."""
        return next(iter(self._all_chunks()))

    @property
    def kept(self) -> int:
        """How many graphs are kept."""
        return len(self._kept)

    @property
    def chunk_bytes(self) -> float:
        """How much memory the graph of one chunk takes."""
        samples, per_sample = self._measure()
        return samples * per_sample

    def release(self) -> None:
        """Let go of all graphs; they are built again when needed."""
        self._kept.clear()
        self._held = 0.0

    def _all_chunks(self) -> Any:
        if self._chunks is not None:
            return self._chunks
        samples, _ = self._measure()
        if self._batches.kept is None:
            return merged(self._batches, samples) if self._separable else self._batches
        self._chunks = (
            list(merged(self._batches, samples)) if self._separable else self._batches.kept
        )
        return self._chunks

    def _measure(self) -> tuple[int, float]:
        """Return the number of samples in a chunk, and how many bytes each takes in a graph."""
        if self._measured is None:
            batch = self._batches.first
            if self._separable and is_sample_pair(batch):
                probe = tuple(part[:PROBE] for part in batch)
                each = max(graph_bytes(lambda: self._build(probe)) / len(probe[0]), 1.0)
                room = max(min(CHUNK_BYTES, self._memory / 4), LEAST_CHUNK_BYTES)
                self._measured = max(1, int(room / each)), each
            else:
                self._measured = 1, float(graph_bytes(lambda: self._build(batch)))
        return self._measured

    def _keep(self, index: int, term: Term) -> None:
        # Without the data there is no telling which chunk of the next pass this is.
        if self._chunks is None:
            return
        size = self._bytes(index)
        if self._held + size <= self._memory:
            self._kept[index] = term
            self._held += size

    def _bytes(self, index: int) -> float:
        _, each = self._measure()
        assert self._chunks is not None
        chunk = self._chunks[index]
        return each * (len(chunk[0]) if self._separable and is_sample_pair(chunk) else 1)
