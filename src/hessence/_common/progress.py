"""A progress bar, on a terminal and nowhere else."""

from __future__ import annotations

import time
from typing import TextIO

WIDTH = 24
PAUSE = 0.1
"""Seconds between two updates of the line."""


class ProgressBar:
    """A bar with the time left, if the total is known; by default on terminals only."""

    def __init__(self, stream: TextIO, unit: str, shown: bool | None = None) -> None:
        self._stream, self._unit = stream, unit
        self._shown = stream.isatty() if shown is None else shown
        encoding = getattr(stream, "encoding", None) or "utf-8"
        self._ascii = not encoding.lower().startswith("utf")
        self.begin("", None)

    def begin(self, label: str, total: int | None, already: int = 0) -> None:
        """Start a new stage; its pace does not count what was `already` done before."""
        self._label, self._total, self._already = label, total, already
        self._start = time.monotonic()
        self._last = 0.0

    def update(self, done: int) -> None:
        """Show how much of the stage is done."""
        now = time.monotonic()
        if not self._shown or now - self._last < PAUSE:
            return
        self._last = now
        text = line(self._label, done, self._total, self._unit, now - self._start, self._already)
        self._write(text.replace("█", "#") if self._ascii else text)

    def clear(self) -> None:
        """Wipe the line."""
        if self._shown:
            self._write("")

    def _write(self, text: str) -> None:
        try:
            self._stream.write("\r\x1b[K" + text)
            self._stream.flush()
        except OSError:
            # The terminal is gone; the work goes on.
            self._shown = False


def line(
    label: str, done: int, total: int | None, unit: str, seconds: float, already: int = 0
) -> str:
    """Return the text of the line.

    Examples
    --------
    >>> line("density", 256, 1024, "products", 5.0)
    'density  [██████                  ] 256/1024 products, 0:15 left'
    >>> line("eigenvalues", 40, None, "products", 5.0)
    'eigenvalues  40 products'
    """
    if not total:
        return f"{label}  {done} {unit}"
    filled = round(WIDTH * min(1.0, done / total))
    bar = "█" * filled + " " * (WIDTH - filled)
    return f"{label}  [{bar}] {tally(done, total, unit, seconds, already)}"


def tally(done: int, total: int, unit: str, seconds: float, already: int = 0) -> str:
    """Return how much is done, and the time left at the pace so far.

    Examples
    --------
    >>> tally(256, 1024, "products", 5.0)
    '256/1024 products, 0:15 left'
    """
    fresh = done - already
    left = seconds * (total - done) / fresh if fresh > 0 else float("inf")
    said = f", {int(left) // 60}:{int(left) % 60:02d} left" if left < 1e6 else ""
    return f"{done}/{total} {unit}{said}"
