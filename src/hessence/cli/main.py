"""The command line: ``hessence demo``, ``spectrum``, ``reproduce``, ``report`` and ``claims``."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import hessence
from hessence.cli import CommandError, claims, demo, report, reproduce, spectrum


class _Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line and leaves the usage to ``--help``."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help.\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake ends in one sentence on standard error and status 2."""
    _prepare_streams()
    parser = _Parser(
        prog="hessence",
        description="The Hessian spectrum of a neural network, exact where mathematics allows it.",
    )
    parser.add_argument("--version", action="version", version=f"hessence {hessence.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (demo, spectrum, reproduce, report, claims):
        command.add(commands)
    options = parser.parse_args(arguments)
    try:
        status = int(options.run(options))
        # What is still held back is written while what may fail there is told in one sentence.
        sys.stdout.flush()
        return status
    except CommandError as error:
        return _fail(str(error))
    except BrokenPipeError:
        # The reader of the output has seen enough.
        _give_up_output()
        return 0
    except OSError as error:
        where = str(options.out)
        if not error.filename:
            # A disk is full, the one with the files or the one that the output goes to.
            where = " or ".join(dict.fromkeys((where, "standard output")))
            _give_up_output()
        return _fail(f"cannot write to {where}: {error.strerror or error}")
    except KeyboardInterrupt:
        return _fail("stopped; files already written are whole.", status=130)


def _give_up_output() -> None:
    """Send what is left of the output nowhere: Python still flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str, status: int = 2) -> int:
    with contextlib.suppress(OSError):
        print(f"hessence: {sentence}", file=sys.stderr)
    return status


def _prepare_streams() -> None:
    """Make output work on terminals that lack some letters, and where streams are closed.

    The next file that is opened would take the place of a closed stream, and get all messages.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
