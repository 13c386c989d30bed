"""Claims of paper 000, sections 4.2, D.3 and D.4: sharpness, trace and the norms of layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product

import numpy as np

from hessence.claims.dense_hessians import Array
from hessence.claims.norm_correlations import (
    NAMES,
    NORMS,
    Kind,
    Measured,
    When,
    measured,
    standard_error,
)
from hessence.claims.protocol import Claim, Verdict, judge
from hessence.claims.trained_networks import correlation

WIDTH = 16
SIZES = (2, 4)


def _two(kind: Kind, when: When, size: int) -> Measured:
    return measured(kind, when, (size, WIDTH, size), "linear")


def _told(tables: Sequence[Array]) -> str:
    """Return what the better of the layers has, averaged over sizes."""
    best = np.mean([table.max(axis=0) for table in tables], axis=0)
    return ", ".join(f"{norm} {value:.2f}" for norm, value in zip(NORMS, best, strict=True))


def _most(of: str, norm: int) -> Verdict:
    """Judge whether one norm of the better layer correlates most, up to a standard error."""
    gaps, told = [], []
    for kind in NAMES:
        found = [_two(kind, "trained", size) for size in SIZES]
        tables = [each.table(getattr(each, of)) for each in found]
        for table in tables:
            best, own = float(table.max()), float(table[:, norm].max())
            gaps.append(best - own - standard_error(own))
        told.append(f"{NAMES[kind]}: {_told(tables)}")
    return judge(
        gaps,
        f"correlations, better layer, trained, D = 2 and 4, to a standard error: {'; '.join(told)}",
    )


def _spectral() -> Verdict:
    return _most("sharpness", NORMS.index("spectral"))


def _trace_norms() -> Verdict:
    return _most("trace", NORMS.index("Frobenius"))


def _trace_all() -> Verdict:
    gaps, told = [], []
    for kind in NAMES:
        tables = [each.table(each.trace) for each in (_two(kind, "trained", d) for d in SIZES)]
        least = float(np.mean([table.max(axis=0) for table in tables], axis=0).min())
        gaps.append(0.5 - least - standard_error(least))
        told.append(f"{NAMES[kind]}: {_told(tables)}")
    return judge(
        gaps, f"better layer, trained, D = 2 and 4, to a standard error: {'; '.join(told)}"
    )


def _more_when_trained() -> Verdict:
    gaps, told = [], []
    for kind, size in product(NAMES, SIZES):
        before, after = (
            float(each.table(each.sharpness)[:, 0].max())
            for each in (_two(kind, "initial", size), _two(kind, "trained", size))
        )
        gaps.append(before - after - standard_error(after))
        told.append(f"{before:.3f} → {after:.3f} ({NAMES[kind]}, {size})")
    return judge(
        gaps,
        "correlation of λ_max with ‖W‖², better layer, to a standard error: " + ", ".join(told),
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
    return judge([0.5 - value - standard_error(value) for value in least], told)


def _larger_drives() -> Verdict:
    gaps, told = [], []
    kinds: tuple[Kind, ...] = ("standard", "mup")
    for kind in kinds:
        pairs, text = _drivers(kind, "initial")
        gaps += [max(0.5 - float(one), float(two - one)) for one, two in pairs]
        told.append(text)
    return judge(gaps, "; ".join(told))


def _alignment() -> Verdict:
    gaps, told = [], []
    for size in (2, 6):
        rows = []
        for teacher in range(3):
            found = measured("ntk", "initial", (size, WIDTH, size), "linear", teacher)
            joint = np.linalg.norm(found.weights[1] @ found.weights[0], 2, axis=(1, 2))
            best = float(found.table(found.sharpness)[:, 0].max())
            rows.append((correlation(joint, found.sharpness), best))
        aligned, best = np.mean(rows, axis=0)
        gaps.append(float(best - aligned))
        told.append(f"{aligned:.2f} with ‖W2W1‖, {best:.2f} with ‖W‖² (D = {size})")
    return judge(
        gaps,
        f"neural tangent, at initialisation, width {WIDTH}, means over three teachers: "
        + ", ".join(told),
        "D is a third of the width or more", [3 * size >= WIDTH for size in (2, 6)],
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
        "the parametrisation is maximal update", inside,
    )  # fmt: skip


def _relu() -> dict[Kind, Array]:
    """Return correlations of trained 4-10-4 networks with ReLU, means over three teachers."""
    shape = (4, 10, 4)
    return {
        kind: np.mean(
            [each.table(each.sharpness)
             for each in (measured(kind, "trained", shape, "relu", i) for i in range(3))],
            axis=0,
        )
        for kind in NAMES
    }  # fmt: skip


def _relu_frobenius() -> Verdict:
    gaps, inside, told = [], [], []
    for kind, table in _relu().items():
        gaps.append(float(table.max() - table[:, 1].max()))
        inside.append(kind == "mup")
        told.append(f"{NAMES[kind]}: {_told([table])}")
    return judge(
        gaps,
        "correlation with λ_max, better layer, 4-10-4, trained, means over three teachers: "
        + "; ".join(told),
        "the parametrisation is maximal update",
        inside,
    )


def _relu_range() -> Verdict:
    found = {kind: float(table[0, 0]) for kind, table in _relu().items()}
    return judge(
        [max(0.25 - value, value - 0.75) - standard_error(value) for value in found.values()],
        "correlation of λ_max with ‖W1‖², 4-10-4, trained, means over three teachers, to a "
        "standard error: "
        + ", ".join(f"{value:.2f} ({NAMES[kind]})" for kind, value in found.items()),
    )


CLAIMS = (
    Claim(
        "000-spectral-norm", "000 §4.2, Fig 4 and 14",
        "λ_max of two trained linear layers correlates more with the squared spectral norm of a "
        "layer than with its Frobenius or nuclear norm",
        _spectral,
    ),
    Claim(
        "000-spectral-trained", "000 §4.2",
        "it correlates more after training than before",
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
        "000-relu-frobenius", "000 §4.2, Fig 16",
        "for two layers with ReLU the squared Frobenius norm correlates most with λ_max",
        _relu_frobenius,
    ),
    Claim(
        "000-relu-range", "000 §4.2, Fig 16",
        "for them ‖W1‖² correlates with λ_max by 0.25 to 0.75",
        _relu_range,
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
