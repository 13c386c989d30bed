"""Files that appear whole or not at all, and one format in them for every result.

The format is JSON with a tag that says what it is, exact to the last bit. A result that derives
from ``Saved`` can be saved and compared, and ``hs.load`` reads it again. Its file says
``"format": "hessence.<kind>/1"``. Arrays come back as NumPy's, whatever they were.
"""

from __future__ import annotations

import base64
import errno
import json
import math
import os
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self

import array_api_compat as api
import numpy as np

from hessence._common.arrays import dtype_name, to_numpy

LARGE = 2**12
"""Arrays with more entries are written as their bytes: quicker, shorter, and no less exact."""

KINDS: dict[str, type[Any]] = {}
"""The classes of results by their kinds."""


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file so that a reader, or a kill at any moment, never meets half of it."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target.parent))
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes private files; give the usual permissions instead.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


class Saved:
    """A result that goes into a file and comes back equal.

    A dataclass names its kind, ``class Trace(Saved, kind="trace")``, and the rest follows. Any
    other class overrides ``to_dict`` and ``_rebuilt``.
    """

    format: ClassVar[str]

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
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"data is not a complete {kind}: {error}.") from error

    @classmethod
    def _rebuilt(cls, data: dict[str, Any]) -> Self:
        own: Any = cls
        return cls(**{f.name: decoded(data[f.name.lstrip("_")]) for f in fields(own)})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a JSON file, whole or not at all; ``hs.load`` reads it."""
        write_atomically(path, json.dumps(self.to_dict(), allow_nan=False))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]


def kind_of(form: Any) -> str:
    """Return the kind that a format names, or nothing if it is none of ours."""
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
    dtype, shape = np.dtype(data["dtype"]), tuple(data["shape"])
    if "bytes" in data:
        flat = np.frombuffer(base64.b64decode(data["bytes"]), dtype=dtype).copy()
    else:
        flat = np.asarray(data["entries"], dtype=dtype)
    return flat.reshape(shape)
