"""Arguments that all solvers share, checked."""

from __future__ import annotations

import zlib
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, to_numpy

SAMPLED = 4096
"""How many numbers of a start tell it from others, at least."""


def require_int(name: str, value: Any, least: int | None = None, most: int | None = None) -> None:
    """Refuse anything but an integer, within the bounds that are given."""
    is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    too_low = is_int and least is not None and value < least
    too_high = is_int and most is not None and value > most
    if not is_int or too_low or too_high:
        bound = "" if least is None else f" of at least {least}"
        bound = bound if most is None else f" between {least} and {most}"
        raise ValueError(f"{name} must be an integer{bound}, got {value!r}.")


def require_tolerance(tol: Any) -> None:
    """Refuse anything but a number that is not negative, nor infinite."""
    if not (isinstance(tol, (int, float, np.floating)) and 0 <= tol < np.inf):
        raise ValueError(f"tol must be a number that is not negative, got {tol!r}.")


def generator(rng: Any) -> np.random.Generator:
    """Return the source of random numbers that a user means."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise TypeError(f"rng must be an integer or a numpy Generator, got {rng!r}.") from error


def independent_of(start: Array, rng: Any) -> np.random.Generator:
    """Return the source that a user means, or another one if a start may have come from it.

    A start is often the result of an earlier call with the same seed. Of a multiple eigenvalue it
    then has the very copy that the numbers to come would lead to, and they would find no other.
    A generator goes on from call to call, and is taken as it is.
    """
    source = generator(rng)
    if start is None or source is rng:
        return source
    flat = api.array_namespace(start).reshape(start, (-1,))
    some = to_numpy(flat[:: max(1, int(flat.shape[0]) // SAMPLED)])
    return np.random.default_rng([int(source.integers(2**63)), zlib.crc32(some.tobytes())])
