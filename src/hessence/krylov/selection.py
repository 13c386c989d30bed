"""Which Ritz values are asked for: SciPy's ``which``, and where one of them could hide a copy."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from hessence._common.arrays import Array, Numbers, to_numpy

Which = Literal["LM", "LA", "SA", "BE"]

MEANING: dict[Which, str] = {
    "LM": "largest in magnitude",
    "LA": "largest",
    "SA": "smallest",
    "BE": "from both ends",
}


def require_top(which: str, values: Array, size: int) -> None:
    """Refuse to call the first of some of all values, descending, the largest, if it may not be."""
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


def hiding_places(
    wanted: Numbers, which: Which, margin: Numbers, *, copies_only: bool = True
) -> Numbers:
    """Return where a value must lie to count as missed, and where to look for one.

    On either side of the spectrum the first number is the least wanted value, moved outwards by the
    margin. A copy of that value changes nothing; a copy of any other would push it out. So the
    second number is the nearest wanted value beyond the first; or, if not only copies are looked
    for, the first again. NaN where there is nothing to look for.

    Parameters
    ----------
    wanted : array (*batch, k)
        The values found, the most wanted first.
    which : str
        How they were chosen.
    margin : array (*batch,)
        Below which differences do not matter.
    copies_only : bool
        Whether only copies of the values found may have been missed.

    Returns
    -------
    array (*batch, 2, 2)
        For the upper side, then for the spectrum turned upside down, the two numbers.

    Examples
    --------
    >>> hiding_places(np.asarray([5.0, 5.0, 3.0, 2.0]), "LA", np.asarray(0.125))[0]
    array([2.125, 3.   ])
    """
    sides = []
    for sign in (1, -1):
        members, bound = _side(sign * wanted, which, sign)
        edge = bound + margin
        beyond = members & (sign * wanted > edge[..., None])
        nearest = np.where(beyond, sign * wanted, np.inf).min(axis=-1) if copies_only else edge
        nothing = np.isinf(nearest)
        sides.append(np.stack([np.where(nothing, np.nan, x) for x in (edge, nearest)], axis=-1))
    return np.stack(sides, axis=-2)


def _side(wanted: Numbers, which: Which, sign: int) -> tuple[Numbers, Numbers]:
    """Return which of the values count on the upper side, and the least of those wanted there."""
    k = wanted.shape[-1]
    if which == "LM":
        return wanted > 0, np.abs(wanted).min(axis=-1)
    taken = {"LA": slice(0, k if sign > 0 else 0), "SA": slice(0, k if sign < 0 else 0)}.get(
        which, slice(0 if sign > 0 else 1, k, 2)
    )
    members = np.zeros(wanted.shape, dtype=bool)
    members[..., taken] = True
    return members, np.where(members, wanted, np.inf).min(axis=-1)
