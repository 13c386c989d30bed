"""Which edits make earlier records void."""

import ast
import importlib.util
import sys

import pytest

from hessence.papers.experiments import fingerprints
from hessence.papers.experiments.fingerprints import fingerprint

SOURCE = '''
"""A file."""
from hessence.papers.experiments.records import json_value
LIMIT = 3

class Settings:
    width = 1
    depth: int = 2

    @property
    def double(self):
        return 2 * self.width

def run(settings: Settings, task, rng):
    """Run."""
    return helper(task)

def helper(task):
    return LIMIT  # three

def draw():
    return 1
'''


@pytest.fixture
def mark(tmp_path):
    def mark(source):
        path = tmp_path / f"file{len(list(tmp_path.iterdir()))}.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return fingerprint(module.run, module.Settings)

    yield mark
    for name in [name for name in sys.modules if name.startswith("file")]:
        if getattr(sys.modules[name], "__file__", "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("2 * self.width", "5 * self.width"),
        ("return LIMIT", "return LIMIT + 1"),
        ("return helper(task)", "return json_value(helper(task))"),
        (
            "return helper(task)",
            "from hessence.papers import page\n    return helper(task)",
        ),
    ],
)
def test_edits_of_what_runs_count(mark, old, new):
    assert mark(SOURCE) != mark(SOURCE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# three", "# 3"),
        ('"""Run."""', '"""Run it."""'),
        ("return 1", "return 2"),
        ("width = 1", "width = 2"),
        ("depth: int = 2", "depth: float = 3"),
        ("return LIMIT ", "return (\n        LIMIT\n    ) "),
    ],
)
def test_comments_layout_drawing_and_defaults_do_not(mark, old, new):
    assert mark(SOURCE) == mark(SOURCE.replace(old, new))


def test_edits_of_modules_imported_from_a_package_count(mark, monkeypatch):
    line = "from hessence.papers.experiments.shared import correlations\n    return helper(task)"
    source = SOURCE.replace("return helper(task)", line)
    before, read = mark(source), fingerprints._stripped

    def edited(path):
        return ast.parse("edit = 1") if path.name == "correlations.py" else read(path)

    monkeypatch.setattr(fingerprints, "_stripped", edited)
    assert mark(source) != before
