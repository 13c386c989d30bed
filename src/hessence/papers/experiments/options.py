"""Settings from text: ``--set field=value``, parsed by the type of the dataclass's field."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from hessence.papers.experiments.limits import complaint

WORDS = {"true": True, "yes": True, "on": True, "1": True}
WORDS |= {"false": False, "no": False, "off": False, "0": False}


class OptionError(ValueError):
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
            raise OptionError(f"there is no setting {name}; near it: {nearest(name, names)}.")
        try:
            values[name] = parse(text, kinds[name])
            if words := complaint(values[name], kinds[name]):
                raise ValueError(words)
        except ValueError as error:
            raise OptionError(f"{name} must be {error}, got {text!r}.") from None
    try:
        return dataclasses.replace(settings, **values)
    except ValueError as error:
        raise OptionError(f"{str(error).rstrip('.')}.") from None


def from_plain(kind: type, values: Mapping[str, Any]) -> Any:
    """Return settings from JSON's types, where tuples have become lists."""

    def tuples(value: Any) -> Any:
        return tuple(tuples(item) for item in value) if isinstance(value, list) else value

    return kind(**{name: tuples(value) for name, value in values.items()})


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
            return int(number)
        except (ValueError, OverflowError):
            raise ValueError("a whole number") from None
    raise TypeError(f"settings hold int, float, bool, str and tuples of them, not {kind}.")
