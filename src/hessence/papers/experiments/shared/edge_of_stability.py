"""How a run of gradient descent meets the threshold 2/η, told from its curves."""

from __future__ import annotations

from typing import Any

import numpy as np

WINDOW = 100
"""Early and late are so many steps, or a quarter of all if that is fewer."""


def endings(relative: Any, loss: Any) -> list[str]:
    """Tell from the last quarter how sharpness over 2/η ends, for every network.

    The curves are (steps, networks). A network ``diverges``, is at the ``edge``, stays ``above``,
    ``returns`` below after having been above, or was ``below`` all along.

    Examples
    --------
    >>> import numpy as np
    >>> endings(np.asarray([[0.5, 0.9], [0.6, 1.1]] * 4), np.ones((8, 2)))
    ['below', 'edge']
    """
    tail = relative[-(len(relative) // 4) :]
    finite = np.isfinite(loss).all(axis=0) & np.isfinite(relative).all(axis=0)
    # Divergence may be too slow to overflow within the steps taken.
    finite &= loss[-(len(loss) // 4) :].mean(axis=0) < 10 * loss[0]
    high, low = tail.max(axis=0) > 1, tail.min(axis=0) < 1
    ever = (relative > 1).any(axis=0)
    names: list[str] = np.select(
        [~finite, high & low, high, ever], ["diverges", "edge", "above", "returns"], "below"
    ).tolist()
    return names


def passes(relative: Any) -> Any:
    """Return how often the sharpness of every network passes 2/η, in either direction.

    Examples
    --------
    >>> import numpy as np
    >>> passes(np.asarray([[0.5, 0.9], [0.6, 1.1], [1.2, 0.8]])).tolist()
    [1, 2]
    """
    return np.sum(np.diff(relative > 1, axis=0), axis=0)


def rising_together(leader: Any, other: Any) -> list[int]:
    """Return at how many steps the first curve rises, and at how many of these both do.

    Examples
    --------
    >>> rising_together([0, 1, 2, 1], [0, 1, 0, 3])
    [2, 1]
    """
    up = np.diff(leader) > 0
    return [int(up.sum()), int((up & (np.diff(other) > 0)).sum())]


def step_correlation(a: Any, b: Any) -> float:
    """Return the correlation of the steps of two curves."""
    steps = np.diff(a), np.diff(b)
    if len(steps[0]) < 2 or not all(np.isfinite(s).all() and np.ptp(s) > 0 for s in steps):
        return float("nan")
    return float(np.corrcoef(*steps)[0, 1])


def late_over_early(values: Any) -> float:
    """Return the mean of the last steps over that of the first."""
    window = min(WINDOW, len(values) // 4)
    if window < 2 or not np.isfinite(values).all():
        return float("nan")
    return float(np.mean(values[-window:]) / np.mean(values[:window]))


def swing_and_residual(sharpness: Any, residual: Any) -> list[float]:
    """Return what is left of the swing of the sharpness and of the residual, at the end.

    Both are compared with those of as many steps, so many steps behind the crossing, where the
    curves are to begin; there is nothing to compare in curves that are too short.
    """
    if len(sharpness) < 3 * WINDOW or not np.isfinite(sharpness).all():
        return [float("nan")] * 2
    early, late = slice(WINDOW, 2 * WINDOW), slice(-WINDOW, None)
    swings = [float(np.ptp(sharpness[part])) for part in (early, late)]
    sizes = [float(np.mean(residual[part])) for part in (early, late)]
    return [swings[1] / swings[0], sizes[1] / sizes[0]]
