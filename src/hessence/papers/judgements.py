"""One record for each statement of the papers: its verdict, and every piece of evidence under it.

A piece of evidence is a check of the ledger, on networks small enough for their whole spectrum to
be compared, or a finding of an experiment, made now or recorded. One counterexample of any size
refutes a theorem or a formula, unless a condition rules it out: then it holds on that condition.
What a paper measured is decided by the largest run; if that cannot tell, nothing smaller does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hessence.papers.claims.ledger import HEADINGS, all_claims
from hessence.papers.claims.protocol import Claim
from hessence.papers.experiments.protocol import PRESETS, Finding
from hessence.papers.outcomes import word
from hessence.papers.page import Table
from hessence.papers.recorded import Run, recorded_runs

CHECK = "exact case"
REVISED = "Criterion changed after numbers were seen"
SIZES = (CHECK, *PRESETS)
"""What evidence is of, from small to large."""


@dataclass(frozen=True)
class Evidence:
    """What one check or one run says about a statement.

    Attributes
    ----------
    size : str
        ``"exact case"``, or the preset of the run.
    holds : bool or None
        Whether the statement came out; None if the run cannot tell.
    numbers, criterion : str
        What was found, and what was asked for before.
    condition : str or None
        On what the statement depends, if it holds on a condition.
    searched : str
        Which setting was searched for until the effect showed.
    made : str
        How and when the evidence was made.
    """

    size: str
    holds: bool | None
    numbers: str
    criterion: str
    condition: str | None = None
    searched: str = ""
    made: str = ""

    @property
    def word(self) -> str:
        """What it says, in a word or a few."""
        return word(self.holds, self.condition)

    @property
    def told(self) -> str:
        """All of it, as a short paragraph."""
        kind = self.size if self.size == CHECK else f"{self.size} run"
        made = f" ({self.made})" if self.made else ""
        asked = f" Asked for: {_ended(self.criterion)}" if self.criterion else ""
        searched = f" Searched for: {_ended(self.searched)}" if self.searched else ""
        return f"{kind}{made}: {self.word}. {_ended(self.numbers)}{asked}{searched}"


@dataclass(frozen=True)
class Judgement:
    """A statement, and all the evidence for and against it."""

    claim: Claim
    evidence: tuple[Evidence, ...]

    @property
    def deciding(self) -> Evidence | None:
        """The piece of evidence that decides, or None if none can."""
        pieces = self.evidence
        if self.claim.measured and pieces:
            largest = max(SIZES.index(piece.size) for piece in pieces)
            pieces = tuple(piece for piece in pieces if SIZES.index(piece.size) == largest)
        told = [piece for piece in pieces if piece.holds is not None]
        if not told:
            return None
        # A condition rules out failures elsewhere, but not one of the cases it admits.
        return min(told, key=lambda piece: (piece.condition is None, piece.holds))

    @property
    def word(self) -> str:
        """The verdict in a word or a few."""
        return word(self.holds, self.condition)

    @property
    def holds(self) -> bool | None:
        """The verdict."""
        return None if self.deciding is None else self.deciding.holds

    @property
    def condition(self) -> str | None:
        """On what the statement depends, if it holds on a condition."""
        return self.deciding.condition if self.deciding and self.holds else None

    @property
    def disagree(self) -> bool:
        """Whether some evidence is for the statement, without conditions, and other against it."""
        return {"holds", "fails"} <= {piece.word for piece in self.evidence}

    @property
    def told(self) -> list[str]:
        """The evidence in paragraphs, and why it differs where it does."""
        told = [piece.told for piece in self.evidence]
        if self.claim.differs:
            told.append(f"Why they differ: {_ended(self.claim.differs)}")
        if self.claim.revised:
            told.append(f"{REVISED}: {_ended(self.claim.revised)}")
        return told


def judge_claim(claim: Claim, runs: Iterable[Run] | None = None) -> Judgement:
    """Make a claim's check, and join it with what runs found (those recorded, by default)."""
    pieces = []
    if claim.check is not None:
        found = claim.check()
        pieces.append(
            Evidence(CHECK, found.holds, found.evidence, found.criterion, found.condition)
        )
    return Judgement(claim, (*pieces, *from_runs(claim.id, runs)))


def from_runs(name: str, runs: Iterable[Run] | None = None) -> tuple[Evidence, ...]:
    """Return what runs found about a statement."""
    return tuple(
        Evidence(run.preset, f.holds, f.evidence, f.criterion, f.condition, f.searched, run.told)
        for run in (recorded_runs() if runs is None else runs)
        for f in run.findings
        if name in f.ids
    )


def sentence(finding: Finding) -> tuple[str, str]:
    """Return what a finding is about, and where the papers say so.

    An experiment of one's own may have a sentence where the library's have the ledger's names.
    """
    claims = [all_claims()[name] for name in finding.ids if name in all_claims()]
    if not claims:
        return finding.id, ""
    return claims[0].says, "; ".join(claim.where for claim in claims)


def _ended(text: str) -> str:
    return text.rstrip(".") + "."


def findings_table(findings: Sequence[Finding]) -> Table:
    """Lay out what the papers say and what came out."""
    rows = [(*sentence(f), f.word, numbers(f)) for f in findings]
    return Table(("what the papers say", "where", "verdict", "what came out"), rows)


def numbers(finding: Finding) -> str:
    """Return what a finding goes by: the numbers, the criterion, and what was done to them."""
    told = [finding.evidence]
    told += [f"asked for: {finding.criterion}"] * bool(finding.criterion)
    told += [f"searched for: {finding.searched}"] * bool(finding.searched)
    claims = [all_claims()[name] for name in finding.ids if name in all_claims()]
    told += [f"{REVISED.lower()}: {claim.revised}" for claim in claims if claim.revised]
    return "; ".join(told)


def ledger_table(judged: Iterable[Judgement]) -> Table:
    """Lay out statements, verdicts and evidence, for a page."""
    rows = [(j.claim.id, j.claim.where, j.claim.says, j.word, "\n".join(j.told)) for j in judged]
    return Table(("claim", "where", "what it says", "verdict", "evidence"), rows)


def ledger_sections(judged: Iterable[Judgement]) -> list[tuple[str, Table]]:
    """Return the statements as sections of a page, one for each paper and one for mistakes."""
    groups: dict[str, list[Judgement]] = {}
    for judgement in judged:
        paper = judgement.claim.id.partition("-")[0]
        heading = HEADINGS.get(paper, f"What paper {paper} says")
        groups.setdefault(heading, []).append(judgement)
    return [(heading, ledger_table(entries)) for heading, entries in groups.items()]
