"""Settings: how large they may be, and how ``--set field=value`` is read.

Without a word, whole numbers are at least 1, other numbers positive, and tuples hold something;
numbers are finite anyway. A field says otherwise by its annotation::

    points: Annotated[int, at_least(2)] = 61
    noise: Annotated[float, at_least(0)] = 0.01
    momentum: Annotated[float, between(0, 1)] = 0.9
    hidden: Annotated[tuple[int, ...], may_be_empty] = ()

A text is parsed by the type of the dataclass's field.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

LARGEST = 10**7
"""Larger whole numbers are slips: tasks, networks and data of such numbers fit nowhere."""


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
    """Return what the annotation of a field requires and a value violates.

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
    """Refuse settings with a value outside its limits."""
    for name, kind in typing.get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        if words := complaint(value, kind):
            raise ValueError(
                f"{name} must be {words}, got {value!r}; annotate the field to allow more, as in "
                "hessence.papers.experiments.settings"
            )


WORDS = {"true": True, "yes": True, "on": True, "1": True}
WORDS |= {"false": False, "no": False, "off": False, "0": False}


class SettingError(ValueError):
    """A setting that does not exist or does not fit; its text is one sentence for the user."""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return up to three of the names, the likeliest first, for a sentence.

    Examples
    --------
    >>> nearest("widht", ["width", "samples"])
    'width, samples'
    """
    return ", ".join(difflib.get_close_matches(name, list(names), n=3, cutoff=0.0))


def changed(settings: Any, changes: Mapping[str, str]) -> Any:
    """Return settings with some fields replaced by what their texts say.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Settings:
    ...     width: int = 10
    ...     rates: tuple[float, ...] = (0.1,)
    >>> changed(Settings(), {"rates": "0.1,0.2"})
    Settings(width=10, rates=(0.1, 0.2))
    """
    kinds = typing.get_type_hints(type(settings), include_extras=True)
    names = [field.name for field in dataclasses.fields(settings)]
    values = {}
    for name, text in changes.items():
        if name not in names:
            raise SettingError(f"there is no setting {name}; near it: {nearest(name, names)}.")
        try:
            values[name] = parse(text, kinds[name])
            if words := complaint(values[name], kinds[name]):
                raise ValueError(words)
        except ValueError as error:
            raise SettingError(f"{name} must be {error}, got {text!r}.") from None
    try:
        return dataclasses.replace(settings, **values)
    except ValueError as error:
        raise SettingError(f"{str(error).rstrip('.')}.") from None


def settings_from_json(kind: type, values: Mapping[str, Any]) -> Any:
    """Return settings from JSON's types, where tuples have become lists."""

    def tuples(value: Any) -> Any:
        return tuple(tuples(item) for item in value) if isinstance(value, list) else value

    return kind(**{name: tuples(value) for name, value in values.items()})


def text_of(value: Any) -> str:
    """Return the text that ``--set`` reads as this value.

    Examples
    --------
    >>> text_of((1, 2.5)), text_of(None), text_of(True)
    ('1,2.5', 'none', 'true')
    """
    if isinstance(value, tuple):
        return ",".join(map(text_of, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def differences(settings: Any, preset: Any) -> dict[str, str]:
    """Return the texts of the fields in which settings differ from their preset's."""
    names = [field.name for field in dataclasses.fields(settings)]
    pairs = {name: (getattr(settings, name), getattr(preset, name)) for name in names}
    return {name: text_of(ours) for name, (ours, theirs) in pairs.items() if ours != theirs}


def kind_in_words(kind: Any) -> str:
    """Return what a field takes, from its annotation.

    Examples
    --------
    >>> kind_in_words(Annotated[float, between(0, 1)]), kind_in_words(tuple[int, ...])
    ('number, between 0 and 1', 'whole numbers, at least 1, with commas')
    """
    limit = None
    if typing.get_origin(kind) is Annotated:
        kind, limit = typing.get_args(kind)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return f"{kind_in_words(next(p for p in parts if p is not type(None)))}, or none"
    if origin is typing.Literal:
        return " or ".join(map(str, parts))
    if origin is tuple:
        word, comma, rest = kind_in_words(parts[0]).partition(",")
        plural = word if parts[0] is bool else f"{word}s"
        return f"{plural}{comma}{rest}, with commas"
    limit = {int: at_least(1), float: positive}.get(kind) if limit is None else limit
    word = {int: "whole number", float: "number", bool: "true or false"}.get(kind, "text")
    return f"{word}, {limit.words}" if limit else word


def parse(text: str, kind: Any) -> Any:
    """Return the value that a text means for a type; a ValueError says what was expected."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return parse(text, parts[0])
    if origin in (types.UnionType, typing.Union):
        if text.strip().lower() == "none" and type(None) in parts:
            return None
        return parse(text, next(part for part in parts if part is not type(None)))
    if origin is typing.Literal:
        if text not in parts:
            raise ValueError(f"one of {nearest(text, map(str, parts))}")
        return text
    if origin is tuple:
        return _tuple(text, parts)
    return _single(text.strip(), kind)


def _tuple(text: str, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    if len(parts) == 2 and parts[1] is Ellipsis:
        parts = (parts[0],) * len(pieces)
    elif len(parts) != len(pieces):
        raise ValueError(f"{len(parts)} values separated by commas")
    try:
        return tuple(parse(piece, part) for piece, part in zip(pieces, parts, strict=True))
    except ValueError as error:
        raise ValueError(f"values separated by commas, each {error}") from None


def _single(text: str, kind: Any) -> Any:
    if kind is bool:
        if text.lower() not in WORDS:
            raise ValueError("true or false")
        return WORDS[text.lower()]
    if kind is str:
        return text
    if kind is float:
        try:
            return float(text)
        except ValueError:
            raise ValueError("a number") from None
    if kind is int:
        try:
            # 1e5 is how people write large counts.
            number = int(text) if text.lstrip("+-").replace("_", "").isdigit() else float(text)
            if number != int(number):
                raise ValueError
        except (ValueError, OverflowError):
            raise ValueError("a whole number") from None
        if abs(number) > LARGEST:
            raise ValueError(f"a whole number of at most {LARGEST}")
        return int(number)
    raise TypeError(f"settings hold int, float, bool, str and tuples of them, not {kind}.")
