"""Checks that a result from a file has the types and shapes that its class declares."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from hessence._common.arrays import Numbers

LARGEST = 2**53
"""Larger integers are not accepted as counts."""

DTYPES = frozenset({"bool", "int32", "int64", "float32", "float64"})
ADMITTED: dict[str, tuple[type, ...]] = {
    "b": (bool,), "i": (int, np.integer), "f": (int, float, np.integer, np.floating)
}  # fmt: skip
"""What lists of numbers hold, by the kind of their type."""


def as_dtype(name: Any) -> np.dtype[Any]:
    """Return the type that arrays in files may have by its name."""
    if not isinstance(name, str) or name not in DTYPES:
        raise ValueError(f"an array has the type {str(name)[:40]!r}")
    return np.dtype(name)


def as_numbers(entries: Any, dtype: np.dtype[Any]) -> Numbers:
    """Return lists of numbers as an array; nothing else is taken for a number.

    Examples
    --------
    >>> as_numbers([[1, 2.5]], np.dtype("float64"))
    array([[1. , 2.5]])
    >>> as_numbers([1, True], np.dtype("int64"))
    Traceback (most recent call last):
    ...
    ValueError: a list does not hold numbers of type int64
    """
    found = np.asarray(entries, dtype=object)
    types = {type(entry) for entry in found.ravel().tolist()}
    if not all(issubclass(each, ADMITTED[dtype.kind]) for each in types) or (
        bool in types and dtype.kind != "b"
    ):
        raise ValueError(f"a list does not hold numbers of type {dtype}")
    return found.astype(dtype)


def require_fields(kind: type, values: Mapping[str, Any]) -> None:
    """Refuse values that do not have the types that a dataclass declares for its fields."""
    for name, hint in typing.get_type_hints(kind).items():
        if name in values and not fits(values[name], hint):
            raise ValueError(f"{name.lstrip('_')} is not what it should be")


def fits(value: Any, hint: Any) -> bool:
    """Tell whether a value is of a type, as annotations write it; Any stands for an array.

    Examples
    --------
    >>> fits(3, int), fits(True, int), fits((1.0, 2), tuple[float, float]), fits(10**400, float)
    (True, False, True, False)
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, part) for part in parts)
    if origin is typing.Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        parts = parts[:1] * len(value) if parts[1:] == (Ellipsis,) else parts
        return len(parts) == len(value) and all(map(fits, value, parts))
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST
    if hint is float:
        return isinstance(value, float) or fits(value, int)
    return isinstance(value, np.ndarray if hint is Any else origin or hint)


def require_shapes(shapes: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Refuse arrays whose dimensions do not agree.

    Letters name the dimensions of each field; ``...`` stands for those of a batch in front.

    Examples
    --------
    >>> require_shapes({"x": "... n", "y": "... n k"}, {"x": np.ones(3), "y": np.ones((3, 2))})
    >>> require_shapes({"x": "n", "y": "n"}, {"x": np.ones(3), "y": np.ones(2)})
    Traceback (most recent call last):
    ...
    ValueError: the lengths of x, y differ
    """
    lengths: dict[str, Any] = {}
    for name, letters in shapes.items():
        if values[name] is None:
            continue
        shape, own = values[name].shape, letters.removeprefix("...").split()
        lead = len(shape) - len(own)
        batch = letters.startswith("...")
        found: list[tuple[str, Any]] = list(zip(own, shape[lead:], strict=False))
        found += [("...", shape[:lead])] if batch else []
        agree = all(lengths.setdefault(key, length) == length for key, length in found)
        if lead < 0 or (lead and not batch) or not agree:
            raise ValueError(f"the lengths of {', '.join(shapes)} differ")


def as_array(dtype: Any, shape: Any, flat: Numbers) -> Numbers:
    """Return numbers in a shape that holds as many."""
    if not fits(tuple(shape), tuple[int, ...]) or any(n < 0 for n in shape):
        raise ValueError("the shape of an array is not a list of lengths")
    if math.prod(shape) != flat.size or flat.dtype != dtype:
        raise ValueError("an array does not hold as many numbers as its shape says")
    return flat.reshape(tuple(shape))
