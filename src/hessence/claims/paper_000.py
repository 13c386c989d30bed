"""Claims of paper 000: two-layer networks of scalars, and self-attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hessence.claims.checking import (
    Array,
    Attention,
    Biased,
    Scalar,
    attention_draws,
    dense_hessian,
    eigenvalue_gap,
    gradient,
    orthogonal_draw,
    relu_draws,
    scalar_draws,
    smooth_hessian,
    vector_gap,
)
from hessence.claims.linear_networks import Linear, random_weights, white
from hessence.claims.protocol import Claim, Verdict, judge

DENSE = "against eigvalsh of the dense Hessian"


def _eigenvalues() -> Verdict:
    gaps = []
    for net in scalar_draws(1):
        bulk = [net.residual, -net.residual] * (len(net.w) - 1)
        gaps.append(eigenvalue_gap([*bulk, *net.outliers()], net.hessian()))
    return judge(gaps, f"all 2m eigenvalues {DENSE}, widths 2 to 5")


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


def outlier_vectors() -> Verdict:
    """Check the outliers' eigenvectors."""
    nets = list(scalar_draws(3))
    nets += [replace(net, v=sign * net.w) for net in nets[:2] for sign in (1, -1)]
    gaps, inside = [], []
    for net in nets:
        hessian = net.hessian()
        swapped = np.concatenate([net.w, net.v])
        gaps.append(
            max(
                vector_gap(value, value * swapped + net.residual * net.point, hessian)
                for value in net.outliers()
            )
        )
        inside.append(not np.allclose(np.abs(net.w), np.abs(net.v)))
    return judge(
        gaps, "residuals ‖Hz − λz‖; for w = ±v one of the two vectors is zero", "w ≠ ±v", inside
    )


def bulk_vectors() -> Verdict:
    """Check the bulk's eigenvectors."""
    rng = np.random.default_rng(4)
    gaps, inside = [], []
    for net in scalar_draws(4, 24):
        hessian, worst = net.hessian(), 0.0
        for value in (net.residual, -net.residual):
            side = net.w + np.sign(value) * net.v
            half = rng.normal(size=len(side))
            half -= side * (side @ half) / (side @ side)
            worst = max(
                worst,
                vector_gap(value, np.concatenate([half, np.sign(value) * half]), hessian),
            )
        gaps.append(worst)
        inside.append(net.residual > 0)
    return judge(gaps, "residuals ‖Hz − λz‖ for random c", "δx > 0", inside)


def _descent() -> Verdict:
    gaps = []
    for net in scalar_draws(5, 8):
        values, vectors = np.linalg.eigh(net.hessian())
        far = np.abs(np.abs(values) - abs(net.residual))
        bulk = vectors[:, np.argsort(far)[: 2 * len(net.w) - 2]]
        point, worst = net.point, 0.0
        for _ in range(20):
            worst = max(worst, float(np.max(np.abs(point @ bulk))))
            v, w = np.split(point, 2)
            now = replace(net, w=w, v=v)
            hessian = now.hessian()
            moved = hessian @ (hessian @ bulk) - now.residual**2 * bulk
            worst = max(worst, float(np.max(np.abs(moved)) / np.linalg.norm(hessian, 2) ** 2))
            rate = 0.5 / np.linalg.norm(hessian, 2)
            point = point - rate * gradient(net.loss, point)
        gaps.append(worst)
    return judge(gaps, "20 steps of descent: the first bulk space under H_t², and θ_t on it")


def relu_eigenvalues() -> Verdict:
    """Check the spectrum of ReLU networks."""
    gaps, inside = [], []
    for net in relu_draws(6):
        values: list[float] = []
        for share, cell in net.cells():
            bulk = share * cell.residual
            values += [bulk, -bulk] * (len(cell.w) - 1)
            values += [share * value for value in cell.outliers()]
        gaps.append(eigenvalue_gap(values, net.hessian()))
        inside.append(bool(0 < np.sum(net.v > 0) < len(net.v)))
    return judge(
        gaps,
        f"all 2m eigenvalues {DENSE}, no neuron at its kink (a cell without neurons has no pair)",
        "both cells have neurons",
        inside,
    )


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
    draws = [*attention_draws(9, 20), *attention_draws(10, 20)]
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


