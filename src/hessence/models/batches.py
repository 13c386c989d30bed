"""Data as users give them: one batch, a loader, or anything that can be gone through again."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hessence.models.batch_copies import Copier, equal
from hessence.models.batch_parts import byte_count, first_length, is_pair, tensors_in
from hessence.models.randomness import random_states, set_random_states

_END = object()

_CPU = torch.device("cpu")

DATASET_BATCH = 256
"""The size of batches that samples of a data set are put into."""


class Batches:
    """Batches on one device, kept if they fit into the memory, else read again on each pass.

    Parameters
    ----------
    data : tuple of tensors, dict, DataLoader, Dataset or iterable of batches
        A tuple or a dictionary is one batch with all data in it.
    device : torch.device
        Where the model is; batches are moved there.
    memory : float
        How many bytes of data to keep at most.
    parameters : sequence of Tensor
        What is differentiated by; batches may hold some of them, which are not copied.
    """

    def __init__(
        self,
        data: Any,
        device: torch.device,
        memory: float,
        parameters: Sequence[Tensor],
    ) -> None:
        self._source = _source(data)
        self._parameters = {id(parameter): parameter for parameter in parameters}
        self._draws = _Draws(self._source)
        self._device, self._joined = device, False
        # A single batch that does not fit is there once, with the user.
        self._copies = not isinstance(self._source, list) or (
            len(self._source) > 1 or byte_count(self._source) <= memory
        )
        kept: list[Any] = []
        size = 0
        self.first: Any = None
        self._kept: list[Any] | None = None
        for batch in self._pass():
            if self.first is None:
                self.first = batch
                self._require_filled(batch)
            size += byte_count(batch)
            if size > memory and len(kept) > 0:
                return
            kept.append(batch)
        if not kept:
            raise ValueError("data is empty: it has no batches.")
        self._kept = kept

    @property
    def kept(self) -> list[Any] | None:
        """All batches, if they fit into the memory."""
        return self._kept

    def regrouped(self, size: int) -> Iterable[Any]:
        """Return the batches joined and cut to at most so many samples, see ``merged``.

        What is kept is joined once, and takes the place of what it was made of; for another size
        it is only cut, so that there is never a second copy of the data.
        """
        if self._kept is None:
            return merged(self._pass(), size)
        if not self._joined:
            self._kept, self._joined = list(merged(self._kept, size)), True
        return [piece for batch in self._kept for piece in merged([batch], size)]

    def __iter__(self) -> Iterator[Any]:
        return self._pass() if self._kept is None else iter(self._kept)

    def _pass(self) -> Iterator[Any]:
        states = self._draws.start()
        with self._draws.go_on(states):
            source = iter(self._source)
        known = self.first
        copier = Copier(self._device, copies=self._copies, parameters=self._parameters)
        while True:
            with self._draws.go_on(states):
                batch = next(source, _END)
            if batch is not _END and not _has_no_samples(batch):
                batch = copier(batch)
                _require_same(batch, known)
                known = None
                yield batch
            if batch is _END:
                _require_same(None, known)
                return

    @staticmethod
    def _require_filled(batch: Any) -> None:
        _require_tensors(batch)
        for tensor in tensors_in(batch):
            if tensor.numel() == 0:
                raise ValueError(f"data is empty: a tensor has shape {tuple(tensor.shape)}.")


def _require_same(batch: Any, known: Any) -> None:
    """Refuse a pass that does not begin with the batch that is known from the first one."""
    if known is None:
        return
    pairs = zip(tensors_in(batch), tensors_in(known), strict=False)
    if batch is None or not all(equal(a, b) for a, b in pairs):
        raise ValueError(
            "data has other batches on another pass, but the same ones are needed again and again: "
            "give a list of batches, or raise memory= so that one pass can be kept."
        )


class _Draws:
    """The random numbers that a source draws, apart from those of the user.

    A loader draws some on every pass, and more if it shuffles or its data set changes samples at
    random. The generators of PyTorch, NumPy and Python are left as if it had not; and every pass
    starts from the same state of them, so that it has the same batches. A list draws none.
    """

    def __init__(self, source: Any) -> None:
        self._draws_nothing = type(source) is list
        batched = getattr(source, "batch_sampler", None)
        parts = source, getattr(source, "sampler", None), batched, getattr(batched, "sampler", None)
        own = {id(g): g for g in (getattr(part, "generator", None) for part in parts)}
        self._own = tuple(g for g in own.values() if isinstance(g, torch.Generator))
        self._start = self._states()

    def start(self) -> list[Any]:
        """Return the state that every pass starts from."""
        return list(self._start)

    @contextmanager
    def go_on(self, states: list[Any]) -> Iterator[None]:
        """Run the block with the source's random states, save these, and restore the user's."""
        if self._draws_nothing:
            yield
            return
        users = self._states()
        self._set(states)
        try:
            yield
        finally:
            states[:] = self._states()
            self._set(users)

    def _states(self) -> list[Any]:
        return random_states(_CPU, self._own)

    def _set(self, states: list[Any]) -> None:
        set_random_states(states, _CPU, self._own)


def merged(batches: Iterable[Any], size: int) -> Iterator[Any]:
    """Join neighbouring pairs of tensors into batches of at most so many samples.

    Larger ones are cut. What is not a pair of tensors of one length is passed on as it is.
    """
    waiting: list[tuple[Tensor, Tensor]] = []
    samples = 0
    for batch in batches:
        if not is_sample_pair(batch):
            yield from _joined(waiting)
            waiting, samples = [], 0
            yield batch
            continue
        for x, y in zip(*(part.split(size) for part in batch), strict=True):
            if waiting and (samples + len(x) > size or not _alike(waiting[0], (x, y))):
                yield from _joined(waiting)
                waiting, samples = [], 0
            waiting.append((x, y))
            samples += len(x)
    yield from _joined(waiting)


def is_sample_pair(batch: Any) -> bool:
    """Whether a batch is two tensors with as many samples each."""
    return (
        is_pair(batch)
        and all(isinstance(t, Tensor) and t.ndim and t.layout == torch.strided for t in batch)
        and batch[0].shape[0] == batch[1].shape[0]
    )


def _alike(old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> bool:
    """Whether two batches have samples of the same shape and kind."""
    pairs = zip(old, new, strict=True)
    return all(a.shape[1:] == b.shape[1:] and a.dtype == b.dtype for a, b in pairs)


def _joined(waiting: list[tuple[Tensor, Tensor]]) -> Iterator[Any]:
    if len(waiting) == 1:
        yield waiting[0]
    elif waiting:
        yield torch.cat([x for x, _ in waiting]), torch.cat([y for _, y in waiting])


def _source(data: Any) -> Iterable[Any]:
    if isinstance(data, Tensor):
        raise TypeError("data must be a pair (x, y) or batches, got one tensor.")
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, IterableDataset):
        raise TypeError(
            "data: an IterableDataset may have samples or batches: give DataLoader(data, "
            "batch_size=64), or batch_size=None if it has batches."
        )
    if isinstance(data, Dataset):
        data = DataLoader(data, batch_size=DATASET_BATCH)
    if isinstance(data, (tuple, Mapping)):
        return [data]
    if isinstance(data, DataLoader) and data.persistent_workers:
        # It has one iterator only, and the user may be in the middle of it.
        data = copy.copy(data)
        vars(data).update(persistent_workers=False, _iterator=None)
    # Loaders are not tried out, since their iterators may start processes.
    users = random_states(_CPU)
    iterator = () if isinstance(data, DataLoader) else _iter_or_none(data)
    set_random_states(users, _CPU)
    if iterator is None:
        raise TypeError(
            f"data must be a pair (x, y) or an iterable of batches, got {type(data).__name__}."
        )
    if iterator is data:
        raise TypeError(
            "data can be gone through only once, but is needed again and again: give a list or a "
            f"DataLoader instead of a {type(data).__name__}."
        )
    return cast(Iterable[Any], data)


def _iter_or_none(data: Any) -> Any:
    """Return an iterator over the data, or None if they have none."""
    try:
        return iter(data)
    except TypeError:
        return None


def _require_tensors(batch: Any) -> None:
    """Refuse NumPy arrays where there should be tensors; a dictionary may hold some besides."""
    parts = batch if isinstance(batch, (tuple, list)) else [batch]
    for part in parts:
        inner = part.values() if isinstance(part, Mapping) else [part]
        array = next((a for a in inner if hasattr(a, "__array__")), None)
        if not tensors_in(part) and array is not None:
            raise TypeError(
                f"data must hold torch tensors, got {type(array).__name__}: use torch.as_tensor."
            )


def _has_no_samples(batch: Any) -> bool:
    """Whether there is nothing in a batch, of which no mean could be taken."""
    return any(tensor.ndim for tensor in tensors_in(batch)) and first_length(batch) == 0
