"""Ctrl-C, held back while a user's model is on its way from one state to another.

Python raises KeyboardInterrupt between any two steps, also between those that put things back, and
before the first of them. So it is let through only where everything is in its place.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class HeldBack:
    """A context in which Ctrl-C waits until the end, or until it is let through.

    Only the main thread ever sees one; elsewhere this does nothing, and so it does where the user
    has Ctrl-C ignored.
    """

    def __init__(self) -> None:
        self._users: Any = None
        self._waiting = False

    def __enter__(self) -> HeldBack:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._users = handler
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._let_through()

    def interruptible(self, function: Callable[[], Result]) -> Result:
        """Call a function, which may take long, with Ctrl-C let through."""
        self._let_through()
        try:
            return function()
        finally:
            if self._users is not None:
                signal.signal(signal.SIGINT, self._note)

    def _let_through(self) -> None:
        """Go on as the user has it, first with what has waited."""
        if self._users is not None:
            signal.signal(signal.SIGINT, self._users)
            if self._waiting:
                self._waiting = False
                signal.raise_signal(signal.SIGINT)

    def _note(self, *_: object) -> None:
        self._waiting = True
