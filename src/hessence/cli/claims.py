"""``hessence claims``: every statement of the papers, judged."""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap
from collections.abc import Sequence
from typing import Any

from hessence.cli import CommandError
from hessence.papers import papers_named
from hessence.papers.claims.ledger import UnknownClaimError, all_claims, find_claim, one_thread
from hessence.papers.claims.protocol import Claim
from hessence.papers.judgements import Judgement, judge_claim

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
        judged = [judge_claim(claim) for claim in chosen]
    print(_as_json(judged) if options.json else _as_text(judged))
    return 0


def _as_json(judged: Sequence[Judgement]) -> str:
    entries = [
        {"id": j.claim.id, "where": j.claim.where, "says": j.claim.says, "check": j.claim.code,
         "verdict": j.word, "holds": j.holds, "condition": j.condition, "differs": j.claim.differs,
         "revised": j.claim.revised,
         "evidence": [dataclasses.asdict(piece) for piece in j.evidence]}
        for j in judged
    ]  # fmt: skip
    return json.dumps(entries, indent=2)


def _as_text(judged: Sequence[Judgement]) -> str:
    lines = []
    for j in judged:
        lines.append(f"{j.claim.id}  {j.word}")
        texts = (f"{j.claim.where}: {j.claim.says}", *j.told)
        lines += [_paragraph(text, initial="    ") for text in texts]
    lines += ["", *_papers([j.claim for j in judged])]
    whole = sum(j.word == "holds" for j in judged)
    partly = sum(j.condition is not None for j in judged)
    failing = sum(j.holds is False for j in judged)
    untold = len(judged) - whole - partly - failing
    lines.append(
        f"\n{len(judged)} claim{'s' * (len(judged) != 1)}: {whole} hold{'s' * (whole == 1)}, "
        f"{partly} on a condition, {failing} fail{'s' * (failing == 1)}"
        + (f", {untold} cannot be told." if untold else ".")
    )
    return "\n".join(lines)


def _papers(claims: Sequence[Claim]) -> list[str]:
    named = papers_named(claim.where for claim in claims)
    return [_paragraph(f"{number}  {title}") for number, title in named.items()]


def _paragraph(text: str, initial: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=initial, subsequent_indent="    ", break_on_hyphens=False
    )
