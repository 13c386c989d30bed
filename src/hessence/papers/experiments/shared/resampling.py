"""Whether a verdict on correlations would outlast another draw of the networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hessence.papers.experiments.protocol import Finding, Record

TIMES = 200
"""How often networks are drawn again."""
LEVEL = 0.95
"""A verdict is one if so many of the draws, or as few as the rest, have it."""


def outlasting(
    judged: Callable[[list[Record]], Sequence[Finding]], records: list[Record]
) -> list[Finding]:
    """Judge records, and as often with their networks drawn again, with replacement.

    A finding holds if it does in 95 % of the draws, fails if it does in 5 % or less, and is left
    open otherwise. Data and teacher stay the same; each record has its own.
    """
    rng = np.random.default_rng(0)
    found = judged(records)
    held = np.zeros(len(found))
    for _ in range(TIMES):
        again = [_drawn_again(record, rng) for record in records]
        held += [finding.holds is True for finding in judged(again)]
    return [_decided(finding, share) for finding, share in zip(found, held / TIMES, strict=True)]


def _drawn_again(record: Record, rng: np.random.Generator) -> Record:
    """Return a record with its networks drawn with replacement, the same before and after."""
    count = len(record["initial"]["sharpness"])
    chosen = rng.integers(count, size=count)
    return {**record, "initial": _rows(record["initial"], chosen),
            "trained": _rows(record["trained"], chosen)}  # fmt: skip


def _rows(table: Record, chosen: Any) -> Record:
    return {name: np.asarray(values, dtype=float)[chosen] for name, values in table.items()}


def _decided(finding: Finding, share: float) -> Finding:
    return replace(
        finding,
        holds=True if share >= LEVEL else False if share <= 1 - LEVEL else None,
        evidence=f"{finding.evidence}; met in {share:.0%} of {TIMES} draws of the networks",
        criterion=f"{finding.criterion}; met if networks are drawn again, with replacement, in "
        f"{LEVEL:.0%} of the draws, and not met if in {1 - LEVEL:.0%} or less",
    )
