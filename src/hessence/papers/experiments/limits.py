"""How large settings may be.

Without a word, whole numbers are at least 1, other numbers positive, and tuples hold something;
numbers are finite anyway. A field says otherwise by its annotation::

    points: Annotated[int, at_least(2)] = 61
    noise: Annotated[float, at_least(0)] = 0.01
    momentum: Annotated[float, between(0, 1)] = 0.9
    hidden: Annotated[tuple[int, ...], may_be_empty] = ()
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Limit:
    """What a value must be, in words and as a test."""

    words: str
    allows: Callable[[Any], bool]


def at_least(least: float) -> Limit:
    """Allow this number and all above it."""
    return Limit(f"at least {least:g}", lambda value: least <= value < math.inf)


def between(low: float, high: float) -> Limit:
    """Allow the numbers between two others, without these."""
    return Limit(f"between {low:g} and {high:g}", lambda value: low < value < high)


positive = Limit("positive", lambda value: 0 < value < math.inf)
finite = Limit("a finite number", math.isfinite)
not_empty = Limit("at least one value", lambda value: len(value) > 0)
may_be_empty = Limit("any number of values", lambda value: True)

Share = Annotated[float, between(0, 1)]


def complaint(value: Any, kind: Any) -> str | None:
    """Return what a value must be but is not, by the annotation of its field.

    Examples
    --------
    >>> from typing import Annotated
    >>> complaint(0, int), complaint(0, Annotated[int, at_least(0)])
    ('at least 1', None)
    >>> complaint((0.5, 1.5), tuple[Annotated[float, between(0, 1)], ...])
    'between 0 and 1, each of them'
    """
    limit = None
    if typing.get_origin(kind) is typing.Annotated:
        kind, limit = typing.get_args(kind)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return (
            None
            if value is None
            else complaint(value, next(p for p in parts if p is not type(None)))
        )
    if origin is tuple:
        limit = not_empty if limit is None else limit
        part = parts[0] if parts[1:] == (Ellipsis,) else None
        wrong = [complaint(item, part or parts[i]) for i, item in enumerate(value)]
        each = next((words for words in wrong if words), None)
        return limit.words if not limit.allows(value) else each and f"{each}, each of them"
    limit = {int: at_least(1), float: positive}.get(kind) if limit is None else limit
    return None if limit is None or limit.allows(value) else limit.words


def require_limits(settings: Any) -> None:
    """Refuse settings of which one is out of its limits."""
    for name, kind in typing.get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        if words := complaint(value, kind):
            raise ValueError(
                f"{name} must be {words}, got {value!r}; annotate the field to allow more, as in "
                "hessence.papers.experiments.limits"
            )
