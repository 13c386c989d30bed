"""What an output folder holds: its finished experiments, and what came out of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessence.papers.experiments.protocol import Finding
from hessence.papers.page import Table


class NothingToReportError(Exception):
    """No finished experiment in a folder; the text is one sentence for the user."""


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
            for name in stated["pictures"]:
                _ = (path.parent / f"{name}.png").stat()
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
