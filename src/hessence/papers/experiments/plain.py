"""Settings, tasks and records as JSON text: one text for one content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Return a value in JSON's own types; arrays and tuples become lists.

    Examples
    --------
    >>> import numpy as np
    >>> plain({"width": np.int64(3), "values": np.asarray([1.0, 2.0])})
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
        return plain(value.tolist())
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("the keys of a record must be strings.")
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    raise TypeError(
        f"a record holds numbers, strings and lists of them, not {type(value).__name__}."
    )


def as_text(value: Any) -> str:
    """Return JSON text in which floats keep every bit, and equal contents have equal texts."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def as_ordered_text(value: Any) -> str:
    """Return JSON text that keeps the author's order of fields."""
    return json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False)
