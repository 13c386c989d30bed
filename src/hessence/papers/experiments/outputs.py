"""What an experiment leaves in its folder: figure, records, settings, findings; and reading it."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import platform
import re
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from hessence._common.files import read_regular, write_atomically
from hessence._common.schema import fits
from hessence.papers.experiments.protocol import Experiment, Finding, Record
from hessence.papers.experiments.records import canonical_json, json_value, ordered_json
from hessence.papers.experiments.runner import Collected
from hessence.papers.experiments.settings import differences
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
    changes = differences(settings, experiment.presets[preset])
    note = f"with {', '.join(f'{n} = {v}' for n, v in changes.items())}" if changes else ""
    rendered = {
        name: _render(experiment.id, draw, settings, collected.records, note)
        for name, draw in experiment.pictures.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    # A folder without its findings is not taken for complete.
    for stale in (FAILURES, FINDINGS):
        (folder / stale).unlink(missing_ok=True)
    write_atomically(folder / "records.csv", as_csv(collected.records))
    described = {
        "experiment": experiment.id,
        "preset": preset,
        "changed": {name: getattr(settings, name) for name in changes},
        "command": command(experiment, changes, preset, seed),
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


def folder_name(experiment: Experiment[Any], settings: Any, preset: str) -> str:
    """Return the name of the folder for a run: changed settings have one of their own.

    It tells the changes; where a name cannot, a hash of them tells it from others.
    """
    changes = differences(settings, experiment.presets[preset])
    if not changes:
        return experiment.id
    told = ",".join(f"{name}={text}" for name, text in changes.items())
    name = re.sub(r"[^A-Za-z0-9=,._+-]", "_", told)[:80]
    digest = hashlib.sha256(canonical_json(changes).encode()).hexdigest()[:8]
    return f"{experiment.id}--{name}" + f"--{digest}" * (name != told)


def command(experiment: Experiment[Any], changes: dict[str, str], preset: str, seed: int) -> str:
    """Return the command that makes a run."""
    parts = ["hessence", "reproduce", experiment.source or experiment.id]
    parts += ["--preset", preset] if preset != "quick" else []
    parts += [part for name, text in changes.items() for part in ("--set", f"{name}={text}")]
    return shlex.join(parts + (["--seed", str(seed)] if seed else []))


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


def _render(
    name: str, draw: Any, settings: Any, records: list[Record], note: str
) -> tuple[bytes, bytes]:
    """Draw one figure as PNG and SVG, with a note of what was changed; equal ones are equal."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**LOOK, "svg.hashsalt": name}):
        figure = Figure(figsize=(7.0, 4.2), layout="constrained")
        draw(settings, records, figure)
        if note:
            lines = textwrap.wrap(note, 110)
            room = min(0.045 * len(lines) + 0.01, 0.3)
            engine: Any = figure.get_layout_engine()
            engine.set(rect=(0, room, 1, 1 - room))
            figure.text(0.01, 0.01, "\n".join(lines), fontsize=7, color="0.35", va="bottom")
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
    """A finished experiment, read from its folder: texts, numbers, pictures, nothing else."""

    folder: Path
    stated: dict[str, Any]
    described: dict[str, Any]
    pictures: dict[str, bytes]

    @property
    def findings(self) -> list[Finding]:
        """What the papers say, and what came out."""
        return [Finding(**finding) for finding in self.stated["findings"]]


STATED = {"experiment": str, "title": str, "shows": str}
DESCRIBED = {"preset": str, "seed": int, "tasks": int, "seconds": float}
FOUND = {
    "claim": str,
    "where": str,
    "holds": bool | None,
    "evidence": str,
    "id": str,
    "criterion": str,
    "searched": str,
}
PNG = b"\x89PNG\r\n\x1a\n"
LARGEST = 2**25
"""No file of a folder has more bytes."""


def read_results(folder: Path) -> list[Result]:
    """Return the finished experiments of an output folder, in order of their ids."""
    results = []
    for path in sorted(folder.glob("*/findings.json")):
        try:
            results.append(_read_result(path.parent))
        except (OSError, ValueError, KeyError, RecursionError) as error:
            raise NothingToReportError(
                f"{path.parent} cannot be read; run its experiment again ({str(error)[:200]})."
            ) from error
    if not results:
        raise NothingToReportError(
            f"there are no results in {folder}; hessence reproduce --out {folder} makes some."
        )
    return results


def _read_result(folder: Path) -> Result:
    """Read a folder, and refuse anything but what ``write_outputs`` puts there."""
    stated = json.loads(_inside(folder, FINDINGS))
    described = json.loads(_inside(folder, "settings.json"))
    findings = stated.get("findings") if isinstance(stated, dict) else None
    if not isinstance(findings, list) or not isinstance(described, dict):
        raise ValueError("findings or settings are missing")
    parts: list[tuple[Any, dict[str, Any]]] = [(stated, STATED), (described, DESCRIBED)]
    for data, fields in (*parts, *((finding, FOUND) for finding in findings)):
        if not isinstance(data, dict) or not all(fits(data[name], fields[name]) for name in fields):
            raise ValueError(f"{', '.join(fields)} are not what they should be")
    if any(finding.keys() != FOUND.keys() for finding in findings):
        raise ValueError("a finding has other fields")
    names = [stated["figures"], stated["pictures"]]
    if not all(isinstance(some, list) and all(isinstance(n, str) for n in some) for some in names):
        raise ValueError("figures and pictures must be lists of names")
    if not isinstance(described["settings"], dict):
        raise ValueError("settings must be a table")
    if not isinstance(described.setdefault("command", f"hessence reproduce {folder.name}"), str):
        raise ValueError("command must be a text")
    pictures = {name: _inside(folder, f"{name}.png") for name in stated["pictures"]}
    if not all(content.startswith(PNG) for content in pictures.values()):
        raise ValueError("a picture is no PNG")
    return Result(folder, stated, described, pictures)


def _inside(folder: Path, name: str) -> bytes:
    """Read a file that lies in the folder, under its own name or by a link within the folder."""
    path = (folder / name).resolve()
    if Path(name).name != name or path.parent != folder.resolve():
        raise ValueError(f"{name!r} is not in the folder")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{name} has more than {LARGEST} bytes")
    return read_regular(path)


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
