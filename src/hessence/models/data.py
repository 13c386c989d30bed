"""Data as users give them: one batch, a loader, or anything that can be iterated over again.

Under ``torch.distributed`` each rank holds its share of the data, and sums go over all of them.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hessence.models.batch_parts import byte_count, first_length, is_pair, rebuilt, tensors_in

DATASET_BATCH = 256
"""The size of batches that samples of a data set are put into."""


OTHERS = (
    "data has other batches on another pass, but the same ones are needed again and again: give a "
    "list of batches, or raise memory= so that one pass can be kept."
)


class Batches:
    """Batches on one device, kept if they fit into the memory, else read again on each pass.

    A pass that is read again must have the same batches as those before.

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

    Attributes
    ----------
    first : object
        The first batch.
    kept : list or None
        All batches, if they fit into the memory.
    """

    def __init__(
        self,
        data: Any,
        device: torch.device,
        memory: float,
        parameters: Sequence[Tensor],
    ) -> None:
        self._source = _with_own_draws(_source(data))
        self._parameters = {id(parameter): parameter for parameter in parameters}
        self._device, self._joined = device, False
        # A single batch that does not fit is there once, with the user.
        self._copies = not isinstance(self._source, list) or (
            len(self._source) > 1 or byte_count(self._source) <= memory
        )
        self._digests: list[int] = []
        self._length: int | None = None
        kept: list[Any] = []
        size = 0
        self.first: Any = None
        self.kept: list[Any] | None = None
        for batch in self._read():
            if self.first is None:
                self.first = batch
                _require_tensors(batch)
            size += byte_count(batch)
            if size > memory and len(kept) > 0:
                self._digests = [*map(_digest, kept), _digest(batch)]
                return
            kept.append(batch)
        if not kept:
            raise ValueError("data is empty: it has no batches.")
        self.kept = kept

    def regrouped(self, size: int) -> Iterable[Any]:
        """Return the batches joined and cut to at most so many samples, see ``merged``.

        What is kept is joined once, and takes the place of what it was made of; for another size
        it is only cut, so that there is never a second copy of the data.
        """
        if self.kept is None:
            return merged(self._pass(), size)
        if not self._joined:
            self.kept, self._joined = list(merged(self.kept, size)), True
        return [piece for batch in self.kept for piece in merged([batch], size)]

    def __iter__(self) -> Iterator[Any]:
        return self._pass() if self.kept is None else iter(self.kept)

    def _pass(self) -> Iterator[Any]:
        """Read all batches again; they must be those of the passes before."""
        count = 0
        for batch in self._read():
            digest = _digest(batch)
            if count == len(self._digests) and self._length is None:
                self._digests.append(digest)
            if count >= len(self._digests) or digest != self._digests[count]:
                raise ValueError(OTHERS)
            count += 1
            yield batch
        if count < len(self._digests):
            raise ValueError(OTHERS)
        self._length = count

    def _read(self) -> Iterator[Any]:
        device, copies, parameters = self._device, self._copies, self._parameters
        for batch in _with_own_draws(self._source):
            if not _has_no_samples(batch):
                yield rebuilt(lambda part: _own(part, device, copies, parameters), batch)


def _digest(batch: Any) -> int:
    """Return a checksum of all tensors in a batch; of sparse ones, of their shapes alone."""
    digest = 0
    for tensor in tensors_in(batch):
        digest = zlib.crc32(repr((tuple(tensor.shape), tensor.dtype)).encode(), digest)
        if tensor.layout == torch.strided:
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest = zlib.crc32(flat.view(torch.uint8).numpy(), digest)
    return digest


def _with_own_draws(source: Any) -> Any:
    """Return a copy of a loader with random numbers of its own; anything else as it is.

    They start where the loader's generators are now, which stay there. Samplers and data sets that
    call ``torch.rand`` and its like still draw from PyTorch's generator.
    """
    own: dict[int, torch.Generator] = {}

    def copied(part: Any) -> Any:
        part = copy.copy(part)
        inside = getattr(part, "__dict__", {})
        used = inside.get("generator")
        if "generator" in inside and (used is None or isinstance(used, torch.Generator)):
            used = torch.default_generator if used is None else used
            fresh = own.setdefault(id(used), torch.Generator(used.device))
            inside["generator"] = fresh.set_state(used.get_state())
        for name in inside.keys() & {"sampler", "batch_sampler"}:
            inside[name] = copied(inside[name])
        return part

    return copied(source) if isinstance(source, DataLoader) else source


def _own(part: Any, device: torch.device, copies: bool, parameters: Mapping[int, Tensor]) -> Any:
    """Move a part of a batch to a device, and copy it if it is there already and `copies` says so.

    Whoever gives batches may write to them later, or put the next one into the same memory. The
    parameters, given by identity, and what depends on them are not copied, or no derivative would
    arrive at them.
    """
    if isinstance(part, Tensor):
        if part.is_meta:
            raise ValueError("data is on the meta device: it has no values.")
        moved = part.to(device)
        if part.is_inference():  # what was made in inference mode cannot be part of a graph
            return moved.clone()
        if moved is not part or not copies or not part.is_leaf or id(part) in parameters:
            return moved
        return part.detach().clone().requires_grad_(part.requires_grad)
    if not copies or callable(part):
        return part
    try:
        return copy.deepcopy(part, dict(parameters))
    except Exception:
        # It cannot be copied, whatever it is, and so it is used as it is.
        return part


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
    if not hasattr(data, "__iter__") and not hasattr(data, "__getitem__"):
        raise TypeError(
            f"data must be a pair (x, y) or an iterable of batches, got {type(data).__name__}."
        )
    if hasattr(data, "__next__"):
        raise TypeError(
            "data can be iterated over only once, but is needed again and again: give a list or a "
            f"DataLoader instead of a {type(data).__name__}."
        )
    return cast(Iterable[Any], data)


def _require_tensors(batch: Any) -> None:
    """Refuse empty tensors, and NumPy arrays alone; a dictionary may hold some beside tensors."""
    parts = batch if isinstance(batch, (tuple, list)) else [batch]
    for part in parts:
        inner = part.values() if isinstance(part, Mapping) else [part]
        array = next((a for a in inner if hasattr(a, "__array__")), None)
        if not tensors_in(part) and array is not None:
            raise TypeError(
                f"data must hold torch tensors, got {type(array).__name__}: use torch.as_tensor."
            )
    for tensor in tensors_in(batch):
        if tensor.numel() == 0:
            raise ValueError(f"data is empty: a tensor has shape {tuple(tensor.shape)}.")


def _has_no_samples(batch: Any) -> bool:
    """Whether a batch is empty, so that no mean can be taken over it."""
    return any(tensor.ndim for tensor in tensors_in(batch)) and first_length(batch) == 0


def parallel() -> bool:
    """Whether this process is one of several that ``torch.distributed`` has joined."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def gather(thing: Any) -> list[Any]:
    """Return what every rank has, in the order of ranks; for small things, on the CPU."""
    if not parallel():
        return [thing]
    things: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(things, thing)
    return things


def sum_tensor(tensor: Tensor) -> Tensor:
    """Add up a tensor over all ranks, in place; alone, leave it as it is."""
    if parallel():
        dist.all_reduce(tensor)
    return tensor


def sum_number(number: float, device: torch.device) -> float:
    """Add up a number over all ranks."""
    if not parallel():
        return number
    return float(sum_tensor(torch.tensor(number, dtype=torch.float64, device=device)))
