"""``hessence demo``: every network at work."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from hessence.cli import CommandError


def add(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = commands.add_parser(
        "demo", help="show every network at work, with pictures and a page"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="where to write (out)"
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make all pictures, and print the table."""
    directory: Path = options.out
    # A folder that cannot be written must be found out before the work, not after it.
    directory.mkdir(parents=True, exist_ok=True)
    try:
        from hessence.papers import demo
    except ImportError as error:
        raise CommandError(
            f"the demo needs more packages: pip install 'hessence[torch,plot]' ({error})"
        ) from error

    def progress(line: str) -> None:
        if not options.json:
            print(line, flush=True)

    progress("Exact spectra, checked against autodiff where that is feasible:")
    rows = demo.run(directory, progress)
    if options.json:
        print(json.dumps(demo.as_records(rows), indent=2))
        return 0
    print()
    print(demo.table(rows).to_text())
    print("\nDeviations, residuals and defects are relative to the norm of the Hessian.")
    print(f"Pictures and page: {directory / 'index.html'}")
    return 0
