"""What is asked of an eigensolver, and the Ritz pairs that it hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from hessence._common.arguments import Seed, generator, require_int, require_tolerance
from hessence._common.arrays import Array, Numbers, epsilon, to_numpy

Which = Literal["LM", "LA", "SA", "BE"]

MEANING: dict[Which, str] = {
    "LM": "largest in magnitude",
    "LA": "largest",
    "SA": "smallest",
    "BE": "from both ends",
}

SINGLE, DOUBLE = 16, 256
"""Residuals below this many ε · ‖H‖ are not asked for: rounding keeps them there. In single
precision that is the rounding of products alone, since recurrences are in double precision."""

ROUNDING = 16
"""What rounding may add to an error, in ε · ‖H‖; restarts add to that."""


def require_top(which: str, values: Array, size: int) -> None:
    """Refuse to call the first value the largest eigenvalue where the search looked elsewhere."""
    if values.shape[-1] == size:
        return
    if which == "SA" or (which == "LM" and float(to_numpy(values)[..., 0].min()) < 0):
        raise ValueError(
            f'the largest eigenvalue is not among those found with which="{which}": ask for "LA".'
        )


def require_which(which: str) -> None:
    """Refuse anything but the four ways to choose."""
    if which not in get_args(Which):
        raise ValueError(f'which must be "LM", "LA", "SA" or "BE", got {which!r}.')


def require_options(
    k: int | None, which: str, tol: float, rng: Seed, probes: int, steps: int
) -> None:
    """Refuse what no estimate of a spectrum can do, before any work."""
    for name, value in {"k": 1 if k is None else k, "probes": probes, "steps": steps}.items():
        require_int(name, value, 1, None)
    require_which(which)
    require_tolerance(tol)
    generator(rng)


def preference(values: Numbers, which: Which) -> Numbers:
    """Order ascending values (*batch, m) by how much they are asked for, the most wanted first.

    Examples
    --------
    >>> preference(np.asarray([-3.0, -1.0, 0.0, 2.0]), "LM")
    array([0, 3, 1, 2])
    >>> preference(np.asarray([-3.0, -1.0, 0.0, 2.0]), "BE")
    array([3, 0, 2, 1])
    """
    count = values.shape[-1]
    ascending = np.arange(count)
    if which == "LM":
        return np.argsort(-np.abs(values), axis=-1, kind="stable")
    if which == "LA":
        order = ascending[::-1]
    elif which == "SA":
        order = ascending
    else:
        order = np.empty(count, dtype=int)
        order[0::2] = ascending[::-1][: (count + 1) // 2]
        order[1::2] = ascending[: count // 2]
    return np.broadcast_to(order, values.shape)


def attainable(reference: Array) -> float:
    """Return the smallest relative residual that rounding allows for arrays of a type."""
    spacing = epsilon(reference)
    return spacing * (DOUBLE if spacing < 1e-12 else SINGLE)


@dataclass(frozen=True)
class Request:
    """What is asked for, checked; names as in ``hs.eigenpairs``."""

    k: int
    which: Which
    tol: float
    ncv: int
    limit: int
    columns: int
    max_products: int
    confidence: float


@dataclass(frozen=True)
class RitzPairs:
    """Ritz pairs of the wanted end, with descending values, and how good they are.

    Numbers are in units of `scale`, (*batch,); `values`, `residuals`, `resolved` are (*batch, k).
    """

    values: Numbers
    rows: Array
    residuals: Numbers
    resolved: Numbers
    asymmetry: Numbers
    scale: Numbers
    norm: Numbers
    rounding: float
    products: int
    confidence: float | None
