"""Collecting the claims, and laying out their verdicts."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib import import_module

from hessence import claims
from hessence.claims.protocol import Claim, Verdict
from hessence.experiments.options import nearest
from hessence.report import Table

Judged = tuple[Claim, Verdict]


class UnknownClaimError(LookupError):
    """No claim of that name; the text is one sentence for the user."""


@cache
def all_claims() -> dict[str, Claim]:
    """Return the claims by their ids, paper by paper, in the papers' order."""
    found: dict[str, Claim] = {}
    modules = [module.name for module in pkgutil.iter_modules(claims.__path__)]
    for name in sorted(modules, key=lambda name: (not name.startswith("paper_"), name)):
        for claim in getattr(import_module(f"{claims.__name__}.{name}"), "CLAIMS", ()):
            if claim.id in found:
                raise ValueError(f"two claims have the id {claim.id}.")
            found[claim.id] = claim
    return found


def find_claim(name: str) -> Claim:
    """Return a claim by its id.

    Examples
    --------
    >>> find_claim("000-T3.1").where
    '000 Theorem 3.1, eq 1'
    >>> find_claim("000-T31")
    Traceback (most recent call last):
        ...
    hessence.claims.ledger.UnknownClaimError: there is no claim 000-T31; near it: 000-T3.1, ...
    """
    known = all_claims()
    if name not in known:
        raise UnknownClaimError(f"there is no claim {name}; near it: {nearest(name, known)}.")
    return known[name]


def ledger_table(judged: Iterable[Judged]) -> Table:
    """Lay out claims and verdicts, for a terminal or a page."""
    rows = [(c.id, c.where, c.says, v.word, v.evidence) for c, v in judged]
    return Table(("claim", "where", "what it says", "verdict", "evidence"), rows)


def ledger_sections(judged: Iterable[Judged]) -> list[tuple[str, Table]]:
    """Return the claims as sections of a page, one for each paper and one for mistakes."""
    groups: dict[str, list[Judged]] = {}
    for claim, verdict in judged:
        paper = claim.id.partition("-")[0]
        heading = "Mistakes in the papers" if paper == "E" else f"What paper {paper} says"
        groups.setdefault(heading, []).append((claim, verdict))
    return [(heading, ledger_table(entries)) for heading, entries in groups.items()]
