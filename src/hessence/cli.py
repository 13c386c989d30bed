"""The command line: ``hessence demo``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import hessence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake ends in one sentence on standard error and status 2."""
    parser = argparse.ArgumentParser(
        prog="hessence",
        description="The Hessian spectrum of a neural network, exact where mathematics allows it.",
    )
    parser.add_argument("--version", action="version", version=f"hessence {hessence.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="show every network at work, with pictures and a page")
    demo.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="where to write")
    demo.add_argument("--json", action="store_true", help="print the table as JSON")
    options = parser.parse_args(arguments)
    try:
        return _demo(options.out, as_json=options.json)
    except OSError as error:
        return _fail(f"cannot write to {options.out}: {error.strerror or error}")
    except ImportError as error:
        return _fail(f"the demo needs more packages: pip install 'hessence[torch,plot]' ({error})")
    except KeyboardInterrupt:
        return _fail("stopped; files already written are whole.", status=130)


def _demo(directory: Path, *, as_json: bool) -> int:
    # A folder that cannot be written must be found out before the work, not after it.
    directory.mkdir(parents=True, exist_ok=True)
    from hessence import demo

    def progress(line: str) -> None:
        if not as_json:
            print(line, flush=True)

    progress("Exact spectra, checked against autodiff where that is feasible:")
    rows = demo.run(directory, progress)
    if as_json:
        print(json.dumps(demo.as_records(rows), indent=2))
        return 0
    print()
    print(demo.table(rows).to_text())
    print("\nDeviations, residuals and defects are relative to the norm of the Hessian.")
    print(f"Pictures and page: {directory / 'index.html'}")
    return 0


def _fail(sentence: str, status: int = 2) -> int:
    print(f"hessence: {sentence}", file=sys.stderr)
    return status
