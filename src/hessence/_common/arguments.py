"""Arguments that many functions share, checked.

A ``which`` says in SciPy's two letters which eigenvalues are wanted. An ``rng`` is an integer,
which gives the same numbers on every call, or a NumPy Generator, which continues from call to call;
None is a fresh, unknown seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

Seed = int | np.random.Generator | None
"""What ``rng`` may be."""

Which = Literal["LM", "LA", "SA", "BE"]

MEANING: dict[Which, str] = {
    "LM": "largest in magnitude",
    "LA": "largest",
    "SA": "smallest",
    "BE": "from both ends",
}


def require_int(name: str, value: Any, least: int | None = None, most: int | None = None) -> None:
    """Refuse anything but an integer, within the bounds that are given."""
    is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    too_low = is_int and least is not None and value < least
    too_high = is_int and most is not None and value > most
    if not is_int or too_low or too_high:
        bound = "" if least is None else f" of at least {least}"
        bound = bound if most is None else f" between {least} and {most}"
        raise ValueError(f"{name} must be an integer{bound}, got {value!r}.")


def as_number(
    name: str, value: Any, wanted: str = "a number", holds: Callable[[float], bool] | None = None
) -> float:
    """Return a number as Python's; refuse NaN, and one for which a condition does not hold."""
    if not _is_number(value):
        raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}.")
    number = float(value)
    if math.isnan(number) or not (holds is None or holds(number)):
        raise ValueError(f"{name} must be {wanted}, got {value!r}.")
    return number


def _is_number(value: Any) -> bool:
    """Whether it is a real number, or an array of one; texts and truth values are not."""
    if getattr(value, "ndim", None) == 0:
        return any(kind in str(value.dtype) for kind in ("int", "float"))
    return isinstance(value, Real) and not isinstance(value, bool)


def as_positive(name: str, value: Any) -> float:
    """Return a number that is positive and finite."""
    return as_number(name, value, "a positive number", lambda number: 0 < number < math.inf)


def as_level(level: Any) -> float:
    """Return a level of confidence."""
    wanted = "a number between 0 and 1"
    return as_number("level", level, wanted, lambda number: 0 < number < 1)


def require_tolerance(tol: Any) -> None:
    """Refuse anything but a number that is not negative, nor infinite."""
    as_number("tol", tol, "a number that is not negative", lambda number: 0 <= number < math.inf)


def require_which(which: str) -> None:
    """Refuse anything but the four ways to choose."""
    if which not in get_args(Which):
        raise ValueError(f'which must be "LM", "LA", "SA" or "BE", got {which!r}.')


def require_options(
    k: int | None, which: str, tol: float, rng: Seed, probes: int = 1, steps: int = 1
) -> None:
    """Check the options of an estimate before any work; a `k` of None is all eigenvalues."""
    for name, value in {"k": 1 if k is None else k, "probes": probes, "steps": steps}.items():
        require_int(name, value, 1)
    require_which(which)
    require_tolerance(tol)
    generator(rng)


def generator(rng: Any) -> np.random.Generator:
    """Return the source of random numbers that a user means."""
    try:
        return np.random.default_rng(rng)
    except TypeError as error:
        raise TypeError(f"rng must be an integer or a numpy Generator, got {rng!r}.") from error
    except ValueError as error:
        raise ValueError(f"rng must be an integer of at least 0, got {rng!r}.") from error


def seed(rng: Any) -> int:
    """Return the integer that a user gave, or one drawn from the Generator.

    With it the same numbers can be drawn again, as after a restart.
    """
    if isinstance(rng, (int, np.integer)) and not isinstance(rng, bool) and rng >= 0:
        return int(rng)
    return int(generator(rng).integers(2**63))
