"""``hessence claims``: every statement of the papers, judged."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from typing import Any

from hessence.cli import CommandError
from hessence.papers import papers_named
from hessence.papers.claims.ledger import (
    Judged,
    UnknownClaimError,
    all_claims,
    find_claim,
    one_thread,
)
from hessence.papers.claims.protocol import Claim

WIDTH = 100


def add(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = commands.add_parser("claims", help="judge every statement of the papers")
    parser.add_argument("ids", nargs="*", metavar="ID", help="claims (all of them)")
    parser.add_argument("--list", action="store_true", help="list the claims and judge none")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run, out="standard output")


def run(options: argparse.Namespace) -> int:
    """Check claims and print their verdicts."""
    try:
        chosen = [find_claim(name) for name in dict.fromkeys(options.ids or all_claims())]
    except UnknownClaimError as error:
        raise CommandError(str(error)) from error
    if options.list:
        print("\n".join(_paragraph(f"{claim.id}  {claim.where}: {claim.says}") for claim in chosen))
        print("\n".join(["", *_papers(chosen)]))
        return 0
    with one_thread():
        judged = [(claim, claim.check()) for claim in chosen if claim.check is not None]
    print(_as_json(judged) if options.json else _as_text(judged))
    return 0


def _as_json(judged: Sequence[Judged]) -> str:
    entries = [
        {"id": claim.id, "where": claim.where, "says": claim.says, "check": claim.code,
         "verdict": verdict.word, "holds": verdict.holds, "condition": verdict.condition,
         "evidence": verdict.evidence}
        for claim, verdict in judged
    ]  # fmt: skip
    return json.dumps(entries, indent=2)


def _as_text(judged: Sequence[Judged]) -> str:
    lines = []
    for claim, verdict in judged:
        lines.append(f"{claim.id}  {verdict.word}")
        texts = (f"{claim.where}: {claim.says}", verdict.evidence)
        lines += [_paragraph(text, initial="    ") for text in texts]
    lines += ["", *_papers([claim for claim, _ in judged])]
    whole = sum(verdict.holds and verdict.condition is None for _, verdict in judged)
    partly = sum(verdict.holds and verdict.condition is not None for _, verdict in judged)
    failing = len(judged) - whole - partly
    lines.append(
        f"\n{len(judged)} claim{'s' * (len(judged) != 1)}: {whole} hold{'s' * (whole == 1)}, "
        f"{partly} on a condition, {failing} fail{'s' * (failing == 1)}."
    )
    return "\n".join(lines)


def _papers(claims: Sequence[Claim]) -> list[str]:
    named = papers_named(claim.where for claim in claims)
    return [_paragraph(f"{number}  {title}") for number, title in named.items()]


def _paragraph(text: str, initial: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=initial, subsequent_indent="    ", break_on_hyphens=False
    )