def relu_vectors() -> Verdict:
    """Check the outliers' eigenvectors of ReLU networks."""
    gaps = []
    for net in relu_draws(21):
        hessian = net.hessian()
        for share, cell in net.cells():
            neurons = np.isin(net.v, cell.v)
            for value in cell.outliers() if len(cell.w) else ():
                vector = np.zeros((2, len(net.v)))
                vector[0, neurons] = value * cell.w + cell.residual * cell.v
                vector[1, neurons] = value * cell.v + cell.residual * cell.w
                gaps.append(vector_gap(share * value, vector.ravel(), hessian))
    return judge(gaps, "residuals ‖Hz − λz‖, with every cell's own λ and δx, zero elsewhere")


def bias_eigenvalues(net: Biased) -> list[float]:
    """Return what 000 Theorem B.1 and 001 Theorem 6 print, with all multiplicities."""
    m = len(net.w)
    v, w = float(net.V[:, 0] @ net.V[:, 0]), float(net.w @ net.w)
    residuals = net.w @ net.V @ net.x - net.y
    s = float(np.sum(np.mean(residuals * net.x, axis=1) ** 2))
    total = v + w
    root = np.sqrt(total**2 + 12 * s)
    p = -s - total**2 / 3
    q = -2 / 27 * total**3 - v * s / 3 + 2 / 3 * w * s
    angle = np.arccos(np.clip(3 * q / (2 * p) * np.sqrt(-3 / p), -1, 1)) / 3
    triple = 2 * np.sqrt(-p / 3) * np.cos(angle - 2 * np.pi / 3 * np.arange(3)) + total / 3
    bulk = [np.sqrt(s), -np.sqrt(s)] * (m - 2) + [0.0] * (m - 1)
    return [(total + root) / 2, (total - root) / 2, *triple, *bulk]


def bias_theorem() -> Verdict:
    """Check the eigenvalues with a bias."""
    rng = np.random.default_rng(22)
    gaps = []
    for width in (2, 3, 4, 5, 2, 3):
        net = orthogonal_draw(rng, width, 2, bias=True)
        gaps.append(eigenvalue_gap(bias_eigenvalues(net), net.hessian()))
    return judge(gaps, f"pair, triple, bulk (m − 2 each) and m − 1 zeros {DENSE}, widths 2 to 5")


def _decoupled(seed: int, *, outputs: bool) -> Iterator[tuple[Array, list[Scalar], bool]]:
    """Give a Hessian in the order (v_1, w_1, v_2, …), its parts, and if inputs are uncorrelated."""
    rng = np.random.default_rng(seed)
    for i in range(8):
        parts, width, samples = 2 + i % 2, 1 + i % 3, 8
        W, V = rng.normal(size=(2, parts, width))
        x = np.linalg.qr(rng.normal(size=(samples, parts)))[0].T * (1 + rng.random((parts, 1))) * 3
        y = rng.normal(size=(parts, samples))
        correlated = not outputs and i >= 6
        if correlated:
            x[1] += x[0]
        if outputs:
            x[:] = x[0]
        else:
            y[:] = y[0]

        def loss(points: NDArray[Any], x: Array = x, y: Array = y) -> NDArray[Any]:
            grouped = points.reshape(len(points), len(x), 2, -1)
            products = np.sum(grouped[:, :, 0] * grouped[:, :, 1], axis=2)
            terms = products[:, :, None] * x
            squares = (terms - y) ** 2 if outputs else (terms.sum(1, keepdims=True) - y[:1]) ** 2
            return np.asarray(squares.sum(axis=1).mean(axis=1) / 2)

        point = np.stack([V, W], axis=1).ravel()
        groups = [Scalar(W[k], V[k], x[k], y[k]) for k in range(parts)]
        yield dense_hessian(loss, point), groups, not correlated


def _spectrum(groups: Sequence[Scalar]) -> list[float]:
    values: list[float] = []
    for net in groups:
        values += [net.residual, -net.residual] * (len(net.w) - 1) + list(net.outliers())
    return values


def _inputs() -> Verdict:
    drawn = [
        (eigenvalue_gap(_spectrum(groups), hessian), uncorrelated)
        for hessian, groups, uncorrelated in _decoupled(23, outputs=False)
    ]
    other = max(gap for gap, uncorrelated in drawn if not uncorrelated)
    return judge(
        [gap for gap, uncorrelated in drawn if uncorrelated],
        f"all 2mD eigenvalues {DENSE}, m = 1 to 3, D = 2 and 3 (correlated inputs: {other:.0e})",
    )


