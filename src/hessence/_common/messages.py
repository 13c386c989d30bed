"""Warnings that point to the line of the user's that called the library."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

OWN = str(Path(__file__).parents[1]) + os.sep


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn where the library was called from, however deep inside of it this is."""
    level, outside, frame = 1, 2, sys._getframe()
    while frame.f_back is not None:
        if frame.f_code.co_filename.startswith(OWN):
            outside = level + 1
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, outside)
