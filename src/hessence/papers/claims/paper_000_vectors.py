"""Claims of paper 000, sections 3.1 and B.1: eigenvectors of the scalar linear network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hessence.papers.claims.dense_hessians import gradient, vector_gap
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.scalar_networks import scalar_draws


def outlier_vectors() -> Verdict:
    """Check the outliers' eigenvectors."""
    nets = list(scalar_draws(3))
    nets += [replace(net, v=sign * net.w) for net in nets[:2] for sign in (1, -1)]
    gaps, inside = [], []
    for net in nets:
        hessian = net.hessian()
        gaps.append(
            max(vector_gap(value, net.outlier_vector(value), hessian) for value in net.outliers())
        )
        inside.append(not np.allclose(np.abs(net.w), np.abs(net.v)))
    return judge(
        gaps, "residuals ‖Hz − λz‖; for w = ±v one of the two vectors is zero", "w ≠ ±v", inside
    )


def basis() -> Verdict:
    """Check that the outliers' eigenvectors are orthogonal and span the plane of the weights."""
    nets = list(scalar_draws(103))
    nets += [replace(net, v=sign * net.w) for net in nets[:2] for sign in (1, -1)]
    gaps, inside = [], []
    for net in nets:
        swapped = np.concatenate([net.w, net.v])
        plane = np.stack([net.point, swapped])
        vectors = np.stack([net.outlier_vector(value) for value in net.outliers()])
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if lengths.min() < 1e-12 * lengths.max():
            gaps.append(float("inf"))
        else:
            unit = vectors / lengths
            left = plane - plane @ unit.T @ unit
            gaps.append(max(abs(float(unit[0] @ unit[1])), float(np.max(np.abs(left)))))
        inside.append(not np.allclose(np.abs(net.w), np.abs(net.v)))
    return judge(gaps, "⟨z1, z2⟩, and what they leave of (v, w) and (w, v)", "w ≠ ±v", inside)


def basis_length() -> Verdict:
    """Check if the outliers' eigenvectors have length one as printed."""
    lengths = []
    for net in scalar_draws(104):
        lengths += [float(np.linalg.norm(net.outlier_vector(value))) for value in net.outliers()]
    return judge(
        [abs(length - 1) for length in lengths],
        f"lengths between {min(lengths):.2g} and {max(lengths):.2g}",
    )


def vectors_from_gradient() -> Verdict:
    """Check the outliers' eigenvectors as combinations of gradient and parameters."""
    nets = list(scalar_draws(42))
    nets += [replace(net, v=sign * net.w) for net in nets[:2] for sign in (1, -1)]
    gaps, inside = [], []
    for net in nets:
        hessian, grad = net.hessian(), gradient(net.loss, net.point)
        vectors = [
            value / net.residual * grad + net.residual * net.point for value in net.outliers()
        ]
        worst = max(
            vector_gap(value, vector, hessian)
            for value, vector in zip(net.outliers(), vectors, strict=True)
        )
        if np.isfinite(worst):
            one, two = (vector / np.linalg.norm(vector) for vector in vectors)
            worst = max(worst, abs(float(one @ two)))
        gaps.append(worst)
        inside.append(not np.allclose(np.abs(net.w), np.abs(net.v)))
    return judge(
        gaps,
        "residuals ‖Hz − λz‖ with the gradient by complex steps, and ⟨z1, z2⟩",
        "w ≠ ±v",
        inside,
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


def smoothness() -> Verdict:
    """Check that the outliers' eigenvectors turn in proportion to the step."""
    gaps = []
    for net in scalar_draws(107, 8):
        grad = gradient(net.loss, net.point)
        rate = 1e-3 / float(np.linalg.norm(grad))
        turns = []
        for share in (1.0, 0.5):
            v, w = np.split(net.point - share * rate * grad, 2)
            before, after = (
                np.linalg.eigh(each.hessian())[1][:, -1] for each in (net, replace(net, w=w, v=v))
            )
            turns.append(np.sqrt(max(0.0, 2 - 2 * abs(float(before @ after)))))
        gaps.append(abs(turns[0] / turns[1] - 2) - 0.05 if turns[1] > 1e-9 else turns[0] - 1e-8)
    return judge(gaps, "half a step turns the dense Hessian's top eigenvector half as far, within "
                 "5% of the factor")  # fmt: skip


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


CLAIMS = (
    Claim(
        "000-T3.2", "000 Theorem 3.2",
        "the outliers' eigenvectors are λ(w, v) + δx(v, w)",
        outlier_vectors,
    ),
    Claim(
        "000-basis", "000 §3.1, after Theorem 3.2",
        "the outliers' eigenvectors are an orthogonal basis of the plane of (v, w) and (w, v)",
        basis,
    ),
    Claim(
        "000-basis-length", "000 §3.1, after Theorem 3.2",
        "as printed, the outliers' eigenvectors have length one",
        basis_length,
    ),
    Claim(
        "000-gradient", "000 §3.1, after Theorem 3.2",
        "the outliers' eigenvectors are (λ/δx)∇ℓ + δx θ",
        vectors_from_gradient,
    ),
    Claim(
        "000-T3.3", "000 Theorem 3.3",
        "bulk eigenvectors are (z, sgn(λ) z) with z orthogonal to w + sgn(λ) v",
        bulk_vectors,
    ),
    Claim(
        "000-smooth", "000 §3.1, after Theorem 3.3",
        "eigenvectors change smoothly in training: a smaller step turns them less, in proportion",
        smoothness,
    ),
    Claim(
        "000-C3.1", "000 Corollary 3.1",
        "gradient descent leaves the bulk eigenspace as it is, and all iterates orthogonal to it",
        _descent,
    ),
)  # fmt: skip
