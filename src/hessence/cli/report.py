"""``hessence report``: one page of everything in an output folder, and of the papers' claims."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hessence._common.files import write_atomically
from hessence.cli import CommandError
from hessence.papers.claims.ledger import all_claims, one_thread
from hessence.papers.experiments.results import NothingToReportError, Result, read_results
from hessence.papers.judgements import Judgement, judge_claim, ledger_sections, ledger_table
from hessence.papers.page import Table
from hessence.papers.recorded import merged, recorded_runs, run_of
from hessence.papers.results_page import results_page
from hessence.papers.task_progress import TaskProgress


def add(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = commands.add_parser("report", help="make one page of all results in a folder")
    parser.add_argument("out", type=Path, metavar="DIR", help="where hessence reproduce wrote to")
    parser.add_argument("--no-claims", action="store_true", help="leave out the papers' claims, "
                        "which take half a minute to judge")  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Judge the claims, and write the page into the folder."""
    folder: Path = options.out
    try:
        results = read_results(folder)
        content = results_page(results, () if options.no_claims else claims_tables(results))
    except NothingToReportError as error:
        raise CommandError(str(error)) from error
    write_atomically(folder / "report.html", content)
    print(f"Page: {folder / 'report.html'}")
    return 0


def claims_tables(results: Sequence[Result]) -> list[tuple[str, Table]]:
    """Return the claims with verdict and evidence, paper by paper.

    A check that needs a package which is not installed leaves its claim without a verdict, and
    the others alone.
    """
    runs = merged(map(run_of, results), recorded_runs())
    judged: list[Judgement] = []
    open_rows: list[tuple[str, ...]] = []
    claims = list(all_claims().values())
    with TaskProgress("claims", sys.stderr) as progress, one_thread():
        for done, claim in enumerate(claims):
            progress.update(done, len(claims))
            try:
                judged.append(judge_claim(claim, runs))
            except ImportError as error:
                open_rows.append((claim.id, claim.where, claim.says, "not judged", f"{error}"))
    sections = ledger_sections(judged)
    if open_rows:
        headings = ledger_table([]).headings
        sections.append(("Not judged, as packages are missing", Table(headings, open_rows)))
    return sections
