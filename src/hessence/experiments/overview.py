"""One page of everything in an output folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessence.experiments.protocol import Finding
from hessence.report import Picture, Table, page

TITLE = "Hessence: the papers' figures"
Section = tuple[str, Table | Picture]


class NothingToReportError(Exception):
    """No finished experiment in a folder; the text is one sentence for the user."""


@dataclass(frozen=True)
class StoredPicture(Picture):
    """A picture that is a file already."""

    def to_png(self) -> bytes:
        """Return the file's content."""
        return Path(self.figure).read_bytes()


@dataclass(frozen=True)
class Result:
    """A finished experiment, as its folder tells it."""

    folder: Path
    stated: dict[str, Any]
    described: dict[str, Any]

    @property
    def findings(self) -> list[Finding]:
        """What the papers say, and what came out."""
        return [Finding(**finding) for finding in self.stated["findings"]]


def read_results(folder: Path) -> list[Result]:
    """Return the finished experiments of an output folder, in order of their ids."""
    results = []
    for path in sorted(folder.glob("*/findings.json")):
        try:
            stated = json.loads(path.read_text(encoding="utf-8"))
            described = json.loads((path.parent / "settings.json").read_text(encoding="utf-8"))
            result = Result(path.parent, stated, described)
            _ = result.findings
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise NothingToReportError(
                f"{path.parent} cannot be read; run its experiment again ({error})."
            ) from error
        results.append(result)
    if not results:
        raise NothingToReportError(
            f"there are no results in {folder}; hessence reproduce --out {folder} makes some."
        )
    return results


def overview_page(results: Sequence[Result], claims: Iterable[Section] = ()) -> str:
    """Return one self-contained HTML page.

    Parameters
    ----------
    results : sequence of Result
        What to show.
    claims : iterable of (heading, table)
        Sections that go between the overall findings and the experiments: the place for a table
        of all the papers' claims.
    """
    findings = [(result.stated["experiment"], f) for result in results for f in result.findings]
    sections: list[Section] = [("What the papers say, and what came out", _overall(findings))]
    sections += claims
    for result in results:
        sections += _sections(result)
    held = sum(finding.holds is True for _, finding in findings)
    failed = sum(finding.holds is False for _, finding in findings)
    lead = (
        f"{len(results)} experiment{'s' * (len(results) != 1)}, {len(findings)} claims: "
        f"{held} hold, {failed} do not, {len(findings) - held - failed} cannot be told from these "
        "settings."
    )
    return page(TITLE, lead, sections)


def findings_table(findings: Sequence[Finding]) -> Table:
    """Lay out what the papers say and what came out."""
    rows = [(f.claim, f.where, verdict(f), f.evidence) for f in findings]
    return Table(("what the papers say", "where", "holds", "what came out"), rows)


def verdict(finding: Finding) -> str:
    """Return yes, no, or that the settings cannot tell.

    Examples
    --------
    >>> verdict(Finding("the sky is blue", "000 §1", None, "looked at night"))
    'cannot tell'
    """
    return {True: "yes", False: "no", None: "cannot tell"}[finding.holds]


def _overall(findings: Sequence[tuple[str, Finding]]) -> Table:
    rows = [(name, f.claim, f.where, verdict(f)) for name, f in findings]
    return Table(("experiment", "what the papers say", "where", "holds"), rows)


def _sections(result: Result) -> list[Section]:
    title, name = result.stated["title"], result.stated["experiment"]
    settings = ", ".join(
        f"{key} = {_short(value)}" for key, value in result.described["settings"].items()
    )
    caption = (
        f"{', '.join(result.stated['figures'])}: {result.stated['shows']}. "
        f"Preset {result.described['preset']}, seed {result.described['seed']}: {settings}. "
        f"{result.described['tasks']} tasks, {result.described['seconds']:.1f} s."
    )
    sections: list[Section] = []
    for picture in result.stated["pictures"]:
        tail = "" if picture == "figure" else f" ({picture})"
        shown = StoredPicture(name, title + tail, caption, result.folder / f"{picture}.png")
        sections.append((f"{title}{tail}: {name}", shown))
    sections.append((f"What came out: {name}", findings_table(result.findings)))
    return sections


def _short(value: Any) -> str:
    if isinstance(value, list):
        text = ", ".join(map(str, value[:4])) + (", …" if len(value) > 4 else "")
        return f"({text})"
    return str(value)
