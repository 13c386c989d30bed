"""The command line, one file for each command."""


class CommandError(Exception):
    """A user's mistake; its text is the one sentence that is shown, without a traceback."""
