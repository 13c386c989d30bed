"""What an iteration is asked for, the Ritz pairs that it returns, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from hessence._common.arguments import Which
from hessence._common.arrays import Array, Numbers, epsilon, to_numpy
from hessence._common.files import KINDS

SINGLE, DOUBLE = 16, 256
"""Rounding lets no residual fall below this many ε · ‖H‖, so that none is asked for. In single
precision only products are rounded, since recurrences are in double precision."""

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


def preference(values: Numbers, which: Which) -> Numbers:
    """Return the order of ascending values (*batch, m) that puts the most wanted first.

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


class Outcome(Enum):
    """How an iteration ended, as the sentence that a user reads and its remedy.

    Examples
    --------
    >>> Outcome.OUT_OF_PRODUCTS.converged, Outcome.CONVERGED.say(tol=1e-6)
    (False, 'Converged: residuals are at most 1.0e-06 · ‖H‖.')
    >>> Outcome.TOO_FINE.remedy
    'raise steps or width'
    """

    CONVERGED = "Converged: residuals are at most {tol:.1e} · ‖H‖", ""
    AT_ROUNDING = (
        "Converged: residuals are at most {tol:.1e} · ‖H‖, as small as rounding lets them be",
        "",
    )
    COPIES_UNCERTAIN = (
        "Converged: residuals are at most {tol:.1e} · ‖H‖. Copies of multiple eigenvalues may be "
        "missing, but for a confidence of {confidence:.2f}",
        "raise ncv or max_products",
    )
    OUT_OF_PRODUCTS = (
        "{open} of {count} eigenvalues have residuals above {tol:.1e} · ‖H‖ (up to {worst:.1e}) "
        "after {products} products",
        "raise max_products or ncv, ask for a larger tol, or go on from here with "
        "v0=result.eigenvectors",
    )
    NOISY = (
        "{open} of {count} eigenvalues have residuals above {tol:.1e} · ‖H‖ (up to {worst:.1e}) "
        "after {products} products; ⟨u, Hv⟩ and ⟨v, Hu⟩ differ by as much, so H is not symmetric, "
        "or its products carry noise of {noise:.0e} · ‖H‖",
        "check H, or ask for a larger tol",
    )
    ALL_KNOWN = "All eigenvalues are known", ""
    RESOLVED = "The steps resolve the width", ""
    TOO_FINE = (
        "The width is finer than the steps resolve, and the band wider for it",
        "raise steps or width",
    )
    NOT_SYMMETRIC = (
        "⟨u, Hv⟩ and ⟨v, Hu⟩ differ by {noise:.0e} · ‖H‖, so H is not symmetric, or its products "
        "carry noise",
        "check H",
    )

    @property
    def sentence(self) -> str:
        """What happened, with placeholders for numbers."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What to do next, or an empty text."""
        return self.value[1]

    @property
    def converged(self) -> bool:
        """Whether the result is as accurate as was asked for."""
        return self not in (Outcome.OUT_OF_PRODUCTS, Outcome.NOISY)

    def to_dict(self) -> dict[str, str]:
        """Return the outcome as data that JSON can hold."""
        return {"format": "hessence.outcome/1", "name": self.name}

    @classmethod
    def from_dict(cls, data: dict[str, str]) -> Outcome:
        """Return the outcome that ``to_dict`` has named."""
        return cls[data["name"]]

    def say(self, **numbers: Any) -> str:
        """Return sentence and remedy, with the numbers of the case."""
        remedy = f": {self.remedy}" if self.remedy else ""
        return f"{self.sentence.format(**numbers)}{remedy}."


KINDS["outcome"] = Outcome
