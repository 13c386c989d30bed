"""How far an experiment is: a bar on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import contextlib
import time
from types import TracebackType
from typing import TextIO

from hessence._common.progress import ProgressBar, tally

PAUSE = 10.0
"""Seconds between two lines in a pipe."""


class TaskProgress:
    """Tells finished tasks of all tasks, with the time left.

    Tasks that an earlier run finished count as done, but not in the pace.
    """

    def __init__(self, label: str, stream: TextIO) -> None:
        self._label, self._stream = label, stream
        self._bar = ProgressBar(stream, "tasks")
        self._plain = not stream.isatty()
        self._start: float | None = None
        self._last, self._earlier = 0.0, 0

    def __enter__(self) -> TaskProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.clear()

    def update(self, done: int, total: int) -> None:
        """Tell how many tasks are done; the first call tells what earlier runs did."""
        now = time.monotonic()
        if self._start is None:
            self._start, self._earlier = now, done
            self._bar.begin(self._label, total, already=done)
            self._last = now
            if self._plain:
                kept = f", {done} from an earlier run" if done else ""
                self._say(f"{self._label}: {total} task{'s' * (total != 1)}{kept}")
        self._bar.update(done)
        if self._plain and now - self._last >= PAUSE and done < total:
            self._last = now
            said = tally(done, total, "tasks", now - self._start, self._earlier)
            self._say(f"{self._label}: {said}")

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            # Nobody may be reading any more; the work goes on.
            print(text, file=self._stream, flush=True)
