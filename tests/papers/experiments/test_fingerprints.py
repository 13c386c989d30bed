"""Which edits make earlier records void."""

import importlib.util
import sys

import pytest

from hessence.papers.experiments import fingerprints
from hessence.papers.experiments.catalogue import find_experiment
from hessence.papers.experiments.fingerprints import fingerprint
from hessence.papers.experiments.runner import run_key

SOURCE = '''
"""A file."""
import beside
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
def mark(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("def two():\n    return 2\n", encoding="utf-8")

    def mark(source):
        path = tmp_path / f"file{len(list(tmp_path.iterdir()))}.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.syspath_prepend(tmp_path)
        spec.loader.exec_module(module)
        return fingerprint(module.run, module.Settings)

    yield mark
    for name in [name for name in sys.modules if name.startswith(("file", "beside"))]:
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


def test_edits_of_imported_files_in_the_same_folder_count(mark, tmp_path):
    source = SOURCE.replace("return LIMIT", "return LIMIT + beside.two()")
    before, alone = mark(source), mark(SOURCE)
    (tmp_path / "beside.py").write_text("def two():\n    return 3\n", encoding="utf-8")
    assert mark(source) != before
    assert mark(SOURCE) == alone


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Let a small package stand for the library."""
    for name, text in {"a.py": "x = 1\n", "b/c.py": "", "b/figures/d.py": "", "e.txt": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(fingerprints, "ROOT", tmp_path)
    monkeypatch.setattr(fingerprints, "FIGURES", tmp_path / "b" / "figures")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "counts"),
    [("a.py", True), ("b/c.py", True), ("b/new.py", True), ("b/figures/d.py", False),
     ("e.txt", False)],
)  # fmt: skip
def test_every_file_of_the_library_counts(package, name, counts):
    digest = fingerprints.library.__wrapped__
    before = digest()
    (package / name).write_text("x = 2\n", encoding="utf-8")
    assert (digest() != before) == counts
    if counts:
        before = digest()
        (package / name).rename(package / "moved.py")
        assert digest() != before


def test_records_are_keyed_by_the_library(monkeypatch):
    experiment = find_experiment("relu-cells")
    settings = experiment.presets["tiny"]
    before = run_key(experiment, settings, 0)
    assert run_key(experiment, settings, 0) == before
    monkeypatch.setattr(fingerprints, "library", lambda: "another")
    assert run_key(experiment, settings, 0).code != before.code
