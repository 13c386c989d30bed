"""Claims of paper 004, appendix A: the lemmas behind its theorem."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np

from hessence.papers.claims.dense_hessians import Array, vector_gap
from hessence.papers.claims.linear_networks import (
    BULK,
    RANK,
    Linear,
    aligned_start,
    descend,
    jacobian_of,
    largest_values,
    padded_gap,
)
from hessence.papers.claims.paper_004 import others
from hessence.papers.claims.protocol import Claim, Verdict, judge


def _gauss_newton(net: Linear) -> Array:
    jacobian = jacobian_of(net)
    return np.asarray(jacobian.T @ jacobian / net.X.shape[1])


def _outer_uniform() -> Verdict:
    gaps = []
    for depth in (2, 3, 4):
        net, s = aligned_start(241, depth, (0.8, 0.8)), 0.8
        bulk = s ** (2 * depth - 2)
        values = [depth * bulk] * RANK**2 + [bulk] * BULK
        gaps.append(padded_gap(values, _gauss_newton(net)))
    return judge(gaps, "all eigenvalues of JᵀJ/n by differences of outputs, far from a solution")


def _rules() -> Verdict:
    gaps, inside = [], []
    for depth, low_rank in ((2, False), (3, False), (2, True), (3, True)):
        ended = descend(aligned_start(242, depth, (0.9, 0.8, 0.5), low_rank=low_rank), 0.1, 30)
        values = np.array([0.9, 0.8, 0.5])
        for _ in range(30):
            targets = np.array([1.0, 1.0, 0.0])
            values = values - 0.1 * (values**depth - targets) * values ** (depth - 1)
        gaps.append(float(np.max(np.abs(largest_values(ended, 3) - values))))
        inside.append(not low_rank)
    return judge(
        gaps, "singular values after 30 steps of descent on all weights, against both recursions",
        "the inputs have full rank", inside,
    )  # fmt: skip


def _vanishing() -> Verdict:
    _, left, low = others()
    return judge(
        [value - 0.4 for value in left],
        f"third singular value after 300 steps from 0.5: {left[0]:.3f} and {left[1]:.3f} on white "
        f"inputs, {left[2]:.3f} and {left[3]:.3f} on inputs of the target's rank",
        "the inputs have full rank", [not is_low for is_low in low],
    )  # fmt: skip


def _converging() -> Verdict:
    gaps, inside = [], []
    for share in (0.1, 1.05):
        for depth, pair in ((2, (0.6, 1.05)), (3, (0.7, 1.03))):
            # At 1 the largest eigenvalue is L, and descent is stable up to twice its inverse.
            ended = descend(aligned_start(243, depth, pair), share * 2 / depth, 400)
            gaps.append(float(np.max(np.abs(largest_values(ended, RANK) - 1))) - 1e-6)
            inside.append(share < 1)
    return judge(
        gaps, "the first singular values after 400 steps at a tenth of 2/L and at 1.05 of it, less "
        "1", "η < 2/L", inside,
    )  # fmt: skip


def _away_from_zero() -> Verdict:
    gaps, inside, told = [], [], []
    for rate in (0.1, 0.5):
        for depth, pair in ((2, (0.05, 1.25)), (3, (0.2, 1.15)), (3, (0.9, 1.9))):
            start = aligned_start(244, depth, pair)
            bases = [np.linalg.svd(weight, full_matrices=False) for weight in start.weights]
            net, least = start, np.inf
            for _ in range(60):
                # Signs count: along the first vectors, and not the singular values themselves.
                for weight, (left, _, right) in zip(net.weights, bases, strict=True):
                    along = np.diag(left.T @ weight @ right.T)[:RANK]
                    least = min(least, float(along.min()))
                if not least > 0:
                    break
                net = descend(net, rate, 1)
            gaps.append(min(pair) / 2 - least)
            inside.append(rate * depth * max(pair) ** (2 * depth - 2) <= 1)
            told.append(f"{least:.2f} ({min(pair):g}, {max(pair):g}; {rate:g})")
    return judge(
        gaps,
        "least of the first singular values on the way, 60 steps or up to a change of sign, by "
        f"start and rate: {', '.join(told)}; half the smaller start is asked for",
        "η L s_max^{2L−2} ≤ 1", inside,
    )  # fmt: skip


def _block_norm() -> Verdict:
    rng = np.random.default_rng(245)
    gaps = []
    for sizes in ((1, 1), (2, 3), (1, 2, 4), (3, 3, 3, 3)):
        cuts = np.cumsum([0, *sizes])
        for _ in range(5):
            matrix = rng.normal(size=(cuts[-1], cuts[-1])) * rng.choice([0.01, 1, 100])
            blocks = [
                float(np.linalg.norm(matrix[a:b, c:d], 2)) ** 2
                for (a, b), (c, d) in product(pairwise(cuts), repeat=2)
            ]
            gaps.append(float(np.linalg.norm(matrix, 2)) / np.sqrt(sum(blocks)) - 1)
    return judge(gaps, f"norms of random matrices over the bound, {1 + max(gaps):.3f} at most")


def _functional() -> Verdict:
    gaps, ratios = [], []
    for depth in (2, 3, 4):
        begun = aligned_start(75, depth, (0.8, 0.9))
        found = []
        for steps in (0, 5, 10, 20, 40):
            net = descend(begun, 0.1, steps)
            norm = float(np.linalg.norm(net.hessian() - net.solved().hessian(), 2))
            found.append(norm / float(np.sqrt(net.loss(net.point[None])[0])))
        ratios.append(max(found))
        # On their way singular values stay below 1, the target's: fewer than L² pairs of layers,
        # each with a block of norm ‖Ω‖ at most, and ‖Ω‖ ≤ √(2ℓ) on white data.
        gaps.append(max(found) / (depth * (depth - 1) * np.sqrt(2)) - 1)
    return judge(
        gaps,
        "norm of H less its Gauss–Newton part over √ℓ, along 40 steps: at most "
        + ", ".join(f"{ratio:.2f}" for ratio in ratios)
        + " for depths 2, 3, 4",
    )


def _linear_rate() -> Verdict:
    gaps, rates = [], []
    for depth in (2, 3, 4):
        begun = aligned_start(76, depth, (0.8, 0.9))
        losses = []
        for steps in (0, 10, 20, 30):
            net = descend(begun, 0.1, steps)
            losses.append(float(net.loss(net.point[None])[0]))
        # Both values grow towards 1, so the smallest on the way is the first, and a step shrinks
        # the distance of their products from 1 by this factor at least, before squaring.
        factor = (1 - 0.1 * depth * 0.8 ** (2 * depth - 2)) ** 20
        drops = [after / before for before, after in pairwise(losses)]
        rates.append(f"{max(drops):.1e} of {factor:.1e}")
        gaps.append(max(drops) / factor - 1)
    return judge(gaps, f"what ten steps leave of the loss, at most: {', '.join(rates)}")


def _decaying(depth: int) -> list[tuple[float, float, float]]:
    """Return ‖H − GGN‖, what the two lemmas before bound it by, and its effect, along descent."""
    begun, rate = aligned_start(246, depth, (0.8, 0.9)), 0.1
    start = float(begun.loss(begun.point[None])[0])
    factor = 1 - rate * depth * 0.8 ** (2 * depth - 2)
    rows = []
    for steps in (0, 10, 20, 40):
        net = descend(begun, rate, steps)
        hessian, ggn = net.hessian(), _gauss_newton(net)
        bound = depth * (depth - 1) * np.sqrt(2 * start) * factor**steps
        moved = np.linalg.eigvalsh(hessian) - np.linalg.eigvalsh(ggn)
        norm = float(np.linalg.norm(hessian - ggn, 2))
        rows.append((norm, float(bound), float(np.max(np.abs(moved)))))
    return rows


def _exponential() -> Verdict:
    gaps, told = [], []
    for depth in (2, 3, 4):
        rows = _decaying(depth)
        gaps += [norm / bound - 1 for norm, bound, _ in rows]
        told.append(" → ".join(f"{norm:.0e}" for norm, _, _ in rows))
    return judge(gaps, f"norms after 0, 10, 20, 40 steps, depths 2 to 4: {'; '.join(told)}; over "
                 "their bound, less 1")  # fmt: skip


def _weyl() -> Verdict:
    gaps = []
    for depth in (2, 3, 4):
        gaps += [moved / bound - 1 for _, bound, moved in _decaying(depth)]
    return judge(gaps, "largest |λ_k(H) − λ_k(GGN)| of dense matrices over the same bound, less 1")


def _three_parts() -> Verdict:
    gaps = []
    for depth in (2, 3, 4):
        least, most = 0.9, 0.98
        values = np.linalg.eigvalsh(_gauss_newton(aligned_start(247, depth, (least, most))))[::-1]
        top, bulk = values[: RANK**2], values[RANK**2 : RANK**2 + BULK]
        power = 2 * depth - 2
        gaps += [
            float(top.max()) - depth * most**power,
            depth * least**power - float(top.min()),
            float(bulk.max()) - most**power,
            least**power - float(bulk.min()),
            float(np.abs(values[RANK**2 + BULK :]).max()),
        ]
    return judge(gaps, "eigenvalues of JᵀJ/n by differences, far from a solution, singular values "
                 "of 0.9 and 0.98")  # fmt: skip


def _outer_vectors() -> Verdict:
    gaps = []
    for depth in (2, 3):
        net = aligned_start(248, depth, (0.9, 0.98))
        jacobian = jacobian_of(net)
        ggn = jacobian.T @ jacobian / net.X.shape[1]
        left = np.linalg.svd(net.weights[-1])[0]
        right = np.linalg.svd(net.weights[0])[2]
        squares = np.array([0.98, 0.9, 0, 0]) ** 2
        for i, j in product(range(3), range(4)):
            if i >= RANK and j >= RANK:
                continue
            vector = jacobian.T @ np.kron(net.X.T @ right[j], left[:, i])
            value = sum(squares[i] ** (depth - k) * squares[j] ** (k - 1)
                        for k in range(1, depth + 1))  # fmt: skip
            gaps.append(vector_gap(float(value), vector, ggn))
    return judge(gaps, "residuals of Jᵀ(Xᵀv_j ⊗ u_i) with JᵀJ/n by differences")


CLAIMS = (
    Claim(
        "004-LA.1", "004 Lemma A.1",
        "with equal singular values the Gauss–Newton part has r² eigenvalues L s^{2L−2} and "
        "r(d0 + dL − 2r) of s^{2L−2}, at any loss",
        _outer_uniform,
    ),
    Claim(
        "004-LA.2", "004 Lemma A.2",
        "the first r singular values follow s − η(s^L − 1)s^{L−1}, the others s − ηs^{2L−1}",
        _rules,
    ),
    Claim(
        "004-LA.3", "004 Lemma A.3",
        "singular values beyond the target's rank decrease towards 0",
        _vanishing,
    ),
    Claim(
        "004-LA.3-first", "004 Lemma A.3",
        "the first r singular values converge to 1",
        _converging,
    ),
    Claim(
        "004-LA.4", "004 Lemma A.4",
        "the first r singular values are bounded away from zero, by one number for all of training",
        _away_from_zero,
    ),
    Claim(
        "004-LA.5", "004 Lemma A.5",
        "the norm of a matrix is at most the root of the sum of its squared block norms",
        _block_norm,
    ),
    Claim(
        "004-LA.6", "004 Lemma A.6",
        "the Hessian less its Gauss–Newton part is bounded by a constant times the loss's root",
        _functional,
    ),
    Claim(
        "004-LA.7", "004 Lemma A.7",
        "the loss falls exponentially, at a rate set by the smallest singular value on the way",
        _linear_rate,
    ),
    Claim(
        "004-LA.8", "004 Lemma A.8",
        "the Hessian less its Gauss–Newton part vanishes exponentially in training",
        _exponential,
    ),
    Claim(
        "004-LA.9", "004 Lemma A.9",
        "with singular values in an interval the Gauss–Newton part has two clusters, each within "
        "its bounds, and zeros",
        _three_parts,
    ),
    Claim(
        "004-LA.10", "004 Lemma A.10",
        "the Gauss–Newton part's eigenvectors are Jᵀ times Kronecker products of singular vectors",
        _outer_vectors,
    ),
    Claim(
        "004-LA.11", "004 Lemma A.11",
        "every eigenvalue of the Hessian is exponentially close to that of its Gauss–Newton part",
        _weyl,
    ),
)  # fmt: skip
