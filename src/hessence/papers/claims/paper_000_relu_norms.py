"""Claims of paper 000, sections 4.2 and D.3.3: sharpness and norms of layers with ReLU."""

from __future__ import annotations

import numpy as np

from hessence.papers.claims.dense_hessians import Array
from hessence.papers.claims.norm_correlations import (
    AGAIN,
    MAXIMAL,
    NAMES,
    NETWORKS,
    SETS,
    Kind,
    better_layer,
    measured,
)
from hessence.papers.claims.protocol import Claim, Verdict, judge

SHAPES = ((2, 6, 2), (4, 10, 4))


def _by_set(dims: tuple[int, ...]) -> dict[Kind, list[Array]]:
    """Return correlations of λ_max with norms in trained networks with ReLU, for every set."""
    return {
        kind: [each.table(each.sharpness)
               for each in (measured(kind, "trained", dims, "relu", i) for i in range(SETS))]
        for kind in NAMES
    }  # fmt: skip


def _relu_frobenius() -> Verdict:
    tables = {kind: np.mean(found, axis=0) for kind, found in _by_set(SHAPES[-1]).items()}
    told = "; ".join(f"{NAMES[kind]}: {better_layer([table])}" for kind, table in tables.items())
    return judge(
        [float(table.max() - table[:, 1].max()) for table in tables.values()],
        f"correlation with λ_max, better layer, 4-10-4, trained, means over {SETS} sets of "
        f"{NETWORKS} networks: {told}",
        MAXIMAL, [kind == "mup" for kind in tables],
    )  # fmt: skip


def _relu_range() -> Verdict:
    gaps, told = [], []
    for dims in SHAPES:
        for kind, tables in _by_set(dims).items():
            found = [float(table[0, 0]) for table in tables]
            gaps += [max(0.25 - value, value - 0.75) for value in found]
            told.append(f"{', '.join(f'{value:.2f}' for value in found)} ({NAMES[kind]}, "
                        f"D = {dims[0]}, mean {np.mean(found):.2f})")  # fmt: skip
    return judge(
        gaps,
        f"correlation of λ_max with ‖W1‖², 2-6-2 and 4-10-4, trained, {SETS} sets of {NETWORKS} "
        f"networks, every set by itself: {'; '.join(told)}",
    )


CLAIMS = (
    Claim(
        "000-relu-frobenius", "000 §4.2, Fig 16",
        "for two layers with ReLU the squared Frobenius norm correlates most with λ_max",
        _relu_frobenius, measured=True, revised=AGAIN,
        differs="With ten hidden units the spectral norm is some hundredths ahead in the "
        "neural-tangent parametrisation; at the experiment's width Frobenius is ahead throughout.",
    ),
    Claim(
        "000-relu-range", "000 §4.2, Fig 16",
        "for two layers with ReLU ‖W1‖² correlates with λ_max by 0.25 to 0.75",
        _relu_range, measured=True, revised=AGAIN,
        differs="Sets of small networks scatter around the range one by one; means over sizes at "
        "the experiment's width stay inside.",
    ),
    Claim(
        "000-relu-deep", "000 §4.2, Fig 22",
        "in deeper networks with ReLU the hidden matrices' squared Frobenius norms correlate more "
        "with λ_max than their spectral norms",
        None, measured=True,
        revised="first asked of the best of all layers, at all depths; with one input and output "
        "the first and the last layer are vectors, whose norms are the same number, and since then "
        "it is asked of the matrices between them, now in 95 % of draws of the networks",
    ),
)  # fmt: skip
