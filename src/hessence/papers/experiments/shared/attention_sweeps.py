"""What sweeps of a self-attention layer say of the paper's sentences."""

from __future__ import annotations

from typing import Any

import numpy as np

from hessence.papers.experiments.protocol import Finding, Record

STEADY = 0.1
"""What moves by less than this part of itself is taken to be unaffected."""
SHORT = 1 / 200
"""Query and key weights are short up to this part of d_K, as the product of their norms."""
GONE = 1e-3
"""A bulk below this part of what it was is taken to have shrunk to zero."""
FULL = 0.95
"""A sink is full if the first token has this share of the attention of every token."""


def findings(settings: Any, records: list[Record]) -> list[Finding]:
    """Compare with Theorem 3.5, Remark 3.1 and what the paper reads from them."""
    worst = max(record["deviation"] for record in records)
    expected = [settings.keys - 1] * 2
    copies = all(record["multiplicities"] == expected for record in records)
    count = len(records) * settings.points
    printed = sum(record["outside_printed"] for record in records)
    corrected = sum(record["outside"] for record in records)
    below, close = _condition_bounds(records, "condition_bound")
    below_printed, _ = _condition_bounds(records, "condition_printed")
    return [
        Finding(
            "000-T3.5-eigenvalues",
            copies and worst < 1e-5,
            f"at d_K = {settings.keys} losses along eigenvectors curve as the eigenvalues say to "
            f"{worst:.0e} of the largest",
            criterion="these multiplicities, and the loss's own second differences along "
            "eigenvectors within 1e-5 of the largest eigenvalue",
        ),
        Finding(
            "000-T3.5-bounds",
            printed == 0,
            f"not so in {printed} of {count} networks",
            criterion="in all networks",
        ),
        Finding(
            "000-R3.1",
            below_printed == 0,
            f"not so in {below_printed} of {count} networks",
            criterion="in all networks",
        ),
        Finding(
            "000-T3.5-corrected",
            corrected == 0 and below == 0,
            f"outliers are beyond in {corrected} of {count} networks, the condition number in "
            f"{below}, whose bound is {close:.2f} of it in the median",
            criterion="in all networks",
        ),
        *_on_keys(settings, rows_of(records, "keys")),
        _on_values(settings, rows_of(records, "value")),
        *_on_sinks(settings, records),
    ]


def _condition_bounds(records: list[Record], name: str) -> tuple[int, float]:
    """Return how many condition numbers are below a bound, and the bound over them."""
    ratio, bound = (
        np.asarray([row[key] for row in records], dtype=float) for key in ("condition", name)
    )
    known = np.isfinite(bound) & np.isfinite(ratio)
    share = bound[known] / ratio[known]
    return int(np.sum(share > 1 + 1e-9)), float(np.median(share))