def _outputs() -> Verdict:
    drawn = _decoupled(24, outputs=True)
    gaps = [eigenvalue_gap(_spectrum(groups), hessian) for hessian, groups, _ in drawn]
    return judge(gaps, f"all 2mK eigenvalues {DENSE}, m = 1 to 3, K = 2 and 3")


def _output_vectors() -> Verdict:
    gaps = []
    for hessian, groups, _ in _decoupled(25, outputs=True):
        width = len(groups[0].w)
        for k, net in enumerate(groups):
            for value in net.outliers():
                vector = np.zeros((len(groups), 2, width))
                vector[k] = [value * net.w + net.residual * net.v,
                             value * net.v + net.residual * net.w]  # fmt: skip
                gaps.append(vector_gap(value, vector.ravel(), hessian))
    return judge(gaps, "residuals ‖Hz − λz‖, zero for the other outputs, m = 1 to 3")


def _query_key_block() -> Verdict:
    gaps = []
    for net in attention_draws(26):
        values, gamma = np.linalg.eigvalsh(net.hessian()[1:, 1:]), net.scalars()[2]
        near = [np.sort(np.abs(values - bulk))[len(net.w_q) - 2] for bulk in (gamma, -gamma)]
        gaps.append(float(max(near) / np.abs(values).max()))
    return judge(
        gaps, "d_K − 1 eigenvalues of the dense block next to γ, and to −γ", tolerance=1e-8
    )


def _no_bulk() -> Verdict:
    gaps = []
    for net in attention_draws(27):
        weights = np.exp(np.outer(net.x, net.x) * (net.w_q @ net.w_k) / np.sqrt(len(net.w_q)))
        fitted = net.w_v * (weights @ net.x) / weights.sum(axis=1)
        solved = replace(net, y=fitted)
        alpha, beta, _, zeta = solved.scalars()
        total = solved.trace()
        root = np.sqrt(total**2 + 4 * (beta**2 - alpha * zeta) * solved.norms)
        zeros = [0.0] * (2 * len(net.w_q) - 1)
        pair = [(total + root) / 2, (total - root) / 2]
        gaps.append(eigenvalue_gap([*pair, *zeros], solved.hessian()))
    return judge(gaps, f"at zero loss, where γ = 0: the pair and zeros {DENSE}", tolerance=1e-8)


def _other_activation() -> Verdict:
    gaps = []
    for net in attention_draws(35):
        keys, n = len(net.w_q), len(net.x)
        scores = np.outer(net.x, net.x) / np.sqrt(keys)

        def loss(points: NDArray[Any], net: Attention = net, scores: Array = scores) -> Any:
            d = len(net.w_q)
            t = np.sum(points[:, 1 : d + 1] * points[:, d + 1 :], axis=1)[:, None, None]
            residuals = points[:, :1] * (np.sin(t * scores) @ net.x) - net.y
            return np.mean(residuals**2, axis=1) / 2

        t = float(net.w_q @ net.w_k)
        slope = (scores * np.cos(t * scores)) @ net.x
        delta = net.w_v * (np.sin(t * scores) @ net.x) - net.y
        gamma = net.w_v * float(delta @ slope) / n
        values = np.linalg.eigvalsh(smooth_hessian(loss, net.point))
        near = [np.sort(np.abs(values - bulk))[keys - 2] for bulk in (gamma, -gamma)]
        gaps.append(float(max(near) / np.abs(values).max()))
    return judge(gaps, "with sin for softmax: d_K − 1 dense eigenvalues next to γ, and to −γ",
                 tolerance=1e-8)  # fmt: skip


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


def _least_bound() -> Verdict:
    gaps = []
    for net in scalar_draws(31, 24):
        least = float(np.linalg.eigvalsh(net.hessian())[0])
        loss = float(net.loss(net.point[None])[0])
        gaps.append(-least / np.sqrt(2 * loss * net.variance) - 1)
    return judge(gaps, f"largest |λ_min| / σ√(2ℓ) {1 + max(gaps):.3f}")


def _scaling() -> Verdict:
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


