"""What the records of self-attention at the edge of stability say of the paper's sentences."""

from __future__ import annotations

from typing import Any

import numpy as np

from hessence.papers.experiments.protocol import Finding, Record

FALL = 0.95
"""What falls is, late, below this part of what it was early."""
TYPICAL = 0.9
"""The share of networks that a statement on every network is asked to hold in."""
TOGETHER = 0.2
"""Two quantities fall alike if the logarithm of their ratio changes by no more."""
OFTEN = 10
"""A sharpness that passes 2/η so often oscillates around it."""
SETTLED = 0.01
"""A late swing below this part of 2/η is none."""
SEARCHED = (
    "the tokens, of which the paper names none: along (a, −a) swings shrink to nothing below "
    "a = 0.98399, where the flattest minimum is as sharp as 2/η, and last above; close to it they "
    "shrink for hundreds of steps"
)


def findings(settings: Any, records: list[Record]) -> list[Finding]:
    """Say how typical each part of the paper's picture is."""
    row = close_record(records)
    return [*_sharpening(settings, row), *_at_the_edge(settings, row, records),
            *_why(settings, records)]  # fmt: skip


def _sharpening(settings: Any, row: Record) -> list[Finding]:
    crossed = np.asarray(row["crossed"])
    starts = np.asarray(row["start"])
    sharpens = np.mean(crossed & (starts < 1))
    steps = np.median(np.asarray(row["crossing"])[crossed]) if crossed.any() else settings.steps
    up = np.sum([pair[0] for pair in row["rises"]["sharpness"]])
    share = up / max(int(np.sum(row["crossing"])), 1)
    return [
        Finding(
"000-sharpening",
bool(sharpens > TYPICAL),
f"from {np.median(starts):.2f} of 2/η to above it in {sharpens:.0%} of {len(starts)} "
            f"networks, after {steps:.0f} steps in the median; it grows at {share:.0%} of the "
            "steps on the way",
criterion=f"below 2/η at first and above it later in more than {TYPICAL:.0%} of "
            "networks",
),
        _growing(row, ("trace",), "000-sharpening-trace",
                 "while the sharpness rises, so does the trace"),
        _growing(row, ("value", "query", "key"), "000-sharpening-weights",
                 "while the sharpness rises, so do the norms of the weights"),
        _growing(row, ("m1", "m2", "m3"), "000-sharpening-moments",
                 "while the sharpness rises, so do the norms of the attention's moments",
                 "; the second moment is the variance of two tokens, which is largest for the "
                 "even attention of the start"),
    ]  # fmt: skip


def _growing(
    row: Record, names: tuple[str, ...], name: str, claim: str, reason: str = ""
) -> Finding:
    """Count steps on the way to 2/η at which the sharpness rises and something else does too."""
    shares, told = [], []
    for each in names:
        up, both = np.sum(row["rises"][each], axis=0)
        shares.append(both / up if up else float("nan"))
        told.append(f"{each} at {shares[-1]:.0%}")
    return Finding(
        name,
        None if np.isnan(shares).any() else min(shares) > TYPICAL,
        f"of {up} steps up to 2/η at which the sharpness rises: {', '.join(told)}{reason}",
        criterion=f"grows at more than {TYPICAL:.0%} of the steps up to 2/η at which the "
        "sharpness grows",
    )


def _at_the_edge(settings: Any, row: Record, records: list[Record]) -> list[Finding]:
    edge = np.asarray([outcome == "edge" for outcome in row["outcomes"]])
    fall, swing, opposite, driven, moved = (
        np.asarray(row[name], dtype=float)[edge]
        for name in ("fall", "swing", "opposite", "driven", "moved")
    )
    both = np.asarray(row["both"], dtype=float)[edge]
    alike = (both < FALL).all(axis=1) & (np.abs(np.log(both[:, 0] / both[:, 1])) < TOGETHER)
    on_map = [r for r in records if r["part"] == "map"]
    there = sum(share_of(r, "edge") > 0.5 for r in on_map)
    late = f"over the last 100 steps less than {FALL:.0%} of that over the first 100 behind 2/η"
    return [
        Finding(
            "000-edge",
            bool(np.mean(edge) > TYPICAL),
            f"to the end in {np.mean(edge):.0%} of {len(edge)} networks; in most networks for "
            f"{there} of {len(on_map)} pairs of tokens on a grid too",
            criterion=f"on both sides of 2/η in the last quarter of {settings.steps} steps, in "
            f"more than {TYPICAL:.0%} of networks",
            searched=SEARCHED,
        ),
        Finding(
            "000-edge-loss",
            _most(fall < FALL),
            f"in {_share(fall < FALL)} of networks, late over early {_middle(fall)} in the median"
            + _elsewhere(records, row, "fall"),
            criterion=f"in most networks the mean loss {late}",
            searched=SEARCHED,
        ),
        Finding(
            "000-edge-swing",
            _most(swing < FALL),
            f"in {_share(swing < FALL)} of networks, late over early {_middle(swing)} in the median"
            + _elsewhere(records, row, "swing"),
            criterion=f"in most networks the mean step of the sharpness {late}",
            searched=SEARCHED,
        ),
        Finding(
            "000-edge-phases",
            None if not edge.any() else bool(np.median(opposite) < -TYPICAL),
            f"correlation {_middle(opposite)}".replace("-", "−"),
            criterion=f"correlation of their steps behind 2/η below {-TYPICAL:g} in the median",
        ),
        Finding(
            "000-edge-driven",
            None if not edge.any() else bool(np.median(driven) > TYPICAL and np.median(moved) > 1),
            f"correlation {_middle(driven)}, and the steps of ξ are {_middle(moved, '.1f')} times "
            "those of tr/3, which go the other way",
            criterion="the sharpness is within tr/3 + ξ/2 and tr/3 + ξ: correlation of its steps "
            f"with those of ξ above {TYPICAL:g} in the median, and larger steps of ξ than of tr/3",
        ),
        Finding(
            "000-edge-amplitude",
            None if np.isnan(both).any() or not edge.any() else _most(alike),
            f"in {_share(alike)} of networks; {_middle(both[:, 0])} of the swing and "
            f"{_middle(both[:, 1])} of the residual are left in the median",
            criterion="in most networks both fall to less than 95 % of what they were 100 steps "
            f"behind 2/η, and their ratio changes by less than a factor of {np.exp(TOGETHER):.2f}",
            searched=SEARCHED,
        ),
    ]


