"""Hessians of scalar networks from their definition; experiments compare spectra with these.

Nothing here knows of cells, moments, outliers or a bulk.
"""

from __future__ import annotations

from typing import Any

import numpy as np

CHUNK = 10_000
"""So many samples are in memory at a time."""


def summed_hessian(w: Any, v: Any, x: Any, y: Any, *, relu: bool) -> Any:
    """Return the Hessian of ½ E(⟨w, φ(v x)⟩ − y)² in the order (v, w), summed sample by sample.

    φ is ReLU or the identity. A sample adds the square of its prediction's gradient, and its
    residual times the second derivatives of the prediction, ∂²f/∂v_j∂w_j = φ′ x.

    Examples
    --------
    >>> summed_hessian(np.ones(1), np.ones(1), np.array([1.0]), np.array([0.0]), relu=False)
    array([[1., 2.],
           [2., 1.]])
    """
    m = len(w)
    total = np.zeros((2 * m, 2 * m))
    for start in range(0, len(x), CHUNK):
        part = slice(start, start + CHUNK)
        column = x[part, None]
        seen = (column * v > 0) * column if relu else np.broadcast_to(column, (len(column), m))
        residual = np.sum(seen * v * w, axis=1) - y[part]
        gradients = np.concatenate([seen * w, seen * v], axis=1)
        total += gradients.T @ gradients
        mixed = np.diag(residual @ seen)
        total[:m, m:] += mixed
        total[m:, :m] += mixed
    return total / len(x)
