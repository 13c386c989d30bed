"""What an experiment leaves in its folder: figure, records, settings, findings; and reading it."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from hessence._common.files import write_atomically
from hessence.papers.experiments.protocol import Experiment, Finding, Record
from hessence.papers.experiments.records import json_value, ordered_json
from hessence.papers.experiments.runner import Collected
from hessence.papers.page import Table

PACKAGES = ("hessence", "numpy", "scipy", "torch", "matplotlib", "scikit-learn")
FAILURES = "failures.txt"
FINDINGS = "findings.json"
"""Written last: the sign that a folder is complete."""
LOOK = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
}


def write_outputs(
    folder: Path,
    experiment: Experiment[Any],
    settings: Any,
    preset: str,
    seed: int,
    collected: Collected,
) -> list[Finding]:
    """Write everything about a finished run to a folder, and return the findings.

    If findings or a figure fail, the folder stays as it was.
    """
    found = list(experiment.findings(settings, collected.records))
    rendered = {
        name: _render(experiment.id, draw, settings, collected.records)
        for name, draw in experiment.pictures.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    # A folder without its findings is not taken for complete.
    for stale in (FAILURES, FINDINGS):
        (folder / stale).unlink(missing_ok=True)
    write_atomically(folder / "records.csv", as_csv(collected.records))
    changes = {
        field.name: getattr(settings, field.name)
        for field in dataclasses.fields(settings)
        if getattr(settings, field.name) != getattr(experiment.presets[preset], field.name)
    }
    described = {
        "experiment": experiment.id,
        "preset": preset,
        "changed": changes,
        "settings": dataclasses.asdict(settings),
        "seed": seed,
        "tasks": collected.tasks,
        "seconds": round(collected.seconds, 3),
        "versions": versions(),
    }
    write_atomically(folder / "settings.json", _pretty(described))
    for name, (png, svg) in rendered.items():
        write_atomically(folder / f"{name}.png", png)
        write_atomically(folder / f"{name}.svg", svg)
    stated = {
        "experiment": experiment.id,
        "title": experiment.title,
        "figures": experiment.figures,
        "shows": experiment.shows,
        "pictures": list(experiment.pictures),
        "findings": [dataclasses.asdict(finding) for finding in found],
    }
    write_atomically(folder / FINDINGS, _pretty(stated))
    return found


def as_csv(records: list[Record]) -> str:
    """Return records as a table; floats keep every bit, and lists become JSON text.

    Examples
    --------
    >>> print(as_csv([{"width": 2, "values": [0.5, 1.0]}, {"width": 3, "phase": "late"}]))
    width,values,phase
    2,"[0.5,1.0]",
    3,,late
    """
    stream = io.StringIO()
    columns = list(dict.fromkeys(name for record in records for name in record))
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        writer.writerow([_cell(record.get(name)) for name in columns])
    return stream.getvalue()


def versions() -> dict[str, str]:
    """Return the versions of everything that numbers may depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return ordered_json(value)
    return value if isinstance(value, str) else repr(value)


def _pretty(value: Any) -> str:
    return json.dumps(json_value(value), indent=1, ensure_ascii=False) + "\n"


def _render(name: str, draw: Any, settings: Any, records: list[Record]) -> tuple[bytes, bytes]:
    """Draw one figure as PNG and SVG; equal records make equal files."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**LOOK, "svg.hashsalt": name}):
        figure = Figure(figsize=(7.0, 4.2), layout="constrained")
        draw(settings, records, figure)
        files = []
        for kind, facts in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=150, metadata=facts)
            files.append(buffer.getvalue())
    return files[0], files[1]


class NothingToReportError(Exception):
    """No finished experiment in a folder; the text is one sentence for the user."""


@dataclass(frozen=True)
class Result:
    """A finished experiment, read from its folder."""

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
