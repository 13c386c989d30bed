"""The terms of an operator over all batches: kept while they fit into memory, else built again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hessence.models.batch_parts import byte_count
from hessence.models.batches import Batches, is_sample_pair, merged
from hessence.models.chunk_size import PROBES, chunk_size
from hessence.models.terms import Term


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
    sizes : callable
        Tells how many bytes each tensor takes that the term of a batch holds.
    cached : bool
        Whether batches are to be cut so that their tensors fit into the cache.
    """

    def __init__(
        self,
        build: Callable[[Any], Term],
        batches: Batches,
        *,
        separable: bool,
        memory: float,
        sizes: Callable[[Any], list[int]],
        cached: bool,
    ) -> None:
        self._build, self._batches, self._memory = build, batches, memory
        self._sizes, self._cached = sizes, cached
        self._separable = separable
        self._kept: dict[int, Term] = {}
        self._held = 0.0
        self._chunks: list[Any] | None = None
        self._largest: float | None = None
        self._measured: tuple[int, float] | None = None
        self.count: float | None = None

    def __iter__(self) -> Iterator[Term]:
        count = 0.0
        for index, chunk in enumerate(self.chunks()):
            term = self._kept.get(index)
            if term is None:
                term = self._build(chunk)
                self._keep(index, term)
            count += term.count
            yield term
            del term  # before the next one is built
        self.count = count

    def first(self) -> tuple[Term, Any]:
        """Return the term of the first chunk, and its data."""
        chunk = next(iter(self.chunks()))
        return (self._kept[0] if 0 in self._kept else self._build(chunk)), chunk

    def chunks(self) -> Iterable[Any]:
        """Go through the data of all terms."""
        if self._chunks is not None:
            return self._chunks
        samples, _ = self._measure()
        kept = self._batches.kept
        if kept is None:
            return self._batches.regrouped(samples) if self._separable else self._batches
        if self._separable:
            total = sum(len(batch[0]) for batch in kept if is_sample_pair(batch))
            even = math.ceil(total / max(1, math.ceil(total / samples)))
            kept = list(self._batches.regrouped(max(even, 1)))
        self._chunks, self._largest = kept, max(map(self._bytes, kept))
        return kept

    @property
    def kept(self) -> int:
        """How many graphs are kept."""
        return len(self._kept)

    @property
    def chunk_bytes(self) -> float:
        """How much memory the graph of the largest chunk takes, as far as chunks are known."""
        if self._largest is not None:
            return self._largest
        samples, per_sample = self._measure()
        return samples * per_sample

    def release(self) -> None:
        """Let go of all graphs; they are built again when needed."""
        self._kept.clear()
        self._held = 0.0

    def _measure(self) -> tuple[int, float]:
        """Return the number of samples in a chunk, and how many bytes each takes in a graph."""
        if self._measured is None:
            batch = self._batches.first
            if self._separable and is_sample_pair(batch):
                if len(batch[0]) < max(PROBES):
                    batch = next(iter(merged(self._batches, max(PROBES))))
                self._measured = chunk_size(self._sizes, batch, self._memory, cached=self._cached)
            else:
                self._measured = 1, float(sum(self._sizes(batch)))
        return self._measured

    def _keep(self, index: int, term: Term) -> None:
        # Without the data there is no telling which chunk of the next pass this is.
        if self._chunks is None:
            return
        size = self._bytes(self._chunks[index])
        if self._held + size <= self._memory:
            self._kept[index] = term
            self._held += size

    def _bytes(self, chunk: Any) -> float:
        """Return how much memory the graph of a chunk takes, by the size of its data."""
        _, each = self._measure()
        if self._separable and is_sample_pair(chunk):
            return each * len(chunk[0])
        return each * byte_count(chunk) / max(byte_count(self._batches.first), 1)
