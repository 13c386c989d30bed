"""Claims of paper 000, sections 3.3 and B.5: the spectrum of a self-attention layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hessence.papers.claims.attention_layers import Attention, attention_draws
from hessence.papers.claims.dense_hessians import Array, eigenvalue_gap, smooth_hessian
from hessence.papers.claims.protocol import DENSE, Claim, Verdict, judge


def _bulk_gap(hessian: Array, gamma: float, keys: int) -> float:
    """Return how far d_K − 1 eigenvalues are from γ, and from −γ, relative to the largest."""
    values = np.linalg.eigvalsh(hessian)
    near = [np.sort(np.abs(values - bulk))[keys - 2] for bulk in (gamma, -gamma)]
    return float(max(near) / np.abs(values).max())


def _attention_bulk() -> Verdict:
    gaps = []
    for net in attention_draws(7):
        values = np.linalg.eigvalsh(net.hessian())
        gamma = net.scalars()[2]
        polynomial = np.sort(np.roots(net.cubic()).real)
        expected = np.sort([*[gamma, -gamma] * (len(net.w_q) - 1), *polynomial])
        gaps.append(float(np.max(np.abs(values - expected)) / np.max(np.abs(values))))
    return judge(gaps, f"±γ, d_K − 1 each, and three roots {DENSE}", tolerance=1e-8)


def _attention_bounds() -> Verdict:
    gaps: list[float] = []
    right: list[float] = []
    for net in attention_draws(8, 30):
        away = np.abs(net.outliers() - net.trace() / 3)
        for found, squared in ((gaps, False), (right, True)):
            found.append(float((away.max() - net.radius(squared=squared)) / away.max()))
    return judge(
        gaps,
        "share of |λ − tr/3| beyond ξ: "
        f"{max(gaps):.3f} with the printed ξ, {max(right):.3f} with squared norms in its last term",
        tolerance=1e-8,
    )


def _condition_number() -> Verdict:
    gaps: list[float] = []
    right: list[float] = []
    draws = [*attention_draws(9, 20), *attention_draws(10, 80)]
    for i, net in enumerate(draws):
        if i >= 20:
            net = replace(net, w_q=0.2 * net.w_q, w_k=0.2 * net.w_q, x=2 * net.x)
        sizes = np.abs(np.linalg.eigvalsh(net.hessian()))
        true = sizes.max() / sizes.min()
        for found, squared in ((gaps, False), (right, True)):
            bound = 2 * net.trace() + 3 * net.radius(squared=squared)
            found.append(float(bound / (6 * abs(net.scalars()[2])) / true - 1))
    return judge(
        gaps,
        f"largest ratio of bound to κ: {1 + max(gaps):.3f} with the printed ξ, "
        f"{1 + max(right):.3f} with squared norms in its last term",
        tolerance=1e-8,
    )


def _corrected() -> Verdict:
    gaps = []
    for net in (*attention_draws(8, 30), *attention_draws(9, 20)):
        away = np.abs(net.outliers() - net.trace() / 3)
        radius = net.radius(squared=True)
        gaps.append(float((away.max() - radius) / away.max()))
        sizes = np.abs(np.linalg.eigvalsh(net.hessian()))
        bound = (2 * net.trace() + 3 * radius) / (6 * abs(net.scalars()[2]))
        gaps.append(float(bound * sizes.min() / sizes.max() - 1))
    return judge(
        gaps,
        "share of |λ − tr/3| beyond ξ, and of the bound beyond κ, of dense Hessians",
        tolerance=1e-8,
    )


def _query_key_block() -> Verdict:
    gaps = [
        _bulk_gap(net.hessian()[1:, 1:], net.scalars()[2], len(net.w_q))
        for net in attention_draws(26)
    ]
    return judge(
        gaps, "d_K − 1 eigenvalues of the dense block next to γ, and to −γ", tolerance=1e-8
    )


def _no_bulk() -> Verdict:
    gaps = []
    for net in attention_draws(27):
        fitted = net.outputs(net.point[None])[0]
        solved = replace(net, y=fitted)
        alpha, beta, _, zeta = solved.scalars()
        total = solved.trace()
        root = np.sqrt(total**2 + 4 * (beta**2 - alpha * zeta) * solved.norms)
        zeros = [0.0] * (2 * len(net.w_q) - 1)
        pair = [(total + root) / 2, (total - root) / 2]
        gaps.append(eigenvalue_gap([*pair, *zeros], solved.hessian()))
    return judge(gaps, f"at zero loss, where γ = 0: the pair and zeros {DENSE}", tolerance=1e-8)


def _sigmoid_shares(scores: NDArray[Any]) -> NDArray[Any]:
    shares = 1 / (1 + np.exp(-scores))
    return np.asarray(shares / shares.sum(axis=-1, keepdims=True))


def _unit_rows(scores: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(scores / np.sqrt(1 + np.sum(scores**2, axis=-1, keepdims=True)))


def _derivatives(outputs: Callable[[Any], Any], t: float) -> tuple[Array, Array, Array]:
    """Return h(t) and its first two derivatives, by complex steps and their differences."""

    def first(at: float) -> Array:
        return np.asarray(outputs(at + 1e-30j).imag / 1e-30)

    weights = ((1, 4 / 5), (2, -1 / 5), (3, 4 / 105), (4, -1 / 280))
    second = sum(w * (first(t + 0.01 * k) - first(t - 0.01 * k)) / 0.01 for k, w in weights)
    return np.asarray(outputs(t + 0j).real), first(t), np.asarray(second)


def _other_activation() -> Verdict:
    gaps = []
    for net, rows in product(attention_draws(35), (np.sin, _sigmoid_shares, _unit_rows)):
        keys, n = len(net.w_q), len(net.x)
        scores = np.outer(net.x, net.x) / np.sqrt(keys)

        def outputs(t: Any, net: Attention = net, rows: Any = rows, scores: Array = scores) -> Any:
            return rows(np.asarray(t)[..., None, None] * scores) @ net.x

        def loss(points: NDArray[Any], net: Attention = net, outputs: Any = outputs) -> Any:
            d = len(net.w_q)
            t = np.sum(points[:, 1 : d + 1] * points[:, d + 1 :], axis=1)
            return np.mean((points[:, :1] * outputs(t) - net.y) ** 2, axis=1) / 2

        h, first, second = _derivatives(outputs, float(net.w_q @ net.w_k))
        delta = net.w_v * h - net.y
        gamma = net.w_v * float(delta @ first) / n
        zeta = (net.w_v**2 * float(first @ first) + net.w_v * float(delta @ second)) / n
        beta = float((net.w_v * h + delta) @ first) / n
        cubic = net.cubic_of(float(h @ h) / n, beta, gamma, zeta)
        expected = [*[gamma, -gamma] * (keys - 1), *np.roots(cubic).real]
        gaps.append(eigenvalue_gap(expected, smooth_hessian(loss, net.point)))
    return judge(
        gaps,
        "sin, shares of sigmoids and rows scaled to length below one in place of softmax: ±γ, "
        f"d_K − 1 each, and three roots {DENSE}",
        tolerance=1e-8,
    )


def _top_bounds() -> Verdict:
    gaps: list[float] = []
    right: list[float] = []
    for net in attention_draws(28, 30):
        top = float(np.linalg.eigvalsh(net.hessian())[-1])
        for found, squared in ((gaps, False), (right, True)):
            third, radius = net.trace() / 3, net.radius(squared=squared)
            found.append(max(third + radius / 2 - top, top - third - radius) / top)
    return judge(
        gaps,
        f"λ_max outside of its bounds by up to {max(gaps):.2f} of itself with the printed ξ, "
        f"{max(0.0, max(right)):.0e} with squared norms",
        tolerance=1e-8,
    )


def _least_size() -> Verdict:
    gaps = []
    for net in attention_draws(121, 20):
        gamma = abs(net.scalars()[2])
        gaps.append(float(np.abs(np.linalg.eigvalsh(net.hessian())).min()) / gamma - 1)
    return judge(gaps, "smallest |λ| of dense Hessians over |γ|, less 1", tolerance=1e-8)


def _same_scores() -> Verdict:
    gaps = []
    for net in attention_draws(122):
        other = replace(net, w_q=3 * net.w_q, w_k=net.w_k / 3)
        # The same turn of both leaves their product too.
        turn = np.linalg.qr(np.random.default_rng(122).normal(size=(len(net.w_q),) * 2))[0]
        other = replace(other, w_q=turn @ other.w_q, w_k=turn @ other.w_k)
        gaps.append(_bulk_gap(other.hessian(), net.scalars()[2], len(net.w_q)))
    return judge(
        gaps,
        "bulk of dense Hessians at 3w_Q and w_K/3, both turned, next to the first network's ±γ",
        tolerance=1e-8,
    )


def _without_residuals() -> Verdict:
    gaps = []
    for net in attention_draws(123):
        fitted = replace(net, y=net.outputs(net.point[None])[0])
        size = len(net.point)
        steps = net.outputs(net.point + 1e-30j * np.eye(size)).imag / 1e-30
        ggn = steps @ steps.T / len(net.x)
        alpha, beta, gamma, zeta = fitted.scalars()
        both = np.concatenate([net.w_k, net.w_q])
        printed = np.zeros((size, size))
        printed[0, 0] = alpha
        printed[0, 1:] = printed[1:, 0] = beta * both
        printed[1:, 1:] = zeta * np.outer(both, both)
        gaps.append(max(float(np.max(np.abs(printed - ggn)) / np.max(np.abs(ggn))), abs(gamma)))
    return judge(gaps, "JᵀJ/n with outputs differentiated by complex steps, against α, β, γ, ζ "
                 "with residuals set to 0")  # fmt: skip


CLAIMS = (
    Claim(
        "000-T3.5-eigenvalues", "000 Theorem 3.5, App B.5",
        "self-attention has bulk eigenvalues ±γ, d_K − 1 each, and the three roots of a cubic",
        _attention_bulk,
    ),
    Claim(
        "000-T3.5-bounds", "000 Theorem 3.5",
        "the three outliers are within the printed ξ of a third of the trace",
        _attention_bounds,
    ),
    Claim(
        "000-T3.5-corrected", "000 Theorem 3.5 and Remark 3.1, corrected",
        "with squared norms in ξ, its bounds of the outliers and of the condition number hold",
        _corrected,
    ),
    Claim(
        "000-activation", "000 §3.3, after Theorem 3.5",
        "other activations of each row of scores than softmax give a bulk ±γ and three outliers, "
        "too",
        _other_activation,
    ),
    Claim(
        "000-same-scores", "000 §3.3",
        "the bulk depends on queries and keys only through the attention scores",
        _same_scores,
    ),
    Claim(
        "000-least-size", "000 §3.3",
        "the eigenvalue of the smallest size is no larger than the bulk",
        _least_size,
    ),
    Claim(
        "000-R3.1", "000 Remark 3.1",
        "the condition number is at least (2 tr + 3ξ) / 6|γ|, with the printed ξ",
        _condition_number,
        differs="Three of a hundred networks drawn at random break the bound, and none of the "
        "sweeps does, whose weights are of other sizes",
    ),
    Claim(
        "000-functional", "000 §3.3, comparison with the linear network",
        "all that depends on residuals is from the functional part: without, it is Gauss–Newton",
        _without_residuals,
    ),
    Claim(
        "000-RB.2", "000 Remark B.2",
        "the block of queries and keys by itself has the bulk ±γ too",
        _query_key_block,
    ),
    Claim(
        "000-RB.3", "000 Remark B.3",
        "for γ = 0 the outliers are the roots of a quadratic, and a zero",
        _no_bulk,
    ),
    Claim(
        "000-RB.4", "000 Remark B.4, eq 121",
        "λ_max is between tr/3 + ξ/2 and tr/3 + ξ, with the printed ξ",
        _top_bounds,
    ),
)  # fmt: skip
