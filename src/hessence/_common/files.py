"""Files that are written whole or not at all, and one JSON format for every result.

A result that derives from ``Saved`` can be saved and compared, and ``hs.load`` reads it again,
exact to the last bit. Its file says ``"format": "hessence.<kind>/1"``. Arrays come back as NumPy's.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import math
import os
import re
import secrets
import stat
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import array_api_compat as api
import numpy as np

from hessence._common.arrays import dtype_name, to_numpy
from hessence._common.schema import as_array, as_dtype, as_numbers, require_fields, require_shapes

try:
    import fcntl
except ImportError:
    # Windows has no fcntl; there msvcrt does the locking.
    fcntl = None  # type: ignore[assignment]

TEMPORARY, NAMED, TOKEN = ".tmp", 40, 8
"""The ending of temporary files' names, how many characters of their target's name they begin with,
and how many random bytes are in between."""

LARGE = 2**12
"""Arrays with more entries are written as their bytes: quicker, shorter, and no less exact."""

LONGEST = 200
"""A longer message about what is wrong with a file is replaced by the kind of exception."""

MOST = 2**31
"""No file with JSON has more bytes."""

HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""How JSON spells the halves of characters beyond the first 2¹⁶."""

KINDS: dict[str, type[Any]] = {}
"""The classes of results by their kinds."""


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a regular file so that it is never half written, whenever the process is killed.

    An existing file keeps its permissions and, as far as the process may give it away, its owner
    and group. A link is followed. Anything but a regular file is refused. Temporary files of killed
    writers of the same file are removed.
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(target))
    old = target.stat() if target.exists() else None
    if old is not None:
        _require_regular(target, old)
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    elif not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target.parent))
    data = content.encode() if isinstance(content, str) else content
    # A name may be as long as the file system allows; ours must not be longer.
    prefix = f".{target.name[:NAMED]}."
    _sweep(target.parent, prefix)
    temporary, handle = _open_temporary(target.parent, prefix)
    try:
        with os.fdopen(handle, "wb") as stream:
            if old is not None:
                _let_in_the_same(temporary, old)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
            if fcntl is None:
                # Windows moves no file that is open, and removes none.
                stream.close()  # type: ignore[unreachable, unused-ignore]
            os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _let_in_the_same(path: Path, old: os.stat_result) -> None:
    """Give a file the owner and permissions of another, before anything is in it to be read."""
    if hasattr(os, "chown"):
        for owner, group in ((-1, old.st_gid), (old.st_uid, -1)):
            with contextlib.suppress(PermissionError):
                os.chown(path, owner, group)
    os.chmod(path, stat.S_IMODE(old.st_mode))


