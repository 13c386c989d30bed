"""Settings, tasks and records as JSON text, and the random numbers that belong to a task."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def json_value(value: Any) -> Any:
    """Return a value in JSON's own types; arrays and tuples become lists.

    Examples
    --------
    >>> import numpy as np
    >>> json_value({"width": np.int64(3), "values": np.asarray([1.0, 2.0])})
    {'width': 3, 'values': [1.0, 2.0]}
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, np.ndarray):
        return json_value(value.tolist())
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("the keys of a record must be strings.")
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    raise TypeError(
        f"a record holds numbers, strings and lists of them, not {type(value).__name__}."
    )


def canonical_json(value: Any) -> str:
    """Return JSON text in which floats keep every bit, and equal contents have equal texts."""
    return json.dumps(json_value(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def ordered_json(value: Any) -> str:
    """Return JSON text that keeps the author's order of fields."""
    return json.dumps(json_value(value), separators=(",", ":"), ensure_ascii=False)


def task_generator(
    seed: int, experiment: str, task: Mapping[str, Any], common: Sequence[str] = ()
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
    digest = hashlib.sha256(canonical_json([seed, experiment, key]).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))
