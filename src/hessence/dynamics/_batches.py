"""Mini-batches: which samples each step sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arguments import require_int, seed
from hessence._common.arrays import Array, Numbers, integers, to_numpy


def batch_indices(batches: Any, samples: int, rng: Any) -> Callable[[int], Numbers]:
    """Return a function from the step to the indices of its samples.

    Parameters
    ----------
    batches : int, or sequence of arrays of int
        A size: every epoch goes through all samples in a new order, and its last batch holds what
        is left. A sequence: the indices of each step's samples, from the start again at its end.
    samples : int
        How many there are.
    rng : int or numpy.random.Generator
        The source of the orders.
    """
    if isinstance(batches, Sequence) or np.ndim(batches):
        given = [_indices(batch, samples) for batch in batches]
        if not given:
            raise ValueError("batches must not be empty: give a size, or indices for each step.")
        return lambda step: given[step % len(given)]
    require_int("batches", batches, 1, samples)
    start, count = seed(rng), -(-samples // int(batches))

    @lru_cache(maxsize=1)
    def order(epoch: int) -> Numbers:
        return np.random.default_rng([start, epoch]).permutation(samples)

    def drawn(step: int) -> Numbers:
        epoch, place = divmod(step, count)
        return order(epoch)[place * batches : (place + 1) * batches]

    return drawn


def rows(array: Any, indices: Numbers) -> Array:
    """Return some rows of an array of any kind, or of a list."""
    if not api.is_array_api_obj(array):
        return np.asarray(array)[indices]
    return api.array_namespace(array).take(array, integers(indices, array), axis=0)


def _indices(batch: Any, samples: int) -> Numbers:
    found = np.asarray(to_numpy(batch) if api.is_array_api_obj(batch) else batch)
    right = found.ndim == 1 and found.size and found.dtype.kind in "iu"
    if not right or found.min() < 0 or found.max() >= samples:
        raise ValueError(
            f"batches must hold indices from 0 to {samples - 1} for each step, got {batch!r}."
        )
    return found
