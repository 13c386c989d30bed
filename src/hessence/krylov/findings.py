"""What is asked of a solver, and what it hands back, before it is dressed up for the user."""

from __future__ import annotations

from dataclasses import dataclass

from hessence._common.arrays import Array, Numbers, epsilon
from hessence.krylov.selection import Which

SINGLE, DOUBLE = 16, 256
"""Residuals below this many ε · ‖H‖ are not asked for: rounding keeps them there. In single
precision that is the rounding of products alone, since recurrences are in double precision."""

ROUNDING = 16
"""What rounding may add to an error, in ε · ‖H‖; restarts add to that."""


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
    block: int
    max_products: int
    confidence: float


@dataclass(frozen=True)
class Findings:
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
