"""Claim of paper 001, first footnote: what batch normalisation does to the spectrum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hessence.papers.claims.dense_hessians import Array, eigenvalue_gap, smooth_hessian
from hessence.papers.claims.protocol import Claim, Verdict, judge
from hessence.papers.claims.scalar_networks import Scalar

WIDTH = 3


def _hessian(v: Array, gain: Array, w: Array, x: Array, y: Array) -> Array:
    """Return the Hessian of ⟨w, gain · BN(v x)⟩ in (v, gain, w), by its definition."""

    def loss(points: NDArray[Any]) -> NDArray[Any]:
        inner, gains, outer = np.split(points, 3, axis=1)
        hidden = inner[:, :, None] * x
        away = hidden - hidden.mean(axis=2, keepdims=True)
        normal = away / np.sqrt(np.mean(away**2, axis=2, keepdims=True))
        residuals = np.sum((outer * gains)[:, :, None] * normal, axis=1) - y
        return np.asarray(np.mean(residuals**2, axis=1) / 2)

    return smooth_hessian(loss, np.concatenate([v, gain, w]))


def _whole_spectrum() -> Verdict:
    rng = np.random.default_rng(190)
    gaps, bulks, tops = [], [], []
    for _ in range(6):
        w, gain = rng.normal(size=(2, WIDTH))
        v, x = rng.choice([-1, 1], WIDTH) * (0.5 + rng.random(WIDTH)), rng.normal(size=9)
        y = 2 * x + rng.normal(size=9)
        hessian = _hessian(v, gain, w, x, y)
        # Of data ten times as large and moved, every eigenvalue is the same with it, …
        other = np.linalg.eigvalsh(_hessian(v, gain, w, 10 * x + 3, y))
        gaps.append(eigenvalue_gap(other, hessian))
        # … namely that of the network ⟨w, γ sgn v⟩ on normalised data, and zeros for v.
        normal = (x - x.mean()) / x.std()
        inner = np.linalg.eigvalsh(Scalar(w, gain * np.sign(v), normal, y).hessian())
        gaps.append(eigenvalue_gap([*inner, *[0.0] * WIDTH], hessian))
        plain, larger = (Scalar(w, v, s * x, y * s) for s in (1, 10))
        bulks.append(larger.residual / plain.residual)
        tops.append(np.linalg.eigvalsh(larger.hessian())[-1]
                    / np.linalg.eigvalsh(plain.hessian())[-1])  # fmt: skip
    return judge(
        gaps,
        "with it all 3m dense eigenvalues, bulk and outliers, are those of normalised data and m "
        f"zeros, however the inputs are scaled and moved; without, data ten times as large have "
        f"bulks {np.median(bulks):.0f} and outliers {np.median(tops):.0f} times as large",
        tolerance=1e-7,
    )


CLAIMS = (
    Claim(
        "001-batch-norm", "001 footnote 1",
        "batch normalisation acts on all of the spectrum, as normalised data do, and not only on "
        "the outliers",
        _whole_spectrum,
    ),
)  # fmt: skip
