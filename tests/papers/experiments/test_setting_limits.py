"""How large settings may be."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Optional, Union

import pytest

from hessence.papers.experiments.catalogue import all_experiments
from hessence.papers.experiments.settings import (
    SettingError,
    at_least,
    between,
    changed,
    complaint,
    finite,
    may_be_empty,
    require_limits,
)


@dataclass(frozen=True)
class Settings:
    draws: int = 3
    points: Annotated[int, at_least(2)] = 5
    rate: float = 0.1
    noise: Annotated[float, at_least(0)] = 0.0
    shift: Annotated[float, finite] = -1.0
    momentum: Annotated[float, between(0, 1)] = 0.9
    widths: tuple[int, ...] = (10, 100)
    depths: tuple[Annotated[int, at_least(2)], ...] = (2, 3)
    hidden: Annotated[tuple[int, ...], may_be_empty] = ()
    size: tuple[int, float] = (1, 2.0)
    cap: float | None = None
    exact: bool = False
    name: str = ""


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("draws", "1"), ("points", "2"), ("rate", "1e-300"), ("noise", "0"), ("shift", "-1e9"),
        ("momentum", "0.999"), ("widths", "1"), ("depths", "2,2"), ("hidden", ""), ("cap", "none"),
        ("cap", "3"), ("exact", "false"), ("name", ""),
    ],
)  # fmt: skip
def test_what_is_allowed(field, text):
    require_limits(changed(Settings(), {field: text}))


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("draws", "0", "at least 1"),
        ("points", "1", "at least 2"),
        ("rate", "0", "positive"),
        ("rate", "nan", "positive"),
        ("rate", "inf", "positive"),
        ("noise", "-1e-9", "at least 0"),
        ("noise", "inf", "at least 0"),
        ("shift", "-inf", "a finite number"),
        ("momentum", "1", "between 0 and 1"),
        ("widths", "", "at least one value"),
        ("widths", "5,0", "at least 1, each of them"),
        ("depths", "2,1", "at least 2, each of them"),
        ("hidden", "3,-4", "at least 1, each of them"),
        ("size", "1,0", "positive, each of them"),
        ("cap", "-3", "positive"),
    ],
)
def test_what_is_refused(field, text, words):
    with pytest.raises(SettingError) as told:
        changed(Settings(), {field: text})
    assert str(told.value) == f"{field} must be {words}, got {text!r}."


def test_none_may_come_first():
    assert complaint(0, Optional[int]) == complaint(0, Union[None, int]) == "at least 1"  # noqa: UP007, UP045
    assert complaint(None, Union[None, int]) is None  # noqa: UP007


def test_settings_of_python_code_are_looked_at_too():
    with pytest.raises(ValueError, match=r"points must be at least 2, got 1"):
        require_limits(Settings(points=1))
    experiment = all_experiments()["relu-cells"]
    none = dataclasses.replace(experiment.presets["quick"], draws=0)
    with pytest.raises(ValueError, match=r"draws must be at least 1, got 0"):
        dataclasses.replace(experiment, presets={**experiment.presets, "quick": none})


SIGNED = {("attention-edge-of-stability", "second"), ("wedge-training", "lowest")}


@pytest.mark.parametrize("name", all_experiments())
def test_no_experiment_takes_nonsense(name):
    """A count below zero, or a number that is none, is refused by the name of its field."""
    settings = all_experiments()[name].presets["quick"]
    numbers = 0
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        first = value[0] if isinstance(value, tuple) else value
        if isinstance(first, bool | str) or not isinstance(first, int | float):
            continue
        numbers += 1
        bad = ["nan"] if isinstance(first, float) else []
        bad += [] if (name, field.name) in SIGNED else ["-1"]
        for text in bad:
            with pytest.raises(SettingError, match=rf"^{field.name} must be .*, got '{text}'\.$"):
                changed(settings, {field.name: text})
    assert numbers > 2
