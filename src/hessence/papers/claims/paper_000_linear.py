"""Claims of paper 000, sections 3.1, B.1 and C: eigenvalues of the scalar linear network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hessence.papers.claims.dense_hessians import eigenvalue_gap, gradient, without
from hessence.papers.claims.protocol import DENSE, Claim, Verdict, judge
from hessence.papers.claims.scalar_networks import Scalar, scalar_draws


def _eigenvalues() -> Verdict:
    gaps = []
    for net in scalar_draws(1):
        bulk = [net.residual, -net.residual] * (len(net.w) - 1)
        gaps.append(eigenvalue_gap([*bulk, *net.outliers()], net.hessian()))
    return judge(gaps, f"all 2m eigenvalues {DENSE}, widths 2 to 5")


def _overlap() -> Verdict:
    gaps = []
    for net in scalar_draws(105, 24):
        values = np.linalg.eigvalsh(net.hessian())
        second = float(values.sum() - values[-1])
        gaps.append(abs(second) / abs(net.residual) - 1)
    return judge(gaps, f"|tr − λ_max| / |δx| of dense Hessians is {1 + min(gaps):.2g} to "
                 f"{1 + max(gaps):.2g}")  # fmt: skip


def sum_of_squares() -> Verdict:
    """Check the pair of outliers, written as a sum of squares."""
    gaps = []
    for net in scalar_draws(2):
        w, v, var = float(net.w @ net.w), float(net.v @ net.v), net.variance
        root = np.sqrt(
            var**2 * (w - v) ** 2
            + 4 * var**2 * (w * v - net.product**2)
            + 4 * (2 * net.product * var - net.target) ** 2
        )
        pair = [(var * (w + v) + root) / 2, (var * (w + v) - root) / 2]
        bulk = [net.residual, -net.residual] * (len(net.w) - 1)
        gaps.append(eigenvalue_gap([*bulk, *pair], net.hessian()))
    return judge(gaps, f"all 2m eigenvalues {DENSE}")


def scaling() -> Verdict:
    """Check how eigenvalues scale with the inputs."""
    gaps, inside = [], []
    for i, net in enumerate(scalar_draws(32)):
        factor = 3.0
        scaled = replace(net, x=factor * net.x, y=net.y * (factor if i % 2 else 1.0))
        values = factor**2 * np.linalg.eigvalsh(net.hessian())
        gaps.append(eigenvalue_gap(values.tolist(), scaled.hessian()))
        inside.append(bool(i % 2))
    return judge(
        gaps, "dense spectra at x and 3x", "the targets are scaled with the inputs", inside
    )


def _absorbed() -> Verdict:
    gaps = []
    for net in scalar_draws(106):
        root = np.sqrt(net.variance)
        white = Scalar(root * net.w, root * net.v, net.x / root, root * net.y)
        gaps.append(eigenvalue_gap(np.linalg.eigvalsh(white.hessian()), net.hessian()))
    return judge(gaps, "dense spectra of (w, v) on x and of (σw, σv) on x/σ, E[yx] the same")


def gradients() -> Verdict:
    """Check the gradient, and the Hessian times it."""
    gaps = []
    for net in scalar_draws(101):
        grad = gradient(net.loss, net.point)
        swapped, size = np.concatenate([net.w, net.v]), float(np.linalg.norm(grad))
        gaps.append(float(np.max(np.abs(grad - net.residual * swapped))) / size)
        total = net.variance * float(net.w @ net.w + net.v @ net.v)
        printed = net.residual * total * swapped + net.residual**2 * net.point
        truth = net.hessian() @ grad
        gaps.append(float(np.max(np.abs(printed - truth)) / np.linalg.norm(truth)))
    return judge(gaps, "complex steps of the loss, and the dense Hessian times them")


def hessian_blocks() -> Verdict:
    """Check the four blocks of second derivatives."""
    gaps = []
    for net in scalar_draws(102):
        hessian, m, var = net.hessian(), len(net.w), net.variance
        mixed = net.residual * np.eye(m) + var * np.outer(net.v, net.w)
        rows = [[var * np.outer(net.w, net.w), mixed.T], [mixed, var * np.outer(net.v, net.v)]]
        gaps.append(float(np.max(np.abs(np.block(rows) - hessian)) / np.max(np.abs(hessian))))
    return judge(gaps, "entries of dense Hessians")


def least_bound() -> Verdict:
    """Check the bound from below."""
    gaps = []
    for net in scalar_draws(31, 24):
        least = float(np.linalg.eigvalsh(net.hessian())[0])
        loss = float(net.loss(net.point[None])[0])
        gaps.append(-least / np.sqrt(2 * loss * net.variance) - 1)
    return judge(gaps, f"largest |λ_min| / σ√(2ℓ) {1 + max(gaps):.3f}")


def trace_form() -> Verdict:
    """Check the sum and the product of the two outliers."""
    gaps = []
    for net in scalar_draws(108):
        bulk = [net.residual, -net.residual] * (len(net.w) - 1)
        one, two = without(np.linalg.eigvalsh(net.hessian()), bulk)
        trace = net.variance * float(net.w @ net.w + net.v @ net.v)
        fitted = net.product * net.variance
        product = -(fitted - net.target) * (3 * fitted - net.target)
        gaps.append(max(abs(one + two - trace) / trace, abs(one * two - product) / trace**2))
    return judge(gaps, "dense eigenvalues without the bulk")


def phases() -> Verdict:
    """Check the three phases of learning."""
    gaps, inside = [], []
    for net in scalar_draws(29, 24):
        values = np.linalg.eigvalsh(net.hessian())
        trace, best = float(values.sum()), net.target / net.variance
        late = best / 3 <= net.product <= best
        # One outlier is the largest eigenvalue, and the two sum up to the trace.
        top = float(values[-1])
        second = trace - top
        wrong = max(top - trace, -second) if late else max(trace - top, second)
        gaps.append(max(0.0, wrong / top))
        inside.append(best > 0)
    for best in (1.0, -1.0):
        w = np.array([2.0, 1.0, 0.0])
        for product in (0.2, 0.5, 0.9, 1.2):
            v = np.array([0.0, best * product, 1.0])
            net = Scalar(w, v, np.array([1.0, -2.0]), best * np.array([1.0, -2.0]))
            values = np.linalg.eigvalsh(net.hessian())
            late = best / 3 <= net.product <= best
            beyond = float(values[-1] - values.sum()) * (1 if late else -1)
            gaps.append(max(0.0, beyond))
            inside.append(best > 0)
    return judge(gaps, "signs of λ2 and λ1 − tr of dense Hessians", "E[yx] > 0", inside)


def solution() -> Verdict:
    """Check the spectrum at the solution."""
    gaps = []
    for net in scalar_draws(30):
        solved = replace(net, w=net.w * net.target / (net.variance * net.product))
        trace = solved.variance * float(solved.w @ solved.w + solved.v @ solved.v)
        zeros = [0.0] * (2 * len(net.w) - 1)
        gaps.append(eigenvalue_gap([trace, *zeros], solved.hessian()))
    return judge(gaps, f"tr and 2m − 1 zeros {DENSE}")


CLAIMS = (
    Claim(
        "000-T3.1", "000 Theorem 3.1, eq 1",
        "the network ⟨w, v⟩x has bulk eigenvalues ±δx, m − 1 each, and one pair of outliers",
        _eigenvalues,
    ),
    Claim(
        "000-overlap", "000 Theorem 3.1, footnote",
        "the smaller outlier lies between the bulk's −|δx| and |δx|",
        _overlap,
    ),
    Claim(
        "000-eq2", "000 eq 2",
        "the outliers' root is norm imbalance, non-collinearity and distance from the target, "
        "each squared",
        sum_of_squares,
    ),
    Claim(
        "000-scaling", "000 §3.1",
        "eigenvalues scale in proportion to the inputs' variance",
        scaling,
    ),
    Claim(
        "000-absorbed", "000 §3.1",
        "the variance of the inputs can be absorbed into the weights",
        _absorbed,
    ),
    Claim(
        "000-eq5", "000 eq 5, 6 and 12",
        "the gradient is δx(w, v), and H times it δx tr (w, v) + δx²(v, w)",
        gradients,
    ),
    Claim(
        "000-eq9", "000 eq 7 to 9, 13 and 35",
        "the blocks of the Hessian are σ²vvᵀ, σ²wwᵀ and δx I + σ²vwᵀ",
        hessian_blocks,
    ),
    Claim(
        "000-least", "000 App B.1, after the proof of Theorem 3.1",
        "no eigenvalue is below −σ√(2ℓ)",
        least_bound,
    ),
    Claim(
        "000-eq122", "000 App C, eq 122",
        "the outliers' sum is the trace, their product −(⟨w, v⟩σ² − yx)(3⟨w, v⟩σ² − yx)",
        trace_form,
    ),
    Claim(
        "000-phases", "000 App C, eq 122",
        "λ1 ≤ tr and λ2 ≥ 0 in the late phase θ*/3 ≤ ⟨w, v⟩ ≤ θ*, the converse before and after",
        phases,
    ),
    Claim(
        "000-solution", "000 App C",
        "at the solution the Hessian has rank one, and λ1 is the trace",
        solution,
    ),
)  # fmt: skip
