"""The files of a monitor: its history, and beside it the vectors that the next search starts from.

In a data-parallel run only the first process reads and writes them, and tells the others.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist

from hessence._common.arrays import Numbers
from hessence._common.files import read_regular, write_atomically
from hessence._common.messages import warn
from hessence.models.data import parallel
from hessence.models.history import History

Result = TypeVar("Result")

States = Mapping[str, Mapping[str, Numbers]]
"""The arrays of each tracker, by its name and theirs."""


class MonitorFiles:
    """A JSON file with the history and a file ``.npz`` of the same name with vectors."""

    def __init__(self, path: Any) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"path must be a str or a path, got {type(path).__name__}.")
        self._path = Path(path)
        self._vectors = self._path.with_suffix(".npz") if self._path.name else self._path
        if self._path == self._vectors:
            raise ValueError(f"path must name a JSON file, got {str(path)!r}.")
        if not self._path.parent.is_dir() or self._path.is_dir():
            raise ValueError(f"path must name a file in a folder that exists, got {str(path)!r}.")
        self._seen: tuple[int, ...] | None = None

    def load(self, empty: History) -> tuple[History, States]:
        """Return what is in the files, or the empty history if there are none.

        A history of another number of parameters or eigenvalues than the empty one is refused.
        """
        return _from_first_rank(lambda: self._load(empty))

    def save(self, history: History, states: States) -> None:
        """Write both files, each of them whole or not at all."""
        _from_first_rank(lambda: self._save(history, states))

    def set_aside(self) -> None:
        """Keep the history of an earlier run beside the new one, as ``.bak``, ``.bak1``, and on."""
        _from_first_rank(self._set_aside)

    def _set_aside(self) -> None:
        names = itertools.chain([".bak"], (f".bak{i}" for i in itertools.count(1)))
        free = (name for name in names if not Path(f"{self._path}{name}").exists())
        beside = f"{self._path.name}{next(free)}"
        os.replace(self._path, self._path.with_name(beside))
        self._seen = None
        warn(f"path: {self._path.name} had the history of an earlier run, now kept in {beside}.")

    def _load(self, empty: History) -> tuple[History, States]:
        if not self._path.exists():
            return empty, {}
        self._seen = self._now()
        found = History.load(self._path)
        if (found.parameters, found.k) != (empty.parameters, empty.k):
            raise ValueError(
                f"path: {self._path} has the history of {found.k} eigenvalues of a model with "
                f"{found.parameters} parameters, not of {empty.k} with {empty.parameters}."
            )
        return found, self._states()

    def _states(self) -> States:
        """Read the vectors. If they are missing or damaged, searches start without them."""
        states: dict[str, dict[str, Numbers]] = {}
        try:
            for key, array in _arrays(read_regular(self._vectors)):
                name, _, part = key.removesuffix(".npy").partition(" ")
                states.setdefault(name, {})[part] = array
        except Exception:
            # The file is missing or damaged, which a reader of archives may tell by any exception.
            # Measurements then take more products, but are right.
            return {}
        return states

    def _now(self) -> tuple[int, ...] | None:
        """Return numbers of the file that change whenever another writer replaces it."""
        if not self._path.exists():
            return None
        found = self._path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _save(self, history: History, states: States) -> None:
        if self._now() not in (None, self._seen):
            raise ValueError(
                f"path: {self._path} was written by another monitor meanwhile, and is left as it "
                "is; give every monitor a path of its own."
            )
        history.save(self._path)
        self._seen = self._now()
        stream = io.BytesIO()
        arrays: dict[str, Any] = {
            f"{name} {part}": array
            for name, state in states.items()
            for part, array in state.items()
        }
        np.savez(stream, **arrays)
        write_atomically(self._vectors, stream.getvalue())


def _arrays(content: bytes) -> Iterator[tuple[str, Numbers]]:
    """Return the arrays of an uncompressed file ``.npz``, none of them larger than the file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > len(content):
                raise ValueError("an array is compressed, or larger than its file")
            stream = io.BytesIO(archive.read(entry))
            if np.lib.format.read_magic(stream) != (1, 0):
                raise ValueError("an array has another format")
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            if dtype.kind not in "bif" or math.prod(shape) * dtype.itemsize > entry.file_size:
                raise ValueError("an array is not what it should be")
            stream.seek(0)
            yield entry.filename, np.lib.format.read_array(stream, allow_pickle=False)


def _from_first_rank(work: Callable[[], Result]) -> Result:
    """Do work in the first process only, and give all of them its result or its error."""
    if not parallel():
        return work()
    box: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            box = [(work(), None)]
        except Exception as error:
            # Every process raises it below, or the others would wait for ever.
            box = [(None, error)]
    dist.broadcast_object_list(box, src=0)
    result, failure = box[0]
    if failure is not None:
        raise failure
    shared: Result = result
    return shared
