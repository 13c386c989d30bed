"""How a command tells a user's mistake."""

from __future__ import annotations


class CommandError(Exception):
    """A user's mistake; its text is the one sentence that is shown, without a traceback."""
