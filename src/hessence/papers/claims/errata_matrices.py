"""Misprints about matrices in the papers, with counterexamples and the right statements."""

from __future__ import annotations

import numpy as np

from hessence.papers.claims.linear_networks import (
    Linear,
    balanced_weights,
    nonzero,
    padded_gap,
    random_weights,
    white,
)
from hessence.papers.claims.paper_000_bias import bias_blocks
from hessence.papers.claims.paper_000_norms import second_mup
from hessence.papers.claims.paper_000_pairs import other_fraction
from hessence.papers.claims.paper_002_balanced import alignment
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.scalar_networks import centred_draw


def _counts() -> Verdict:
    rng = np.random.default_rng(14)
    X = white(rng, 6, 20)
    shallow = Linear(random_weights(rng, (6, 2, 4)), X, X).solved()
    deep = Linear(balanced_weights(rng, (4, 2, 2, 3), (1.0, 1.5)), white(rng, 4, 9), X).solved()
    found = [len(nonzero(net.hessian())) for net in (shallow, deep)]
    return judge(
        [float(max(0, count - 4)) for count in found],
        f"6-2-4 has {found[0]} non-zero eigenvalues, a balanced 4-2-2-3 has {found[1]}; printed at "
        "most 4 each, with the mixed pairs r² + r(d0 + dL − 2r) = 16 and 10",
    )


def _pairs() -> Verdict:
    rng = np.random.default_rng(15)
    X = white(rng, 4, 12)
    printed: list[float] = []
    right: list[float] = []
    for sizes in ((4, 2, 3), (4, 3, 2), (4, 5, 3)):
        net = Linear(random_weights(rng, sizes), X, X).solved()
        low, high = (np.linalg.svd(weight, compute_uv=False) ** 2 for weight in net.weights)
        hessian = net.hessian()
        printed.append(padded_gap([i + j for i in low for j in high], hessian))
        low = np.concatenate([low, np.zeros(sizes[0] - len(low))])
        high = np.concatenate([high, np.zeros(sizes[2] - len(high))])
        right.append(padded_gap([i + j for i in low for j in high], hessian))
    for dims in ((4, 2, 2, 3), (2, 3, 3, 3)):
        net = Linear(balanced_weights(rng, dims, (1.0, 1.5)), white(rng, dims[0], 9), X).solved()
        hessian = net.hessian()
        for found, padding in ((printed, (0, 0)), (right, (dims[0] - 2, dims[-1] - 2))):
            first, last = (np.pad([1.0, 2.25], (0, zeros)) for zeros in padding)
            sums = [i**2 + i * j + j**2 for i in last for j in first]
            found.append(padded_gap(sums, hessian))
    return judge(
        printed,
        f"4-2-3, 4-3-2, 4-5-3 and balanced 4-2-2-3, 2-3-3-3: off by up to {max(printed):.2f} of "
        f"λ_max, {max(right):.0e} over all i ≤ d0, j ≤ dL with zeros filled in",
    )


def _larger_norm() -> Verdict:
    rng = np.random.default_rng(16)
    X = white(rng, 3, 10)
    net = Linear(random_weights(rng, (3, 4, 2)), X, X).solved()
    norms = [float(np.linalg.norm(weight, 2)) ** 2 for weight in net.weights]
    top = float(np.linalg.eigvalsh(net.hessian())[-1])
    return judge(
        [abs(max(norms) - top) / top],
        f"a random 3-4-2 at zero loss, white data: λ_max = {top:.4f}, printed {max(norms):.4f}, "
        f"the sum {sum(norms):.4f}",
    )


def _reversed() -> Verdict:
    printed, right = (alignment(printed=is_printed) for is_printed in (True, False))
    return judge(
        printed,
        f"random balanced networks: singular vectors off by up to {max(printed):.2f}, "
        f"{max(right):.0e} for left ones of a layer and right ones of the next",
    )


def _fraction() -> Verdict:
    by_inputs, by_width = other_fraction()
    return judge(
        [by_width],
        "one input and width 3: a pair of dense eigenvalues "
        f"sums up to the trace over 1 within {by_inputs:.0e} of it, over 3 within {by_width:.0e}",
    )


def _bias_blocks() -> Verdict:
    net = centred_draw(np.random.default_rng(19), 3)
    hessian = net.hessian()
    printed, right = (
        float(np.max(np.abs(bias_blocks(net, turned=turned) - hessian))) for turned in (False, True)
    )
    return judge(
        [printed],
        f"random weights of width 3, inputs of mean 0: entries off by {printed:.2f}, {right:.0e} "
        "with both turned",
    )


CLAIMS = (
    Claim(
        "E-000-eq82", "000 eq 82 and 83",
        "with a bias the blocks below the diagonal are those above it, and not turned",
        _bias_blocks,
    ),
    Claim(
        "E-002-counts", "002 §3 and App B",
        "at most min(d0, …, dL)² eigenvalues are not zero, whatever the sizes of the layers",
        _counts,
    ),
    Claim(
        "E-002-pairs", "002 eq 9b and 15",
        "the pairs of singular values with i, j ≤ min(...) are all eigenvalues that are not zero",
        _pairs,
    ),
    Claim(
        "E-002-alignment", "002 §3, after assumption 3",
        "balance aligns a layer's right singular vectors with the next one's left ones",
        _reversed,
    ),
    Claim(
        "E-000-larger-norm", "000 App D.3.3",
        "λ_max of a two-layer linear network at zero loss is max(‖W1‖², ‖W2‖²)",
        _larger_norm,
    ),
    Claim(
        "E-000-second", "000 App D.3.3",
        "trained with maximal updates, the second layer drives the correlation as in the standard "
        "parametrisation",
        second_mup,
    ),
    Claim(
        "E-000-fraction", "000 §4.1",
        "a pair of eigenvalues sums up to tr/d, with d other than the inputs' number D: the width",
        _fraction,
    ),
)  # fmt: skip
