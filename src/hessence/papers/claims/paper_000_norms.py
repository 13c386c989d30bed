"""Claims of paper 000, sections 4.2, D.3 and D.4: sharpness, trace and the norms of layers."""

from __future__ import annotations

from functools import reduce
from itertools import product
from typing import Literal

import numpy as np

from hessence.papers.claims.dense_hessians import Array
from hessence.papers.claims.norm_correlations import (
    MAXIMAL,
    NAMES,
    NETWORKS,
    SETS,
    WHENS,
    Kind,
    Measured,
    When,
    better_layer,
    measured,
)
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.trained_networks import correlation

WIDER = "the experiment sharpness-norms looks at wider networks, and at D up to the width"
WIDTH = 16
SIZES = (2, 4)


def _two(kind: Kind, when: When, size: int, teacher: int = 0) -> Measured:
    return measured(kind, when, (size, WIDTH, size), "linear", teacher)


def _all_sets(kind: Kind, when: When) -> list[Measured]:
    """Return sets of networks of all sizes, several of each with data of their own."""
    return [_two(kind, when, size, teacher) for size in SIZES for teacher in range(SETS)]


def _tables(of: Literal["sharpness", "trace"]) -> dict[Kind, list[Array]]:
    """Return every trained set's correlations with norms."""
    return {
        kind: [each.table(getattr(each, of)) for each in _all_sets(kind, "trained")]
        for kind in NAMES
    }


def _evidence(tables: dict[Kind, list[Array]]) -> str:
    told = "; ".join(f"{NAMES[kind]}: {better_layer(found)}" for kind, found in tables.items())
    return (
        f"correlations, better layer, trained, D = 2 and 4, {SETS} sets of "
        f"{NETWORKS} networks each, every set by itself; means {told}"
    )


def _spectral() -> Verdict:
    tables = _tables("sharpness")
    return judge(
        [float(t.max() - t[:, 0].max()) for found in tables.values() for t in found],
        _evidence(tables),
    )


def _trace_norms() -> Verdict:
    tables = _tables("trace")
    return judge(
        [float(t.max() - t[:, 1].max()) for found in tables.values() for t in found],
        _evidence(tables),
        MAXIMAL, [kind == "mup" for kind, found in tables.items() for _ in found],
    )  # fmt: skip


def _trace_all() -> Verdict:
    tables = _tables("trace")
    least = {kind: [float(t.max(axis=0).min()) for t in found] for kind, found in tables.items()}
    told = ", ".join(f"{min(values):.2f} ({NAMES[kind]})" for kind, values in least.items())
    return judge(
        [0.5 - value for values in least.values() for value in values],
        f"{_evidence(tables)}; the least of any set {told}",
        MAXIMAL, [kind == "mup" for kind, values in least.items() for _ in values],
    )  # fmt: skip


def _more_when_trained() -> Verdict:
    gaps, told = [], []
    kinds: tuple[Kind, ...] = ("standard", "mup")
    for kind in kinds:
        before, after = (
            np.array([each.table(each.sharpness)[:, 0].max() for each in _all_sets(kind, when)])
            for when in WHENS
        )
        gaps += (before - after).tolist()
        told.append(f"{before.mean():.3f} → {after.mean():.3f} ({NAMES[kind]})")
    return judge(
        gaps,
        f"correlation of λ_max with ‖W‖², better layer, D = 2 and 4, {SETS} sets of networks "
        f"each, every set by itself; means {', '.join(told)}; {WIDER}",
    )


def _drivers(kind: Kind, when: When = "trained") -> tuple[list[Array], str]:
    """Return correlations of λ_max with both layers' squared spectral norms, by size."""
    found = [_two(kind, when, size) for size in SIZES]
    pairs = [each.table(each.sharpness)[:, 0] for each in found]
    told = ", ".join(f"W1 {one:.2f}, W2 {two:.2f} (D = {size})"
                     for size, (one, two) in zip(SIZES, pairs, strict=True))  # fmt: skip
    return pairs, f"correlation of λ_max with ‖W‖², {NAMES[kind]}, {when}: {told}"


def _second_standard() -> Verdict:
    pairs, told = _drivers("standard")
    return judge([float(one - two) for one, two in pairs], told)


def _first_mup() -> Verdict:
    pairs, told = _drivers("mup")
    return judge([float(two - one) for one, two in pairs], told)


def second_mup() -> Verdict:
    """Check the sentence of D.3.3 as it is printed, with the second matrix in both places."""
    pairs, told = _drivers("mup")
    return judge([float(one - two) for one, two in pairs], told)


def _both_ntk() -> Verdict:
    pairs, told = _drivers("ntk")
    least = [float(pair.min()) for pair in pairs]
    return judge([0.5 - value for value in least], f"{told}; {WIDER}")


def _larger_drives() -> Verdict:
    gaps, told = [], []
    kinds: tuple[Kind, ...] = ("standard", "mup")
    for kind in kinds:
        pairs, text = _drivers(kind, "initial")
        gaps += [max(0.5 - float(one), float(two - one)) for one, two in pairs]
        told.append(text)
    return judge(gaps, "; ".join(told))


