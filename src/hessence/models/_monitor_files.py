"""The files of a monitor: its history, and beside it the vectors that the next search starts from.

In a data-parallel run only the first process reads and writes them; the others get its results.
"""

from __future__ import annotations

import io
import itertools
import os
import zipfile
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch.distributed as dist

from hessence._common.arrays import Numbers
from hessence._common.files import read_regular, write_atomically
from hessence._common.messages import warn
from hessence.models._tracking import STATE
from hessence.models.data import parallel
from hessence.models.history import History

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

States = Mapping[str, Mapping[str, Numbers]]
"""The arrays of each tracker, by its name and theirs."""


def _on_first_rank(work: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Call a function in the first process only, and give all of them its result or its error."""

    @wraps(work)
    def everywhere(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not parallel():
            return work(*args, **kwargs)
        box: list[Any] = [None]
        if dist.get_rank() == 0:
            try:
                box = [(work(*args, **kwargs), None)]
            except Exception as error:
                # Every process raises it below; otherwise the others would wait for ever.
                box = [(None, error)]
        dist.broadcast_object_list(box, src=0)
        result, failure = box[0]
        if failure is not None:
            raise failure
        shared: Result = result
        return shared

    return everywhere


class MonitorFiles:
    """A JSON file with the history and a file ``.npz`` of the same name with vectors.

    A file of that name that holds something else is kept beside it.
    """

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
        self._foreign = False

    @_on_first_rank
    def load(self, empty: History) -> tuple[History, States]:
        """Return what is in the files, or the empty history if there are none.

        A history of another number of parameters or eigenvalues than the empty one is refused.
        """
        states = self._states()
        if not self._path.exists():
            return empty, {}
        self._seen = self._now()
        found = History.load(self._path)
        if (found.parameters, found.k) != (empty.parameters, empty.k):
            raise ValueError(
                f"path: {self._path} has the history of {found.k} eigenvalues of a model with "
                f"{found.parameters} parameters, not of {empty.k} with {empty.parameters}."
            )
        return found, states

    @_on_first_rank
    def save(self, history: History, states: States) -> None:
        """Write both files, each of them whole or not at all."""
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
        if self._foreign:
            beside = _set_aside(self._vectors)
            warn(f"path: {self._vectors.name} had no vectors of a monitor, now kept in {beside}.")
            self._foreign = False
        write_atomically(self._vectors, stream.getvalue())

    @_on_first_rank
    def set_aside(self) -> None:
        """Keep the history of an earlier run beside the new one, as ``.bak``, ``.bak1``, and on."""
        beside = _set_aside(self._path)
        self._seen = None
        warn(f"path: {self._path.name} had the history of an earlier run, now kept in {beside}.")

    def _states(self) -> States:
        """Read the vectors. If they are missing or damaged, searches start without them."""
        states: dict[str, dict[str, Numbers]] = {}
        try:
            content = read_regular(self._vectors)
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > len(content):
                    raise ValueError("the arrays are larger than their file")
                for entry in archive.infolist():
                    name, _, part = entry.filename.removesuffix(".npy").partition(" ")
                    if part not in STATE:
                        raise ValueError("the arrays are not a monitor's")
                    states.setdefault(name, {})[part] = _array(archive.read(entry))
        except Exception:
            # A damaged file may raise any exception. Without the vectors, measurements take more
            # products, but are right.
            self._foreign = self._vectors.exists()
            return {}
        return states

    def _now(self) -> tuple[int, ...] | None:
        """Return numbers of the file that change whenever another writer replaces it."""
        if not self._path.exists():
            return None
        found = self._path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns


def _set_aside(path: Path) -> str:
    """Give a file the first name that is free of ``.bak``, ``.bak1``, and on; return that name."""
    names = (f"{path.name}.bak{i or ''}" for i in itertools.count())
    beside = next(name for name in names if not path.with_name(name).exists())
    os.replace(path, path.with_name(beside))
    return beside


def _array(content: bytes) -> Numbers:
    """Return the array of a file ``.npy``, which is not larger than the file, whatever it says."""
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("the array has another format")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.kind not in "bif" or dtype.itemsize > 8:
        raise ValueError("the array does not hold numbers that PyTorch takes")
    # A copy, that can be written to, and in the order of bytes of this machine.
    found: Numbers = np.frombuffer(stream.read(), dtype).astype(dtype.newbyteorder("="))
    return found.reshape(shape, order="F" if fortran else "C")
