"""What users read: warnings that point to their own line, and tables of eigenvalues."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

from hessence._common.arrays import Array, to_numpy

SHOWN = 12
"""How many eigenvalues a table shows; of more, half from either end."""

OWN = str(Path(__file__).parents[1]) + os.sep


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn where the library was called from, however deep inside of it this is."""
    level, outside, frame = 1, 2, sys._getframe()
    while frame.f_back is not None:
        if frame.f_code.co_filename.startswith(OWN):
            outside = level + 1
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, outside)


def value_table(values: Array, errors: Array, resolved: Array = None) -> list[str]:
    r"""Return the lines of a table of eigenvalues (*batch, k), of a batch their range.

    What is not resolved is marked.

    Examples
    --------
    >>> import numpy as np
    >>> print(*value_table(np.asarray([2.5, -1.0]), np.asarray([1e-9, 3e-2])), sep="\n")
      value    error
        2.5  1.0e-09
         -1  3.0e-02
    """
    values, errors = to_numpy(values), to_numpy(errors)
    count = int(values.shape[-1])
    shown = range(count) if count <= SHOWN else [*range(SHOWN // 2), *range(-SHOWN // 2, 0)]
    rows = [("value", "error", "")]
    for i in shown:
        sure = resolved is None or bool(to_numpy(resolved)[..., i].all())
        rows.append((_range(values[..., i]), f"{errors[..., i].max():.1e}", "" if sure else " !"))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"  {a:>{widths[0]}}  {b:>{widths[1]}}{mark}" for a, b, mark in rows]
    if count > SHOWN:
        lines.insert(1 + SHOWN // 2, f"  … {count - SHOWN} more …")
    return lines


def _range(numbers: Any) -> str:
    low = f"{numbers.min():.6g}"
    return f"{low} … {numbers.max():.6g}" if numbers.ndim else low