def _alignment() -> Verdict:
    # Of 18 pairs of D and width, 6 to 16, all those with D of 3/8 of the width or more had it and
    # none with D below a third, where it was hard to tell.
    gaps, inside, told = [], [], []
    sets = 6
    for width, size in ((8, 1), (8, 4), (12, 2), (12, 8)):
        rows = []
        for teacher in range(sets):
            found = measured("ntk", "initial", (size, width, size), "linear", teacher)
            joint = np.linalg.norm(found.weights[1] @ found.weights[0], 2, axis=(1, 2))
            best = float(found.table(found.sharpness)[:, 0].max())
            rows.append((correlation(joint, found.sharpness), best))
        aligned, best = np.mean(rows, axis=0)
        gaps.append(float(best - aligned))
        inside.append(2 * size >= width)
        told.append(f"{aligned:.2f}, {best:.2f} (D = {size}, width {width})")
    return judge(
        gaps,
        "neural tangent, at initialisation: correlations of λ_max with ‖W2W1‖, and with ‖W‖² of "
        f"the better layer, means over {sets} sets of networks: {', '.join(told)}",
        "D is half of the width or more", inside,
    )  # fmt: skip


def _block_dominant() -> Verdict:
    gaps, told = [], []
    for kind in NAMES:
        found = [_two(kind, "trained", size) for size in SIZES]
        ratios = np.concatenate([each.sharpness / each.blockwise for each in found])
        gaps += (ratios - 1.05).tolist()
        told.append(f"{ratios.min():.2f} to {ratios.max():.2f} ({NAMES[kind]})")
    return judge(gaps, f"λ_max over that of the diagonal blocks, trained: {', '.join(told)}")


def _knocked_out() -> Verdict:
    gaps, inside, told = [], [], []
    for kind, (size, depth) in product(NAMES, ((1, 3), (1, 4), (3, 3))):
        found = measured(kind, "trained", (size, *[8] * (depth - 1), size), "linear")
        products = [
            reduce(lambda low, high: high @ low, [w for j, w in enumerate(found.weights) if j != i])
            for i in range(depth)
        ]
        without = [
            correlation(np.linalg.norm(each, 2, axis=(1, 2)) ** 2, found.sharpness)
            for each in products
        ]
        rival = max(float(found.table(found.sharpness)[:, 0].max()), *without[:-1])
        gaps.append(rival - without[-1])
        inside.append(kind == "mup")
        told.append(f"{without[-1]:.2f} of {rival:.2f} ({NAMES[kind]}, D = {size}, L = {depth})")
    return judge(
        gaps,
        "correlation of λ_max with ‖W_{L−1}⋯W_1‖², and the best of other products and layers, "
        f"width 8, trained: {', '.join(told)}",
        MAXIMAL, inside,
    )  # fmt: skip


CLAIMS = (
    Claim(
        "000-spectral-norm", "000 §4.2, Fig 4 and 14",
        "λ_max of two trained linear layers correlates more with the squared spectral norm of a "
        "layer than with its Frobenius or nuclear norm",
        _spectral,
    ),
    Claim(
        "000-spectral-trained", "000 §4.2",
        "in the standard and the maximal-update parametrisation it correlates more after training "
        "than before",
        _more_when_trained,
    ),
    Claim(
        "000-larger-drives", "000 App D.3.3",
        "at initialisation it is the layer of larger entries whose norm correlates with λ_max",
        _larger_drives,
    ),
    Claim(
        "000-alignment", "000 App D.3.3, Fig 15",
        "where layers start alike, λ_max correlates more with their alignment than with a norm",
        _alignment,
    ),
    Claim(
        "000-second-standard", "000 App D.3.3",
        "trained in the standard parametrisation, the second layer's norm correlates most",
        _second_standard,
    ),
    Claim(
        "000-first-mup", "000 App D.3.3, as meant",
        "trained with maximal updates, the first layer's norm correlates most",
        _first_mup,
    ),
    Claim(
        "000-both-ntk", "000 App D.3.3",
        "trained in the neural-tangent parametrisation, both norms correlate by more than 0.5",
        _both_ntk,
    ),
    Claim(
        "000-block-dominant", "000 App D.3.3",
        "after training the diagonal blocks dominate, as is assumed: λ_max is theirs, within five "
        "per cent",
        _block_dominant,
    ),
    Claim(
        "000-knocked-out", "000 §4.2, Fig 17 and 18",
        "in deep linear networks the squared norm of the product without the last layer "
        "correlates most with λ_max, of all such products and single layers",
        _knocked_out,
    ),
    Claim(
        "000-trace-norms", "000 App D.4, Fig 26",
        "the trace correlates most with the squared Frobenius norm",
        _trace_norms,
    ),
    Claim(
        "000-trace-all", "000 App D.4, Fig 26",
        "the trace correlates with all three norms by more than 0.5",
        _trace_all,
    ),
)  # fmt: skip
