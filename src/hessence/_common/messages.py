"""What users read: warnings that point to their own line, and tables of eigenvalues."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
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


def table_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], total: int, *, left: int = 0
) -> list[str]:
    """Return the lines of a table; of `total` rows, the first and last ones are given.

    The first `left` columns are aligned to the left. What a row has beyond the headings follows it.
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=False)]
    lines = []
    for row in (headings, *rows):
        cells = [
            f"{text:{'<' if i < left else '>'}{width}}"
            for i, (text, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  " + "  ".join(cells) + "".join(row[len(widths) :]))
    if hidden := total - len(rows):
        lines.insert(1 + len(rows) // 2, f"  … {hidden} more …")
    return lines


def value_table(values: Array, errors: Array, resolved: Array = None) -> list[str]:
    r"""Return the lines of a table of eigenvalues (*batch, k); of a batch, their range.

    Unresolved ones are marked.

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
    rows = []
    for i in range(count) if count <= SHOWN else (*range(SHOWN // 2), *range(-SHOWN // 2, 0)):
        sure = resolved is None or bool(to_numpy(resolved)[..., i].all())
        error = f"{errors[..., i].max():.1e}"
        rows.append((range_text(values[..., i]), error, "" if sure else " !"))
    return table_lines(("value", "error"), rows, count)


def range_text(numbers: Any, form: str = ".6g", form_of_range: str | None = None) -> str:
    """Return a number, or the range of an array of them, as text."""
    numbers = to_numpy(numbers)
    if not numbers.ndim:
        return f"{numbers:{form}}"
    return " … ".join(f"{end:{form_of_range or form}}" for end in (numbers.min(), numbers.max()))