def _on_keys(settings: Any, rows: list[Record]) -> list[Finding]:
    sizes = sizes_of(settings, "keys")
    bulk, sharpness = bulks(rows), sharpnesses(rows)
    change = np.abs(bulk - bulk[:, :1])
    moved = np.median(np.maximum.accumulate(change, axis=1) / bulk[:, :1], axis=0)
    short = sizes**2 <= SHORT * settings.keys
    beside = np.median(change[:, -1] / np.abs(sharpness[:, -1] - sharpness[:, 0]))
    first = max(1, len(sizes) // 30)
    rise = sharpness[:, -1] / sharpness[:, first]
    ratio = np.asarray([row["condition"] for row in rows])
    rising = np.mean((np.diff(ratio, axis=1) > 0).all(axis=1))
    sharper = np.mean((np.diff(sharpness, axis=1) > 0).all(axis=1))
    final = np.mean(ratio[:, -1] > ratio[:, first])
    ends = f"norm {sizes[-1]:g} than at {sizes[first]:g}"
    return [
        Finding(
            "000-steady-bulk",
            None if short.sum() < 2 else moved[short].max() < STEADY,
            f"off by {moved[short].max():.0%} up to norm {sizes[short].max():g}, by "
            f"{moved[-1]:.0%} at some norm up to {sizes[-1]:g}, within {STEADY:.0%} up to norm "
            f"{sizes[np.sum(moved < STEADY) - 1]:g}; the bulk moves by {beside:.1%} of what the "
            "sharpness moves by",
            criterion=f"in the median network within {STEADY:.0%} of itself as long as "
            f"‖w_Q‖‖w_K‖ ≤ d_K/{1 / SHORT:.0f}",
            condition=f"‖w_Q‖‖w_K‖ ≤ d_K/{1 / SHORT:.0f}" if moved[-1] >= STEADY else None,
        ),
        Finding(
            "000-growing-outlier",
            np.mean(rise > 1) > 0.5,
            f"in {np.mean(rise > 1):.0%} of {len(rows)} networks, by a factor of "
            f"{np.median(rise):.1f} in the median; at every point of the sweep in "
            f"{sharper:.0%}",
            criterion=f"larger at {ends} in most networks",
        ),
        Finding(
            "000-monotonic",
            rising == 1,
            f"in {rising:.0%} of {len(rows)} networks; larger at {ends} in {final:.0%}",
            criterion="grows at every point of the sweep in every network",
        ),
    ]


def _on_values(settings: Any, rows: list[Record]) -> Finding:
    ratio = np.asarray([row["condition"] for row in rows])[:, 1:]
    steps = np.diff(ratio, axis=1)
    one_way = np.mean((steps > 0).all(axis=1) | (steps < 0).all(axis=1))
    outliers = np.asarray([row["outliers"] for row in rows])
    # The weight 0 is left out, where there is no bulk.
    moved = [
        float(np.median(np.ptp(np.log(np.abs(values[:, 1:])), axis=1)))
        for values in (bulks(rows), *np.moveaxis(outliers, -1, 0))
    ]
    names = ("bulk", "largest outlier", "middle one", "smallest one")
    told = ", ".join(
        f"{name} by {np.exp(move):.3g}" for name, move in zip(names, moved, strict=True)
    )
    sizes = sizes_of(settings, "value")
    return Finding(
        "000-value",
        bool(one_way < 0.5 and min(moved) > np.log(1 + STEADY)),
        f"monotonic in {one_way:.0%} of {len(rows)} networks; between w_V = {sizes[1]:g} and "
        f"{sizes[-1]:g} eigenvalues change by factors of, in the median: {told}",
        criterion=f"bulk and all three outliers change by more than {STEADY:.0%} in the median "
        "network, and the condition number is not monotonic in most",
        searched="the range of w_V, which the paper does not tell: up to 3 the largest outlier "
        "is about α, which does not depend on w_V, and moves by less than a tenth",
    )


def _on_sinks(settings: Any, records: list[Record]) -> list[Finding]:
    plain, massive = rows_of(records, "sink"), rows_of(records, "massive sink")
    left, grown, conditions, risen = [], [], [], []
    for rows in (plain, massive):
        bulk, sharpness = bulks(rows), sharpnesses(rows)
        ratio = np.asarray([row["condition"] for row in rows], dtype=float)
        left.append(bulk[:, -1] / bulk[:, 0])
        grown.append(sharpness[:, -1] / sharpness[:, 0])
        conditions.append(ratio[:, -1] / ratio[:, 0])
        full = np.asarray([row["attention"] for row in rows])[:, :-1] >= FULL
        risen.append((np.sum(full), np.sum((np.diff(bulk, axis=1) > 0) & full),
                      np.mean((np.diff(bulk, axis=1) > 0).any(axis=1))))  # fmt: skip
    kinds = ("standard normal tokens", f"first tokens {settings.massive:g} times larger")
    steps, rises, before = np.sum(risen, axis=0)
    return [
        Finding(
            "000-sink-bulk",
            max(part.max() for part in left) < GONE,
            f"a sink of {settings.largest_sink:g} leaves at most "
            + ", ".join(f"{part.max():.0e} of it ({kind})"
                        for part, kind in zip(left, kinds, strict=True)),
            criterion=f"less than {GONE:g} of the bulk is left in every network",
        ),
        Finding(
            "000-sink-steps",
            None if not steps else rises == 0,
            f"the bulk grows at {rises:.0f} of {steps:.0f} such steps; at weaker sinks it grows "
            f"before it shrinks in {before / 2:.0%} of networks",
            criterion=f"at every step of the sweep from sinks at which the first token has "
            f"{FULL:.0%} of the attention or more",
            condition=f"the first token has {FULL:.0%} of the attention or more" if before
            else None,
        ),
        Finding(
            "000-sink-sharpness",
            np.mean(grown[1] > 1) > 0.5,
            "; ".join(f"in {np.mean(part > 1):.0%}, by a factor of {np.median(part):.1f} in the "
                      f"median ({kind})" for part, kind in zip(grown, kinds, strict=True)),
            criterion=f"in most networks with first tokens {settings.massive:g} times larger, at a "
            f"sink of {settings.largest_sink:g}",
        ),
        Finding(
            "000-sink-condition",
            min(np.mean(part > 1) for part in conditions) > 0.5,
            "; ".join(f"in {np.mean(part > 1):.0%}, by a factor of {np.median(part):.0e} in the "
                      f"median ({kind})" for part, kind in zip(conditions, kinds, strict=True)),
            criterion=f"in most networks, at a sink of {settings.largest_sink:g}",
        ),
    ]  # fmt: skip


def sizes_of(settings: Any, sweep: str) -> Any:
    """Return the points of a sweep."""
    largest = {"keys": settings.largest_norm, "value": settings.largest_value}
    places = np.linspace(0, 1, settings.points)
    # A sink takes all attention early on: there the points are close.
    return places * largest[sweep] if sweep in largest else places**2 * settings.largest_sink


def rows_of(records: list[Record], sweep: str) -> list[Record]:
    """Return the records of a sweep."""
    return [record for record in records if record["sweep"] == sweep]


def bulks(rows: list[Record]) -> Any:
    """Return the bulk by network and point."""
    return np.asarray([row["bulk"] for row in rows])


def sharpnesses(rows: list[Record]) -> Any:
    """Return the largest eigenvalue by network and point."""
    return np.maximum(np.asarray([row["outliers"] for row in rows])[..., 0], bulks(rows))
