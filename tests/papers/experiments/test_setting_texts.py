"""Settings from text."""

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from hessence.papers.experiments.records import json_value
from hessence.papers.experiments.settings import (
    SettingError,
    at_least,
    changed,
    may_be_empty,
    settings_from_json,
)


@dataclass(frozen=True)
class Settings:
    width: Annotated[int, at_least(0)] = 10
    rate: float = 0.1
    exact: bool = True
    name: str = "digits"
    widths: tuple[int, ...] = (10, 100)
    size: tuple[int, float] = (1, 2.0)
    names: Annotated[tuple[str, ...], may_be_empty] = ()
    scheme: Literal["standard", "mup", "ntk"] = "mup"
    limit: float | None = None

    def __post_init__(self):
        if self.width % 2:
            raise ValueError("width must be even")


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("width", "12", 12),
        ("width", "1e5", 100_000),
        ("width", "10_000", 10_000),
        ("rate", "1e-3", 1e-3),
        ("rate", "2", 2.0),
        ("exact", "false", False),
        ("exact", "Yes", True),
        ("name", "a=b, c", "a=b, c"),
        ("widths", "1, 2,3", (1, 2, 3)),
        ("widths", "5", (5,)),
        ("names", "", ()),
        ("size", "3,0.5", (3, 0.5)),
        ("names", "a,b", ("a", "b")),
        ("scheme", "ntk", "ntk"),
        ("limit", "none", None),
        ("limit", "3", 3.0),
    ],
)
def test_values_are_read_by_the_fields_type(field, text, value):
    found = getattr(changed(Settings(), {field: text}), field)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("field", "text", "sentence"),
    [
        ("widht", "3", "there is no setting widht; near it: width, widths, "),
        ("width", "wide", "width must be a whole number, got 'wide'."),
        ("width", "2.5", "width must be a whole number, got '2.5'."),
        ("width", "inf", "width must be a whole number, got 'inf'."),
        ("width", "1e12", "width must be a whole number of at most 10000000, got '1e12'."),
        ("width", "-99999999", "width must be a whole number of at most 10000000, got"),
        ("widths", "2,10000001", "widths must be values separated by commas, each a whole number"),
        ("width", "3", "width must be even."),
        ("width", "-2", "width must be at least 0, got '-2'."),
        ("rate", "fast", "rate must be a number, got 'fast'."),
        ("exact", "maybe", "exact must be true or false, got 'maybe'."),
        ("widths", "1,x", "widths must be values separated by commas, each a whole number, got"),
        ("size", "1", "size must be 2 values separated by commas, got '1'."),
        ("scheme", "mpu", "scheme must be one of mup, "),
    ],
)
def test_mistakes_are_told_in_one_sentence(field, text, sentence):
    with pytest.raises(SettingError) as caught:
        changed(Settings(), {field: text})
    assert str(caught.value).startswith(sentence)


def test_settings_survive_json():
    settings = Settings(widths=(1, 2), limit=3.0)
    assert settings_from_json(Settings, json_value(vars(settings))) == settings