def read_regular(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """Read a file; a device, a pipe or a socket, which may have no end, is refused.

    So is a file of more than `most` bytes, in a ValueError: it may be longer than its disk.
    """
    with open(path, "rb", opener=_without_waiting) as stream:
        found = os.fstat(stream.fileno())
        _require_regular(Path(path), found)
        if most is not None and found.st_size > most:
            raise ValueError(f"{os.fspath(path)} has more than {most} bytes")
        return stream.read()


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a regular file with JSON; a ValueError or RecursionError says that it has none.

    Half a character, which JSON can spell but nothing can print, is none.
    """
    text = read_regular(path, MOST).decode()
    data = json.loads(text)
    if HALF.search(text):
        json.dumps(data, ensure_ascii=False).encode()
    return data


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _require_regular(path: Path, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(
            errno.EINVAL, "path must name a regular file, not a device or pipe", str(path)
        )


def _open_temporary(folder: Path, prefix: str) -> tuple[Path, int]:
    """Make a new file, with the usual permissions, locked as long as it is open."""
    while True:
        path = folder / f"{prefix}{secrets.token_hex(TOKEN)}{TEMPORARY}"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            ours = lock(handle)
        except OSError:
            # The file system has no locks; nothing is removed there.
            ours = True
        # Another writer may have removed it before it was locked.
        if ours and path.exists():
            return path, handle
        os.close(handle)


def _sweep(folder: Path, prefix: str) -> None:
    """Remove temporary files of killed writers: those that nobody holds a lock of."""
    left = _left_behind(folder.resolve(), os.getpid())
    for entry in left.get(prefix, ()):
        with contextlib.suppress(OSError):
            handle = os.open(entry, os.O_RDWR)
            try:
                if lock(handle):
                    entry.unlink()
            finally:
                os.close(handle)
    left[prefix] = [entry for entry in left.get(prefix, ()) if entry.exists()]


@lru_cache(maxsize=64)
def _left_behind(folder: Path, process: int) -> dict[str, list[Path]]:
    """List the temporary files in a folder by prefix, once for each process, forked ones too."""
    found: dict[str, list[Path]] = {}
    for entry in folder.iterdir():
        if re.fullmatch(rf"\..*\.[0-9a-f]{{{2 * TOKEN}}}{re.escape(TEMPORARY)}", entry.name, re.S):
            found.setdefault(entry.name[: -len(TEMPORARY) - 2 * TOKEN], []).append(entry)
    return found


def lock(handle: int) -> bool:
    """Lock an open file until it is closed, however the process ends; False if it is locked."""
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt  # type: ignore[unreachable, unused-ignore]

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    except (BlockingIOError, PermissionError):
        # Windows raises the latter.
        return False
    return True


class Saved:
    """A result that can be saved, and compares equal when it is loaded again.

    A dataclass names its kind, ``class Trace(Saved, kind="trace")``; what is read must have the
    types of its fields and the shapes that the class declares. Any other class overrides
    ``to_dict`` and ``_rebuilt``.
    """

    format: ClassVar[str]
    shapes: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, *, kind: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if kind is not None:
            cls.format, KINDS[kind] = f"hessence.{kind}/1", cls

    def to_dict(self) -> dict[str, Any]:
        """Return everything as data that JSON can hold, exactly; ``from_dict`` takes it back."""
        own: Any = self
        parts = {f.name.lstrip("_"): encoded(getattr(self, f.name)) for f in fields(own)}
        return {"format": self.format, **parts}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a result from ``to_dict``, with NumPy arrays."""
        kind = kind_of(cls.format)
        if not isinstance(data, dict) or data.get("format") != cls.format:
            raise ValueError(
                f"data is not a saved {kind}: expected a dictionary of format {cls.format}."
            )
        try:
            return cls._rebuilt(data)
        except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            told = str(error) if len(str(error)) < LONGEST else type(error).__name__
            raise ValueError(f"data is not a complete {kind}: {told}.") from error

    @classmethod
    def _rebuilt(cls, data: dict[str, Any]) -> Self:
        own: Any = cls
        values = {f.name: decoded(data[f.name.lstrip("_")]) for f in fields(own)}
        require_fields(cls, values)
        require_shapes(cls.shapes, values)
        return cls(**values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a JSON file, whole or not at all; ``hs.load`` reads it."""
        write_atomically(path, json.dumps(self.to_dict(), allow_nan=False))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


def kind_of(form: Any) -> str:
    """Return the kind that a format names, or "" for a foreign format."""
    head, _, version = str(form).partition("/")
    return head.removeprefix("hessence.") if head.startswith("hessence.") and version else ""


def encoded(value: Any) -> Any:
    """Return a value as what JSON can hold; JSON knows no NaN, no infinity and no array.

    Examples
    --------
    >>> import numpy as np
    >>> encoded((1.5, float("inf"), np.asarray([2.0])))
    [1.5, {'number': 'inf'}, {'dtype': 'float64', 'shape': [1], 'entries': [2.0]}]
    """
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value) in KINDS.values():
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [encoded(entry) for entry in value]
    if not api.is_array_api_obj(value):
        raise TypeError(f"a {type(value).__name__} cannot be saved.")
    head: dict[str, Any] = {"dtype": dtype_name(value), "shape": [int(n) for n in value.shape]}
    array = np.ascontiguousarray(to_numpy(value))
    if array.size > LARGE or (array.dtype.kind == "f" and not np.isfinite(array).all()):
        return {**head, "bytes": base64.b64encode(array.tobytes()).decode("ascii")}
    return {**head, "entries": array.ravel().tolist()}


def decoded(data: Any) -> Any:
    """Return what ``encoded`` was given: lists as tuples, and arrays as NumPy's."""
    if isinstance(data, list):
        return tuple(decoded(entry) for entry in data)
    if not isinstance(data, dict):
        return data
    if "format" in data:
        return KINDS[kind_of(data["format"])].from_dict(data)
    if "number" in data:
        return float(data["number"])
    dtype = as_dtype(data["dtype"])
    if "bytes" in data:
        flat = np.frombuffer(base64.b64decode(data["bytes"]), dtype=dtype).copy()
    else:
        flat = as_numbers(data["entries"], dtype)
    return as_array(dtype, data["shape"], flat)
