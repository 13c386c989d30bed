"""Claims of paper 000, sections B.3 and B.4: a bias, and separate inputs or outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hessence.claims.dense_hessians import Array, dense_hessian, eigenvalue_gap, vector_gap
from hessence.claims.protocol import DENSE, Claim, Verdict, judge
from hessence.claims.scalar_networks import Biased, Scalar, centred_draw, orthogonal_draw


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


def bias_blocks(net: Biased, *, turned: bool) -> Array:
    """Return the Hessian with a bias as printed for E[x] = 0, blocks below the diagonal turned."""
    (v, b), w, m = net.V.T, net.w, len(net.w)
    var = float(np.mean(net.x[0] ** 2))
    residuals = net.w @ net.V @ net.x - net.y
    slope, mean = np.mean(residuals * net.x, axis=1)
    by_v, by_b = (
        slope * np.eye(m) + var * np.outer(v, w), mean * np.eye(m) + np.outer(b, w)
    )  # fmt: skip
    zeros, square = np.zeros((m, m)), np.outer(w, w)
    return np.block([
        [var * np.outer(v, v) + np.outer(b, b), by_v, by_b],
        [by_v.T if turned else by_v, var * square, zeros],
        [by_b.T if turned else by_b, zeros, square],
    ])  # fmt: skip


def bias_hessian() -> Verdict:
    """Check the blocks of the Hessian with a bias."""
    rng = np.random.default_rng(118)
    gaps, inside = [], []
    for mean in (0.0, 0.0, 0.0, 1.0):
        net = centred_draw(rng, 3, mean=mean)
        gaps.append(float(np.max(np.abs(bias_blocks(net, turned=True) - net.hessian()))))
        inside.append(mean == 0)
    return judge(gaps, "entries of dense Hessians, any weights and targets", "E[x] = 0", inside)


def without_bias() -> Verdict:
    """Check the pair of the bias theorem against networks without a bias."""
    rng = np.random.default_rng(113)
    gaps, inside = [], []
    for i, width in enumerate((2, 3, 4, 5, 2, 3, 4, 5)):
        x, y = np.linalg.qr(rng.normal(size=(7, 2)))[0].T * np.sqrt(7)
        w, v = rng.normal(size=(2, width))
        net = Scalar(w, v, x, y if i < 4 else y + x)
        total = float(net.w @ net.w + net.v @ net.v)
        root = np.sqrt(total**2 + 12 * net.residual**2)
        bulk = [net.residual, -net.residual] * (width - 1)
        pair = [(total + root) / 2, (total - root) / 2]
        gaps.append(eigenvalue_gap([*pair, *bulk], net.hessian()))
        inside.append(i < 4)
    return judge(gaps, f"all 2m eigenvalues {DENSE}, σ² = 1", "E[yx] = 0", inside)


def centres() -> Verdict:
    """Check where the pair and the triple of the bias theorem are centred."""
    rng = np.random.default_rng(114)
    gaps = []
    for width in (2, 3, 4, 5) * 2:
        net = orthogonal_draw(rng, width, 2, bias=True)
        values = list(np.linalg.eigvalsh(net.hessian()))
        trace = float(sum(values))
        residuals = net.w @ net.V @ net.x - net.y
        bulk = float(np.linalg.norm(np.mean(residuals * net.x, axis=1)))
        for value in [bulk, -bulk] * (width - 2) + [0.0] * (width - 1):
            values.remove(min(values, key=lambda other: abs(other - value)))
        pair = min(combinations(values, 2), key=lambda two: abs(sum(two) / 2 - trace / 4))
        triple = sum(values) - sum(pair)
        gaps += [abs(sum(pair) / 2 / trace - 1 / 4), abs(triple / 3 / trace - 1 / 6)]
    return judge(gaps, "means of the dense eigenvalues beside bulk and zeros, over the trace")


def _largest_variance() -> Verdict:
    gaps, inside, wrong = [], [], 0
    rng = np.random.default_rng(115)
    for i in range(16):
        alike = i < 8
        W, V = rng.normal(size=(2, 1 if alike else 3, 2)) * np.ones((1, 3, 1))
        scales = 1 + 0.1 * rng.permutation(3)
        x = np.linalg.qr(rng.normal(size=(8, 3)))[0].T * np.sqrt(8) * scales[:, None]
        y = np.sum(W * V, axis=1) @ x if alike else rng.normal(size=8)

        def loss(points: NDArray[Any], x: Array = x, y: Array = y) -> NDArray[Any]:
            w, v = points.reshape(len(points), 2, 3, 2).swapaxes(0, 1)
            return np.asarray(np.mean((np.sum(w * v, axis=2) @ x - y) ** 2, axis=1) / 2)

        hessian = dense_hessian(loss, np.concatenate([W.ravel(), V.ravel()]))
        tops = [
            float(np.linalg.eigvalsh(hessian[np.ix_(own, own)])[-1])
            for own in (np.array([2 * d, 2 * d + 1, 6 + 2 * d, 7 + 2 * d]) for d in range(3))
        ]
        gaps.append(float(np.argmax(tops) != np.argmax(scales)))
        inside.append(alike)
        wrong += int(gaps[-1])
    return judge(
        gaps, f"another input has the largest dense eigenvalue in {wrong} of 16 networks",
        "all inputs have the same weights and are fitted", inside,
    )  # fmt: skip


def _mixture() -> Verdict:
    rng = np.random.default_rng(116)
    gaps = []
    for size, width in ((2, 1), (3, 2), (4, 5)):
        W, V = rng.normal(size=(2, size, width))
        x = rng.normal(size=(size, 6))
        block = np.zeros((size * width, size))
        for d in range(size):
            block[d * width : (d + 1) * width, d] = V[d]
        truth = W.ravel() @ block @ x
        printed = sum((W[:, i] * V[:, i]) @ x for i in range(width))
        gaps.append(float(np.max(np.abs(printed - truth))))
    return judge(gaps, "outputs of w, V with a block of V for each input, D = 2 to 4, m = 1 to 5")


def _last_above(values: Sequence[float]) -> int:
    """Return the last step at which a value is above 0.05, or −1."""
    return max((step for step, value in enumerate(values) if value > 0.05), default=-1)


def _in_order() -> Verdict:
    rng = np.random.default_rng(117)
    gaps, negative = [], []
    for _ in range(3):
        w, v, x = rng.normal(size=4) / 4, rng.normal(size=4) / 4, rng.normal(size=8)
        learnt, vanished = [], []
        for target in (0.5, 1.0, 2.0):
            net, away, small = Scalar(w, v, x, target * x), [], []
            for _ in range(400):
                values = np.linalg.eigvalsh(net.hessian())
                second = float(values.sum() - values[-1])
                away.append(abs(net.product / target - 1))
                small.append(abs(second) / values[-1])
                if net.product < target / 3:
                    negative.append(second)
                rate = 0.1 * net.residual
                net = Scalar(net.w - rate * net.v, net.v - rate * net.w, x, net.y)
            learnt.append(_last_above(away))
            vanished.append(_last_above(small))
        ordered = combinations(sorted(zip(learnt, vanished, strict=True)), 2)
        gaps.append(float(any(sooner[1] > later[1] for sooner, later in ordered)))
    return judge(
        [*gaps, max(negative)],
        "descent on three outputs: the orders in which they are learnt and in which their smaller "
        "outliers vanish, and the sign of those of outputs that lag behind",
    )


CLAIMS = (
    Claim(
        "000-eq77", "000 eq 77 to 81, 84 and 85",
        "with a bias the Hessian has the blocks σ²vvᵀ + bbᵀ, δx I + σ²vwᵀ, δ I + bwᵀ, σ²wwᵀ, wwᵀ "
        "and zero",
        bias_hessian,
    ),
    Claim(
        "000-TB.1", "000 Theorem B.1",
        "with a bias, and under its assumptions, there are a pair, a triple, a bulk and zeros",
        bias_theorem,
    ),
    Claim(
        "000-centres", "000 §4 and App B.3",
        "under those assumptions the pair is centred at tr/4 and the triple at tr/6",
        centres,
    ),
    Claim(
        "000-eq106", "000 eq 106",
        "without a bias the pair has 12 δx² in its root, for σ² = 1",
        without_bias,
    ),
    Claim(
        "000-CB.1", "000 Corollary B.1",
        "with uncorrelated inputs, each with its own hidden units, the spectrum is that of every "
        "input by itself",
        _inputs,
    ),
    Claim(
        "000-variance", "000 App B.4",
        "in general, the input of the largest variance has the largest eigenvalue",
        _largest_variance,
    ),
    Claim(
        "000-eq114", "000 eq 114",
        "separate hidden units for every input are a sum of diagonal linear networks",
        _mixture,
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
        "000-outputs-order", "000 App B.4",
        "the smaller outliers of outputs vanish in the order in which these are learnt, and are "
        "negative at first",
        _in_order,
    ),
)  # fmt: skip
