"""What an experiment leaves in its folder: figure, records, settings, findings."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import hashlib
import io
import json
import os
import platform
import re
import shlex
import textwrap
from importlib import metadata
from pathlib import Path
from typing import Any

from hessence._common.files import write_atomically
from hessence.papers.experiments.protocol import Experiment, Finding, Record
from hessence.papers.experiments.records import canonical_json, json_value, ordered_json
from hessence.papers.experiments.runner import Collected
from hessence.papers.experiments.settings import differences

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
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
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
        "captions": list(experiment.captions.values()),
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


def machine() -> str:
    """Return what computes, in a few words."""
    cores = os.cpu_count() or 1
    return f"{platform.machine()} with {cores} core{'s' * (cores != 1)}"


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
