"""What 004 says of its figures, judged by the records of depth-bifurcation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hessence.papers.experiments.protocol import Finding, Record

DENSE = 1e-8
"""Closed paths and dense Hessians have to agree to this part of the largest eigenvalue."""


@dataclass(frozen=True)
class Looks:
    """Networks of one kind at all depths, looked at after so many steps."""

    name: str
    stop: int
    dominant: int
    counts: list[int]
    gaps: list[float]
    depths: Any
    ratios: Any
    bulk: Any
    left: Any
    """What is left of the loss."""

    @property
    def apart(self) -> float:
        """In which part of the networks the widest gap comes after the dominant eigenvalues."""
        return float(np.mean([count == self.dominant for count in self.counts]))

    @property
    def splits(self) -> bool:
        """Whether it does in all of them, and no cluster reaches into the other."""
        return self.apart == 1 and min(self.gaps) > 1

    @property
    def off(self) -> float:
        """How far ratios are from the depth, at most."""
        return float(np.abs(self.ratios / self.depths - 1).max())

    @property
    def spread(self) -> float:
        """The largest mean of the bulk over the smallest."""
        return float(self.bulk.max() / self.bulk.min())

    @property
    def line(self) -> float:
        """How nearly linear the ratio is in the depth."""
        return float(np.corrcoef(self.depths, self.ratios)[0, 1])


def looks(rows: Sequence[Record], name: str, place: int, stop: int, dominant: int) -> Looks:
    """Collect what records of one kind of network hold at one of the stops."""
    clusters = [row["clusters"][place] for row in rows]
    means = {
        key: np.asarray([np.mean([c[key][1] for c in each]) for each in clusters])
        for key in ("dominant", "bulk")
    }
    return Looks(
        name,
        stop,
        dominant,
        [count for row in rows for count in row["dominant_count"][place]],
        [c["dominant"][0] / c["bulk"][2] for each in clusters for c in each],
        np.asarray([row["depth"] for row in rows]),
        means["dominant"] / means["bulk"],
        means["bulk"],
        np.asarray(
            [each[row["steps"].index(stop)] / each[0] for row in rows for each in row["losses"]]
        ),
    )


def on_linear(seen: Looks, dense_gap: float) -> list[Finding]:
    """Judge Theorem 3.5, Corollary 3.6 and Figure 2."""
    ratios = ", ".join(f"{d}: {r:.3f}" for d, r in zip(seen.depths, seen.ratios, strict=True))
    several = len(seen.depths) > 1
    return [
        Finding(
            "004-T3.5",
            seen.splits and dense_gap < DENSE,
            f"the widest gap comes after {seen.dominant} eigenvalues in {seen.apart:.0%} of "
            f"{len(seen.counts)} networks; the least dominant one is at least "
            f"{min(seen.gaps):.2f} times the bulk's largest; dense Hessians of networks whose "
            f"weights were all trained have the same eigenvalues, {dense_gap:.0e} off at most",
            criterion="the widest gap comes after r² eigenvalues in every network, and dense "
            f"Hessians by autodiff agree to {DENSE:.0e}",
        ),
        Finding(
            "004-ratio 004-C3.6",
            seen.off < 0.02,
            f"ratio by depth: {ratios}; {seen.off:.1%} off at most",
            criterion="within 2 % at every depth",
        ),
        Finding(
            "004-bulk",
            seen.spread < 1.5 if several else None,
            f"mean of the bulk from {seen.bulk.min():.3g} to {seen.bulk.max():.3g}",
            criterion="its mean changes by less than a factor of 1.5",
        ),
        Finding(
            "004-converges",
            seen.left.max() < 1e-6,
            f"{seen.left.max():.0e} of the loss is left at most",
            criterion="less than 1e-6 of the loss is left in every network",
        ),
    ]


def on_activated(seen: Sequence[Looks], others: Sequence[Looks]) -> list[Finding]:
    """Judge Figure 3; `others` have inputs of scales of our own, which do not decide."""
    searched = (
        "the activation, whose name is missing in the paper's text, where it stands, and the "
        "number of steps, which the paper does not tell: one that shows it is enough"
    )

    def told(text: Callable[[Looks], str]) -> str:
        stops = " and ".join(str(stop) for stop in dict.fromkeys(each.stop for each in seen))
        kinds: dict[str, list[str]] = {}
        for each in (*seen, *others):
            kinds.setdefault(each.name, []).append(text(each))
        listed = "; ".join(f"{name} {' and '.join(texts)}" for name, texts in kinds.items())
        return f"after {stops} steps: {listed}"

    several = len(seen[0].depths) > 2
    return [
        Finding(
            "004-activation-split",
            any(each.splits for each in seen),
            told(lambda s: f"{s.apart:.0%}") + f" of {len(seen[0].counts)} networks each",
            criterion="the widest gap comes after r² eigenvalues in every network",
            searched=searched,
        ),
        Finding(
            "004-activation",
            any(each.off < 0.25 for each in seen),
            told(lambda s: f"{s.off:.0%}") + ", off at most",
            criterion="within 25 % at every depth",
            searched=searched,
        ),
        Finding(
            "004-activation-bulk",
            any(s.line > 0.98 and s.spread < 1.5 for s in seen) if several else None,
            told(lambda s: f"{s.line:.2f} ({s.spread:.2f})")
            + "; correlation of ratio and depth (factor by which the bulk changes)"
            if several
            else "needs three depths",
            criterion="a correlation of ratio and depth above 0.98, and means of the bulk within a "
            "factor of 1.5",
            searched=searched,
        ),
        Finding(
            "004-activation-converges",
            any(each.left.max() < 0.1 for each in seen),
            told(lambda s: f"{s.left.max():.1e}") + " of the loss left, at most",
            criterion="less than a tenth of the loss is left in every network",
            searched=searched,
        ),
    ]
