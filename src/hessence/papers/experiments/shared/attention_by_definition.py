"""Self-attention from its definition, and curvatures from losses alone.

Experiments compare spectra with these; nothing here knows of blocks, twins or moments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

STENCIL = ((-2, -1 / 12), (-1, 16 / 12), (0, -30 / 12), (1, 16 / 12), (2, -1 / 12))
"""Second difference of fourth order."""
STEP = 3e-4


def attention_loss(W_v: Any, W_q: Any, W_k: Any, x: Any, y: Any, sink: float = 0.0) -> float:
    """Return the mean over all tokens of ½ ‖f − y‖², for x (batch, n, d) and y (batch, n, d_V).

    `sink` is added to all scores of the first token before the softmax.
    """
    scores = (x @ W_q) @ (x @ W_k).swapaxes(-1, -2) / W_q.shape[-1] ** 0.5
    scores[..., 0] += sink
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    residual = weights @ x @ W_v - y
    return float(np.sum(residual**2) / (2 * np.prod(residual.shape[:-1])))


def curvature_along(loss: Callable[[Any], float], theta: Any, direction: Any) -> float:
    """Return the second derivative of a loss along a unit direction, by differences."""
    values = [weight * loss(theta + i * STEP * direction) for i, weight in STENCIL]
    return float(np.sum(values) / STEP**2)


def split(theta: Any, *shapes: tuple[int, ...]) -> list[Any]:
    """Cut a parameter vector into arrays of the given shapes."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    parts = np.split(np.asarray(theta), ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
