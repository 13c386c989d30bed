"""The page of small pictures, as its script makes it."""

import importlib.util
import re
from pathlib import Path

import pytest

from hessence.cli.main import main
from hessence.papers import PAPERS
from hessence.papers.claims.ledger import all_claims
from tests.papers.experiments.runs import SLEEPER

SCRIPT = Path(__file__).parents[3] / "docs" / "gallery.py"


@pytest.fixture
def gallery():
    spec = importlib.util.spec_from_file_location("gallery", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_shows_every_picture_and_statement(gallery, tmp_path):
    out, home = tmp_path / "out", tmp_path / "docs"
    main(["reproduce", "relu-cells", str(SLEEPER), "--preset", "tiny", "--out", str(out)])
    (home / "gallery").mkdir(parents=True)
    (home / "gallery" / "gone-figure.png").write_bytes(b"old")
    gallery.main(out, home)
    page = (home / "gallery.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\(gallery/([^)]+)\)", page))
    assert shown == {path.name for path in (home / "gallery").iterdir()}
    assert shown == {"relu-cells-figure.png", "sleeper-figure.png"}
    assert all(path.stat().st_size <= 60_000 for path in (home / "gallery").iterdir())
    anchors = re.findall(r"\(#([^)]+)\)", page)
    assert anchors == [gallery.anchor(title) for title in re.findall(r"^## (.+)$", page, re.M)]
    table = [line for line in page.splitlines() if line.startswith("| ")]
    columns = [len(re.findall(r"(?<!\\)\|", line)) - 1 for line in table]
    wrong = sum(name.startswith("E-") for name in all_claims())
    assert columns == [4] * (len(table) - 1 - wrong) + [3] * (1 + wrong)


def test_the_page_in_the_repository_is_whole(gallery):
    page = (SCRIPT.parent / "gallery.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\(gallery/([^)]+)\)", page))
    files = list((SCRIPT.parent / "gallery").iterdir())
    assert shown == {path.name for path in files}
    assert sum(path.stat().st_size for path in files) < 2_000_000


def test_it_says_which_paper_is_which(gallery, tmp_path):
    page = (SCRIPT.parent / "gallery.md").read_text(encoding="utf-8")
    cited = set(re.findall(r"\b(\d{3}) (?:F|Fig|§|App)", page))
    assert cited <= PAPERS.keys()
    assert all(f"- {number}: {title}\n" in page for number, title in PAPERS.items())
    # The page in the repository begins as the script would have it.
    out, home = tmp_path / "out", tmp_path / "docs"
    main(["reproduce", "relu-cells", "--preset", "tiny", "--out", str(out)])
    home.mkdir()
    gallery.main(out, home)
    made = (home / "gallery.md").read_text(encoding="utf-8").replace("`tiny`", "`quick`")
    assert page.partition("- [")[0] == made.partition("- [")[0]