def _most(found: Any) -> bool | None:
    return bool(np.mean(found) > 0.5) if len(found) else None


def _share(found: Any) -> str:
    return f"{np.mean(found):.0%}" if len(found) else "none"


def _middle(values: Any, form: str = ".3f") -> str:
    return f"{np.median(values):{form}}" if len(values) else "nothing"


def _elsewhere(records: list[Record], row: Record, name: str) -> str:
    """Tell the same of the tokens beside, and how sharp the flattest minimum is."""
    rows = sorted((r for r in records if r["part"] == "close"), key=lambda r: r["first"])
    told = ", ".join(
        f"{np.nanmedian(np.asarray(r[name], dtype=float)):.2g} at ({r['first']:g}, "
        f"{r['second']:g}), {r['flattest']:.3f}"
        for r in rows
    )
    return f"; by tokens, and the flattest minimum over 2/η: {told.replace('-', '−')}"


def _why(settings: Any, records: list[Record]) -> list[Finding]:
    around = [r for r in records if r["part"] == "rates"]
    seen = [r["rate"] for r in around if _oscillating(r) > 0.5]
    both = any(r < settings.rate for r in seen) and any(r > settings.rate for r in seen)
    sweep = [r for r in records if r["part"] == "sweep"]
    predicted = np.asarray([r["flattest"] > 1 for r in sweep])
    lasting = np.asarray([np.mean(np.asarray(r["late_swing"]) > SETTLED) > 0.5 for r in sweep])
    ends = [r["first"] for r, last in zip(sweep, lasting, strict=True) if last]
    return [
        Finding(
            "000-edge-rates",
            both,
            f"at rates {', '.join(f'{r:g}' for r in seen)} of "
            f"{', '.join(f'{r:g}' for r in settings.all_rates)}",
            criterion=f"most networks pass 2/η {OFTEN} times or more and do not diverge, at rates "
            f"below and above {settings.rate:g}",
        ),
        Finding(
            "A-000-edge",
            bool((predicted == lasting).all()) if settings.steps >= 500 else None,
            f"{int(np.sum(predicted == lasting))} of {len(sweep)} pairs of tokens (a, −a) as "
            f"predicted; swings last from a = {min(ends, default=float('nan')):.3f} on, the "
            f"flattest minimum is sharper than 2/η from a = {threshold(sweep):.4f} on",
            criterion=f"after {settings.steps} steps most networks swing by more than "
            f"{SETTLED:.0%} of 2/η exactly where it is",
        ),
    ]


def _oscillating(row: Record) -> float:
    """Return the share of networks that pass 2/η over and over, and do not diverge."""
    often = np.asarray(row["passes"]) >= OFTEN
    return float(np.mean(often & (np.asarray(row["outcomes"]) != "diverges")))


def threshold(sweep: list[Record]) -> float:
    """Return the a from which on the flattest minimum is sharper than 2/η."""
    sizes = [r["first"] for r in sweep]
    return float(np.interp(1.0, [r["flattest"] for r in sweep], sizes))


def close_record(records: list[Record]) -> Record:
    """Return the record of the tokens that are looked at closely, which comes first."""
    return next(record for record in records if record["part"] == "close")


def share_of(record: Record, name: str) -> float:
    """Return the share of networks with an ending."""
    return float(np.mean([outcome == name for outcome in record["outcomes"]]))
