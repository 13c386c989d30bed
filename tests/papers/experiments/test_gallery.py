"""The page of small pictures, as its script makes it."""

import importlib.util
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hessence.cli.main import main
from hessence.papers import PAPERS
from hessence.papers.claims.ledger import all_claims
from hessence.papers.experiments.catalogue import all_experiments, find_experiment
from hessence.papers.items import QUICK_ONLY, Item, all_items
from hessence.papers.judgements import Judgement, from_runs
from hessence.papers.recorded import recorded_runs
from tests.papers.experiments.runs import SLEEPER
from tests.papers.test_judgements import known_judgement, run_with

SCRIPT = Path(__file__).parents[3] / "docs" / "gallery.py"


@pytest.fixture
def gallery():
    spec = importlib.util.spec_from_file_location("gallery", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def home(gallery, tmp_path, monkeypatch):
    """Make the pages of one small run, and nothing recorded before."""
    monkeypatch.setattr(gallery, "recorded_runs", lambda: ())
    # Judging all statements takes half a minute, and is tested elsewhere.
    monkeypatch.setattr(gallery, "judge_claim", lambda c, runs: Judgement(c, from_runs(c.id, runs)))
    out, home = tmp_path / "out", tmp_path / "docs"
    main(["reproduce", "relu-cells", str(SLEEPER), "--preset", "tiny", "--out", str(out)])
    (home / "gallery").mkdir(parents=True)
    (home / "gallery" / "gone-figure.webp").write_bytes(b"old")
    gallery.main([out], home, tmp_path / "recorded.json")
    return home


def tables(page):
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    return [len(re.findall(r"(?<!\\)\|", line)) - 1 for line in rows]


def test_it_shows_every_picture_and_statement_of_the_library(gallery, home):
    page = (home / "gallery.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\(gallery/([^)]+)\)", page))
    assert shown == {path.name for path in (home / "gallery").iterdir()}
    pictures = find_experiment("relu-cells").pictures
    assert shown == {f"relu-cells-tiny-{name}.webp" for name in pictures}
    anchors = re.findall(r"\(#([^)]+)\)", page)
    assert anchors == [gallery.anchor(title) for title in re.findall(r"^## (.+)$", page, re.M)]
    wrong = sum(name.startswith("E-") for name in all_claims())
    columns = tables(page)
    assert columns == [5] * (len(columns) - 2 - wrong) + [3] * (2 + wrong)


def test_the_table_has_every_item(home):
    page = (home / "papers.md").read_text(encoding="utf-8")
    assert tables(page)[: len(all_items())] == [3] * len(all_items())
    assert all(f"| {item.name} |" in page for item in all_items())
    assert "| `hessence reproduce relu-cells --preset tiny` |" in page
    changed = page.partition("## Criteria changed after numbers were seen")[2]
    entries = re.findall(r"^\| `(\S+)` \|", changed.partition("## The runs")[0], re.M)
    assert entries == [claim.id for claim in all_claims().values() if claim.revised]
    missing = re.findall(r"reproduce (\S+) --preset paper` \| not made: needs [0-9.]+ ", page)
    assert missing == list(all_experiments())


def test_the_record_holds_the_runs_of_the_library(home):
    (run,) = json.loads((home.parent / "recorded.json").read_text(encoding="utf-8"))
    assert run["experiment"] == "relu-cells"
    assert run["preset"] == "tiny"
    assert all(found["evidence"] for found in run["findings"])


def test_pictures_keep_their_colours_and_are_of_one_scale(gallery):
    shade = np.linspace(0, 255, 900).round().astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(np.tile(shade[:, None], (6, 1, 3))).save(content, "PNG")
    small = np.asarray(Image.open(io.BytesIO(gallery.small(content.getvalue()))))
    assert small.shape == (4, 600, 3)
    assert np.array_equal(np.unique(small), np.arange(256))


def test_a_larger_run_of_the_same_kind_has_the_pictures(gallery):
    quick = run_with("quick", experiment="language-model-sinks")
    fewer = run_with("paper", experiment=quick.experiment, changed={"products": 40})
    other = run_with("paper", experiment=quick.experiment, changed={"checkpoint": "stories15M.bin"})
    assert gallery.outdone(quick, [quick, other, fewer])
    assert not gallery.outdone(quick, [quick, other])
    assert not gallery.outdone(fewer, [quick, other, fewer])


def test_of_pictures_that_are_the_same_one_is_kept(gallery, tmp_path):
    for name in ("run-map", "run-paper-map", "run-curve"):
        (tmp_path / f"{name}.webp").write_bytes(name[-3:].encode())
    gallery.drop_copies(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {"run-paper-map", "run-curve"}


def test_the_page_in_the_repository_is_whole(gallery):
    page = (SCRIPT.parent / "gallery.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\(gallery/([^)]+)\)", page))
    files = list((SCRIPT.parent / "gallery").iterdir())
    assert shown == {path.name for path in files}
    assert sum(path.stat().st_size for path in files) < 5_000_000


def test_the_table_in_the_repository_is_made_from_the_records(gallery):
    judged = {name: known_judgement(claim) for name, claim in all_claims().items()}
    page = (SCRIPT.parent / "papers.md").read_text(encoding="utf-8")
    assert page == gallery.joined(gallery.table(recorded_runs(), judged))


def test_a_run_at_the_papers_size_completes_what_quick_ones_leave_open(gallery):
    item = Item("000", "Figure 4", "000-trained", "sharpness-norms", QUICK_ONLY + "half the width")
    quick = run_with("quick", experiment="sharpness-norms")
    paper = run_with("paper", experiment="sharpness-norms")
    assert gallery.incomplete(item, [quick]).startswith("half the width; ")
    assert gallery.incomplete(item, [quick, paper]) == ""
    assert gallery.incomplete(replace(item, reason="never"), [quick, paper]) == "never"


def test_it_says_which_paper_is_which():
    page = (SCRIPT.parent / "gallery.md").read_text(encoding="utf-8")
    cited = set(re.findall(r"\b(\d{3}) (?:F|Fig|§|App)", page))
    assert cited <= PAPERS.keys()
    assert all(f"- {number}: {title}\n" in page for number, title in PAPERS.items())
