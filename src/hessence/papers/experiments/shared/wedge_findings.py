"""What the records of training on a wedge say of the papers' sentences."""

from __future__ import annotations

from typing import Any

import numpy as np

from hessence.papers.experiments.protocol import Finding, Record

ROUNDING = 1e-9
ENDS = {
    "above": "from above",
    "around": "wiggling",
    "below": "from below",
    "diverges": "diverging",
}
NAMES = {"linear": "linear", "relu": "ReLU"}


def findings(settings: Any, records: list[Record]) -> list[Finding]:
    """Compare with the phases of learning, and with what the papers see in training."""
    violations = sum(sum(record["violations"]) for record in records)
    worst = max(record["deviation"] for record in records)
    networks = sum(len(record["start"]) for record in records)
    rest = [r for row in records for r, c in zip(row["rest"], row["converged"], strict=True) if c]
    return [
        Finding(
            "000-eq122 001-eq2",
            worst < ROUNDING,
            "pair, sum of the pair and bulk against Hessians summed sample by sample, along all "
            f"kinds of training, linear and ReLU's + cell: largest deviation {worst:.0e}",
            criterion=f"less than {ROUNDING:g} of the largest eigenvalue or the trace",
        ),
        Finding(
            "000-phases 001-phases",
            violations == 0,
            f"{violations} violations in all steps of {networks} networks, ReLU's + cells among "
            "them",
            criterion="at no step otherwise, the phases' borders apart",
        ),
        Finding(
            "000-solution 001-solution",
            None if not rest else float(np.median(rest)) < 1e-3,
            f"{len(rest)} networks arrive; λ₂/λ₁ is then {np.median(rest):.0e} in the median"
            if rest
            else "no network arrives",
            criterion="λ₂/λ₁ below 0.001 in the median, within 0.001 of the solution",
        ),
        _turning(settings, records),
        _from_above(settings, records),
        _at_high_rates(settings, records),
    ]


def _turning(settings: Any, records: list[Record]) -> Finding:
    shares, told = [], []
    for network, scale in (("linear", 1.0), ("linear", settings.small), ("relu", 1.0),
                           ("relu", settings.small)):  # fmt: skip
        rows = rows_of(records, network, settings.rate, settings.momentum, scale)
        turn, early = gather(rows, "first_turn"), gather(rows, "start") == "early"
        turned = early & gather(rows, "starts_negative") & (turn > 0)
        shares.append(float(np.mean(turned)))
        after = np.median(turn[turned]) if turned.any() else float("nan")
        told.append(
            f"{shares[-1]:.0%} of {len(turn)} {NAMES[network]} networks, inputs up to {scale:g}, "
            f"after {after:.0f} steps in the median; of those in the early phase at first "
            f"{np.mean(turned[early]) if early.any() else 0:.0%}"
        )
    return Finding(
        "001-turning",
        min(shares) > 0.5,
        "; ".join(told),
        criterion="in more than half of all networks, linear and ReLU, at the papers' rate and "
        "momentum",
    )


def _from_above(settings: Any, records: list[Record]) -> Finding:
    shares: list[float] = []
    others: list[float] = []
    told = []
    for network in ("linear", "relu"):
        rows = [r for r in records if r["network"] == network
                and (r["rate"], r["momentum"]) == (settings.rate, settings.momentum)]  # fmt: skip
        approach, early = gather(rows, "approach"), gather(rows, "start") == "early"
        damped = gather(rows, "overdamped")
        for kind, inside in (("overdamped", damped), ("all others", ~damped)):
            kept = approach[early & inside]
            share = float(np.mean(kept == "above")) if len(kept) else float("nan")
            told.append(f"{share:.0%} of {len(kept)} ({NAMES[network]}, {kind})")
            (shares if kind == "overdamped" else others).append(share)
    scales = ", ".join(
        f"{np.mean(gather(rows, 'approach') == 'above'):.0%} ({scale:g})"
        for scale in settings.all_scales
        for rows in [rows_of(records, "linear", settings.rate, settings.momentum, scale)]
    )
    return Finding(
        "001-from-above",
        None if np.isnan(shares).any() else min(shares) > 0.5,
        f"of networks in the early phase at first: {', '.join(told)}; of all linear ones, by the "
        f"largest input: {scales}",
        criterion="in more than half of the networks, linear and ReLU, that start in the early "
        "phase and whose descent is overdamped, η λ₁ < (1 − √μ)² at the end",
        searched="the scale of the wedge, which the papers do not tell: inputs up to 1 and "
        f"momentum {settings.momentum:g} are never overdamped, inputs up to {settings.small:g} are",
        condition=None
        if all(share > 0.5 for share in others)
        else "descent is overdamped, η λ_max < (1 − √μ)²",
    )


def _at_high_rates(settings: Any, records: list[Record]) -> Finding:
    best, told = 0.0, []
    for momentum in (settings.momentum, 0.0):
        for rate in (rate for rate in settings.all_rates if rate > settings.rate):
            rows = rows_of(records, "linear", rate, momentum, 1.0)
            approach, turns = gather(rows, "approach"), gather(rows, "turns")
            below = approach == "below"
            whole = float(np.mean(below & gather(rows, "drops_first") & (turns > 1)))
            best = max(best, whole)
            if rate == settings.high_rate:
                ends = ", ".join(f"{np.mean(approach == a):.0%} {name}" for a, name in ENDS.items())
                told.append(f"{ends}, all of it {whole:.0%} (rate {rate:g}, momentum {momentum:g})")
    relu = rows_of(records, "relu", settings.high_rate, 0.0, 1.0)
    below = np.mean(gather(relu, "approach") == "below")
    return Finding(
        "001-high-rate",
        best > 0.5,
        f"in {best:.0%} of linear networks at most; {'; '.join(told)}; of ReLU networks at rate "
        f"{settings.high_rate:g} without momentum {below:.0%} end from below",
        criterion=f"in more than half of the linear networks at one rate above {settings.rate:g} "
        "at least, with or without momentum",
    )


def gather(rows: list[Record], name: str) -> Any:
    """Return a field of all networks in some records."""
    return np.asarray([value for row in rows for value in row[name]])


def rows_of(
    records: list[Record], network: str, rate: float, momentum: float, scale: float
) -> list[Record]:
    """Return the records of a kind of network in one setting."""
    case = (network, rate, momentum, scale)
    return [r for r in records if (r["network"], r["rate"], r["momentum"], r["scale"]) == case]
