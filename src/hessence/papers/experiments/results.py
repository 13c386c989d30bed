"""Reading what experiments left in their folders; whatever else is there is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessence._common.files import read_json, read_regular
from hessence._common.schema import fits
from hessence.papers.experiments.outputs import FINDINGS
from hessence.papers.experiments.protocol import PRESETS, Finding


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
DESCRIBED = {
    "preset": str,
    "changed": dict,
    "seed": int,
    "tasks": int,
    "seconds": float,
    "date": str,
    "machine": str,
}
FOUND = {
    "id": str,
    "holds": bool | None,
    "evidence": str,
    "criterion": str,
    "searched": str,
    "condition": str | None,
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
            f"there are no results in {folder}; hessence reproduce --all --out {folder} makes some."
        )
    return results


def _read_result(folder: Path) -> Result:
    """Read a folder, and refuse anything but what ``write_outputs`` puts there."""
    stated = read_json(_inside(folder, FINDINGS))
    described = read_json(_inside(folder, "settings.json"))
    findings = stated.get("findings") if isinstance(stated, dict) else None
    if not isinstance(findings, list) or not isinstance(described, dict):
        raise ValueError("findings or settings are missing")
    for finding in findings:
        if isinstance(finding, dict):
            finding.setdefault("condition", None)  # which earlier versions do not know
    parts: list[tuple[Any, dict[str, Any]]] = [(stated, STATED), (described, DESCRIBED)]
    for data, fields in (*parts, *((finding, FOUND) for finding in findings)):
        if not isinstance(data, dict) or not all(fits(data[name], fields[name]) for name in fields):
            raise ValueError(f"{', '.join(fields)} are not what they should be")
    if any(finding.keys() != FOUND.keys() for finding in findings):
        raise ValueError("a finding has other fields")
    names = [stated["figures"], stated["pictures"], stated["captions"]]
    if not all(isinstance(some, list) and all(isinstance(n, str) for n in some) for some in names):
        raise ValueError("figures, pictures and captions must be lists of texts")
    if not len(stated["captions"]) == len(stated["pictures"]) == len(set(stated["pictures"])):
        raise ValueError("every picture must be named once and have a caption")
    if described["preset"] not in PRESETS:
        raise ValueError("preset must be one of the presets")
    if not isinstance(described["settings"], dict):
        raise ValueError("settings must be a table")
    if not isinstance(described.setdefault("command", f"hessence reproduce {folder.name}"), str):
        raise ValueError("command must be a text")
    pictures = {name: read_regular(_inside(folder, f"{name}.png")) for name in stated["pictures"]}
    if not all(content.startswith(PNG) for content in pictures.values()):
        raise ValueError("a picture is no PNG")
    return Result(folder, stated, described, pictures)


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a file in the folder, there itself or by a link within the folder."""
    path = (folder / name).resolve()
    if Path(name).name != name or path.parent != folder.resolve():
        raise ValueError(f"{name!r} is not in the folder")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{name} has more than {LARGEST} bytes")
    return path
