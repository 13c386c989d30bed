"""Random numbers that belong to a task, not to the order or the place it runs in."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from hessence.papers.experiments.plain import as_text
from hessence.papers.experiments.protocol import Task


def task_generator(
    seed: int, experiment: str, task: Task, common: Sequence[str] = ()
) -> np.random.Generator:
    """Return the generator of one task, from a hash that is the same on every machine.

    Examples
    --------
    >>> rng = task_generator(0, "relu-cells", {"draw": 3})
    >>> same = task_generator(0, "relu-cells", {"draw": 3})
    >>> bool(rng.normal() == same.normal())
    True
    """
    key = {name: value for name, value in task.items() if name not in common}
    digest = hashlib.sha256(as_text([seed, experiment, key]).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))
