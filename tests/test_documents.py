"""What the documents name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / name for name in ("src", "tests", "examples", "docs", "benchmarks")]
FILES = [f"/{path.relative_to(ROOT).as_posix()}" for f in FOLDERS for path in (f, *f.rglob("*"))]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_files_that_are_named_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", text))
    named |= set(re.findall(r"\]\(([\w/.-]+)\)", text)) - {"CONTRIBUTING.md"}
    missing = [path for path in named if not any(f.endswith(f"/{path.rstrip('/')}") for f in FILES)]
    assert named
    assert not missing
