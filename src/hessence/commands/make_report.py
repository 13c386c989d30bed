"""``hessence report``: one page of everything in an output folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hessence.commands.failures import CommandError
from hessence.experiments.overview import NothingToReportError, overview_page, read_results
from hessence.files import write_atomically


def add(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = commands.add_parser("report", help="make one page of all results in a folder")
    parser.add_argument("out", type=Path, metavar="DIR", help="where hessence reproduce wrote to")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the page into the folder."""
    folder: Path = options.out
    try:
        content = overview_page(read_results(folder))
    except NothingToReportError as error:
        raise CommandError(str(error)) from error
    write_atomically(folder / "report.html", content)
    print(f"Page: {folder / 'report.html'}")
    return 0
