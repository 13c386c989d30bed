"""How a run of gradient descent meets the threshold 2/η, told from its curves."""

from __future__ import annotations

from typing import Any

import numpy as np


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


def share_rising(values: Any, end: int) -> float:
    """Return the share of the first `end` steps at which values grow."""
    return float(np.mean(np.diff(values[: end + 1]) > 0)) if end else float("nan")


def step_correlation(a: Any, b: Any) -> float:
    """Return the correlation of the steps of two curves."""
    steps = np.diff(a), np.diff(b)
    if len(steps[0]) < 2 or not all(np.isfinite(s).all() and np.ptp(s) > 0 for s in steps):
        return float("nan")
    return float(np.corrcoef(*steps)[0, 1])


def late_over_early(values: Any) -> float:
    """Return the mean of the last quarter over that of the first."""
    quarter = len(values) // 4
    if quarter < 2 or not np.isfinite(values).all():
        return float("nan")
    return float(np.mean(values[-quarter:]) / np.mean(values[:quarter]))


def has_period_two(values: Any) -> bool:
    """Tell whether every second value of the last tenth is the same to 1e-6."""
    tail = values[-(len(values) // 10) :]
    return bool(np.all(np.abs(tail[2:] - tail[:-2]) < 1e-6) and np.ptp(tail) > 1e-6)
