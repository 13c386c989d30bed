"""Claims of paper 000, section B.3: a bias in the first layer."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from hessence.papers.claims.dense_hessians import Array, eigenvalue_gap, without
from hessence.papers.claims.protocol import DENSE, Claim, Verdict, judge
from hessence.papers.claims.scalar_networks import Biased, Scalar, centred_draw, orthogonal_draw


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


def bias_blocks(net: Biased, *, turned: bool) -> Array:
    """Return the Hessian with a bias as printed for E[x] = 0, blocks below the diagonal turned."""
    (v, b), w, m = net.V.T, net.w, len(net.w)
    var = float(np.mean(net.x[0] ** 2))
    residuals = net.w @ net.V @ net.x - net.y
    covariance, mean = np.mean(residuals * net.x, axis=1)
    by_v, by_b = (
        covariance * np.eye(m) + var * np.outer(v, w), mean * np.eye(m) + np.outer(b, w)
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
        values = np.linalg.eigvalsh(net.hessian())
        trace = float(values.sum())
        residuals = net.w @ net.V @ net.x - net.y
        bulk = float(np.linalg.norm(np.mean(residuals * net.x, axis=1)))
        five = without(values, [bulk, -bulk] * (width - 2) + [0.0] * (width - 1)).tolist()
        pair = min(combinations(five, 2), key=lambda two: abs(sum(two) / 2 - trace / 4))
        triple = sum(five) - sum(pair)
        gaps += [abs(sum(pair) / 2 / trace - 1 / 4), abs(triple / 3 / trace - 1 / 6)]
    return judge(gaps, "means of the dense eigenvalues beside bulk and zeros, over the trace")


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
)  # fmt: skip