def _relu_top() -> Verdict:
    gaps = []
    for net in relu_draws(33):
        tops = [share * cell.outliers()[0] for share, cell in net.cells() if len(cell.w)]
        top = float(np.linalg.eigvalsh(net.hessian())[-1])
        gaps.append(abs(max(tops) / top - 1))
    return judge(gaps, "λ_max of dense Hessians, cells without neurons left out")


def _norms_below() -> Verdict:
    rng = np.random.default_rng(34)
    gaps = []
    for sizes in ((3, 4, 2), (2, 2, 3), (3, 2, 3), (1, 4, 1)) * 2:
        X = white(rng, sizes[0], 8)
        net = Linear(random_weights(rng, sizes), X, rng.normal(size=(sizes[2], 8)))
        top = float(np.linalg.eigvalsh(net.hessian())[-1])
        norms = [float(np.linalg.norm(weight, 2)) ** 2 for weight in net.weights]
        gaps.append(max(norms) / top - 1)
    return judge(gaps, f"largest ratio of norm to λ_max {1 + max(gaps):.3f}, at any loss")


CLAIMS = (
    Claim(
        "000-T3.1", "000 Theorem 3.1, eq 1",
        "the network ⟨w, v⟩x has bulk eigenvalues ±δx, m − 1 each, and one pair of outliers",
        _eigenvalues,
    ),
    Claim(
        "000-eq2", "000 eq 2",
        "the outliers' root is norm imbalance, non-collinearity and distance from the target, "
        "each squared",
        sum_of_squares,
    ),
    Claim(
        "000-T3.2", "000 Theorem 3.2",
        "the outliers' eigenvectors are λ(w, v) + δx(v, w)",
        outlier_vectors,
    ),
    Claim(
        "000-T3.3", "000 Theorem 3.3",
        "bulk eigenvectors are (z, sgn(λ) z) with z orthogonal to w + sgn(λ) v",
        bulk_vectors,
    ),
    Claim(
        "000-C3.1", "000 Corollary 3.1",
        "gradient descent leaves the bulk eigenspace as it is, and all iterates orthogonal to it",
        _descent,
    ),
    Claim(
        "000-T3.4", "000 Theorem 3.4",
        "a ReLU network has each cell's linear spectrum, scaled by the cell's share of the samples",
        relu_eigenvalues,
    ),
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
        "000-R3.1", "000 Remark 3.1",
        "the condition number is at least (2 tr + 3ξ) / 6|γ|, with the printed ξ",
        _condition_number,
    ),
    Claim(
        "000-RB.1", "000 Remark B.1",
        "the outliers' eigenvectors carry over to the cells of a ReLU network",
        relu_vectors,
    ),
    Claim(
        "000-TB.1", "000 Theorem B.1",
        "with a bias, and under its assumptions, there are a pair, a triple, a bulk and zeros",
        bias_theorem,
    ),
    Claim(
        "000-CB.1", "000 Corollary B.1",
        "with uncorrelated inputs, each with its own hidden units, the spectrum is that of every "
        "input by itself",
        _inputs,
    ),
    Claim(
        "000-CB.2", "000 Corollary B.2",
        "with separate hidden units for every output, the spectrum is that of every output by "
        "itself",
        _outputs,
    ),
    Claim(
        "000-CB.3", "000 Corollary B.3",
        "the outliers' eigenvectors for several outputs are λ(w_k, v_k) + δx(v_k, w_k)",
        _output_vectors,
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
    Claim(
        "000-least", "000 App B.1, after the proof of Theorem 3.1",
        "no eigenvalue is below −σ√(2ℓ)",
        _least_bound,
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
    Claim(
        "000-scaling", "000 §3.1",
        "eigenvalues scale in proportion to the inputs' variance",
        _scaling,
    ),
    Claim(
        "000-relu-top", "000 §3.2",
        "the sharpness of a ReLU network is the larger of its cells' larger outliers",
        _relu_top,
    ),
    Claim(
        "000-norms-below", "000 App D.3.3",
        "two linear layers on white data have λ_max ≥ max(‖W1‖², ‖W2‖²)",
        _norms_below,
    ),
    Claim(
        "000-activation", "000 §3.3, after Theorem 3.5",
        "other activations of each row of scores than softmax give a bulk ±γ too",
        _other_activation,
    ),
)  # fmt: skip
