"""The command line: ``hessence demo``, ``spectrum``, ``reproduce``, ``report`` and ``claims``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import hessence
from hessence.cli import find_spectrum, judge_claims, make_report, run_reproduce, show_demo
from hessence.cli.failures import CommandError


class _Parser(argparse.ArgumentParser):
    """A parser that tells a mistake in one line, without all that could have been said instead."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help.\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake ends in one sentence on standard error and status 2."""
    parser = _Parser(
        prog="hessence",
        description="The Hessian spectrum of a neural network, exact where mathematics allows it.",
    )
    parser.add_argument("--version", action="version", version=f"hessence {hessence.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (show_demo, find_spectrum, run_reproduce, make_report, judge_claims):
        command.add(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except CommandError as error:
        return _fail(str(error))
    except BrokenPipeError:  # whoever reads what is printed has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
        return 0
    except OSError as error:
        return _fail(f"cannot write to {options.out}: {error.strerror or error}")
    except KeyboardInterrupt:
        return _fail("stopped; files already written are whole.", status=130)


def _fail(sentence: str, status: int = 2) -> int:
    print(f"hessence: {sentence}", file=sys.stderr)
    return status
