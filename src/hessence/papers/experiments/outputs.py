"""What an experiment leaves behind: a folder with its figure, records, settings and findings."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from hessence._common.files import write_atomically
from hessence.papers.experiments.plain import as_ordered_text, plain
from hessence.papers.experiments.protocol import Experiment, Finding, Record
from hessence.papers.experiments.runner import Collected

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
        return as_ordered_text(value)
    return value if isinstance(value, str) else repr(value)


def _pretty(value: Any) -> str:
    return json.dumps(plain(value), indent=1, ensure_ascii=False) + "\n"


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
