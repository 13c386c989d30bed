"""``hessence reproduce`` and ``hessence report``, as users call them."""

import base64
import dataclasses
import html
import json
import os
import pty
import re
import shlex
import sqlite3
import subprocess
import sys

import pytest

from hessence._common.files import write_atomically
from hessence.cli import report
from hessence.cli.main import main
from hessence.papers import PAPERS
from hessence.papers.claims import Claim, Verdict
from hessence.papers.experiments import outputs
from hessence.papers.experiments.catalogue import all_experiments, find_experiment
from hessence.papers.experiments.settings import text_of
from hessence.papers.experiments.store import Store
from tests.papers.experiments.runs import SLEEPER

MISTAKES = [
    (["relu-cell"], "there is no experiment relu-cell; near it: relu-cells, "),
    (["relu-cells", "nonsense"], "there is no experiment nonsense; near it: "),
    (["no/such/file.py"], "there is no file "),
    ([], "name experiments, or say --all; "),
    (["relu-cells", "--all"], "name experiments, or say --all, not both; "),
    (["relu-cells", "--preset", "papre"], "there is no preset papre; there are quick and paper."),
    (["relu-cells", "--set", "widht=3"], "there is no setting widht; near it: width, "),
    (["relu-cells", "--set", "width=x"], "width must be a whole number, got 'x'."),
    (["relu-cells", "--set", "positive=11"], "positive must be at most the width, 10."),
    (["relu-cells", "--set", "noise=-1"], "noise must be at least 0, got '-1'."),
    (["relu-cells", "--set", "shares=0.5,0.5"], "relu-cells: these settings make two tasks the "),
    (["relu-cells", "--set", "width"], "--set must read FIELD=VALUE, got 'width'."),
    (["relu-cells", "--set", "a.width=3"], "a is not among these experiments; relu-cells "),
    (["relu-cells", "--seed", "-1"], "seed must be between 0 and "),
    (["relu-cells", "--seed", "99999999999999999999"], "seed must be between 0 and "),
    (["relu-cells", "--jobs", "0"], "jobs must be between 1 and "),
    (["relu-cells", "--jobs", "2", "--cluster", "local:2"], "give either --jobs or --cluster."),
    (["relu-cells", "--cluster", "local:x"], "cluster must read local:N or be a scheduler's"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES)
def test_mistakes_end_in_one_sentence_and_nothing_written(arguments, sentence, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["reproduce", *arguments, "--out", str(out)]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"hessence: {sentence}")
    assert errors.count("\n") == 1
    assert not out.exists()


def test_a_file_that_is_no_experiment(tmp_path, capsys):
    (tmp_path / "empty.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    for name, sentence in (
        ("empty", "does not define EXPERIMENT"),
        ("broken", "ZeroDivisionError"),
    ):
        assert main(["reproduce", str(tmp_path / f"{name}.py"), "--out", str(tmp_path / "o")]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("here first")
    assert main(["reproduce", "relu-cells", "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith("hessence: cannot write to ")


def test_the_list_names_everything(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["reproduce", "--list"]) == 0
    printed = capsys.readouterr().out
    for experiment in all_experiments().values():
        assert experiment.id in printed
        assert experiment.shows in printed
    assert "tiny" not in printed
    assert f"000  {PAPERS['000']}" in printed


@pytest.mark.parametrize("columns", [60, 100])
def test_the_list_is_as_wide_as_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["reproduce", "--list"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= columns
    running = " ".join(printed.split())
    for experiment in all_experiments().values():
        assert f"\n{experiment.id} " in f"\n{printed}"
        assert experiment.shows in running
        assert ", ".join(experiment.figures) in running


def test_a_list_that_fits_is_a_table(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    main(["reproduce", "--list"])
    table = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "1000")
    main(["reproduce", "--list"])
    assert capsys.readouterr().out == table


def test_settings_for_one_of_several(tmp_path, capsys):
    arguments = ["relu-cells", str(SLEEPER), "--preset", "tiny", "--set", "sleeper.tasks=3"]
    assert main(["reproduce", *arguments, "--out", str(tmp_path)]) == 0
    assert "sleeper: 3 tasks" in capsys.readouterr().err
    folder = tmp_path / "sleeper--tasks=3"
    assert len((folder / "records.csv").read_text().splitlines()) == 4


def test_failing_tasks_are_told_and_written_down(tmp_path, capsys):
    arguments = ["reproduce", str(SLEEPER), "--preset", "tiny", "--out", str(tmp_path)]
    assert main([*arguments, "--set", "broken=1"]) == 1
    told = capsys.readouterr().err
    assert "1 of 2 tasks failed, the first, {'draw': 1}: ArithmeticError: " in told
    failures = tmp_path / "sleeper--broken=1" / "failures.txt"
    assert told.rstrip().endswith(f"; see {failures}.")
    assert "Traceback" in failures.read_text()
    assert main(arguments) == 0
    assert not (tmp_path / "sleeper" / "failures.txt").exists()


def test_a_full_disk(tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Store, "write", fail)
    assert main(["reproduce", str(SLEEPER), "--preset", "tiny", "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"hessence: cannot write to {tmp_path}: database or disk is full; what")


def test_a_run_that_is_stopped_while_writing_is_not_reported(tmp_path, capsys, monkeypatch):
    arguments = ["reproduce", str(SLEEPER), "--preset", "tiny", "--out", str(tmp_path)]
    assert main(arguments) == 0

    def stop(path, content):
        if path.suffix == ".svg":
            raise KeyboardInterrupt
        write_atomically(path, content)

    monkeypatch.setattr(outputs, "write_atomically", stop)
    assert main(arguments) == 130
    assert main(["report", str(tmp_path), "--no-claims"]) == 2
    told = capsys.readouterr().err
    assert "there are no results in" in told
    assert "reproduce --all --out" in told


def test_a_report_without_a_picture(tmp_path, capsys):
    main(["reproduce", str(SLEEPER), "--preset", "tiny", "--out", str(tmp_path)])
    (tmp_path / "sleeper" / "figure.png").unlink()
    assert main(["report", str(tmp_path), "--no-claims"]) == 2
    assert "sleeper cannot be read; run its experiment again" in capsys.readouterr().err


def test_two_files_of_one_name(tmp_path, capsys):
    source = SLEEPER.read_text(encoding="utf-8")
    paths = [tmp_path / folder / "mine.py" for folder in ("a", "b")]
    for path, name in zip(paths, ("sleeper", "dreamer"), strict=True):
        path.parent.mkdir()
        path.write_text(source.replace('id="sleeper"', f'id="{name}"'), encoding="utf-8")
    arguments = [*map(str, paths), "--preset", "tiny", "--set", "tasks=3"]
    assert main(["reproduce", *arguments, "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "sleeper--tasks=3",
        "dreamer--tasks=3",
    }
    assert main(["reproduce", str(SLEEPER), *arguments, "--out", str(tmp_path / "other")]) == 2
    assert "two of these experiments have the id sleeper" in capsys.readouterr().err


def test_a_figure_that_fails_leaves_the_folder_as_it_was(tmp_path, capsys):
    source = SLEEPER.read_text(encoding="utf-8")
    script = tmp_path / "slow.py"
    script.write_text(source, encoding="utf-8")
    arguments = ["reproduce", str(script), "--preset", "tiny", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    folder = tmp_path / "out" / "sleeper"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    other = tmp_path / "slower.py"
    other.write_text(source.replace("def draw(", "def draw(*a): 1 / 0\n\n\ndef undrawn("))
    assert main(["reproduce", str(other), *arguments[2:]]) == 1
    told = capsys.readouterr().err
    assert "there is no figure: ZeroDivisionError('division by zero'); see " in told
    assert "Traceback" in (folder / "failures.txt").read_text(encoding="utf-8")
    (folder / "failures.txt").unlink()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_report_stands_alone(tmp_path, capsys):
    names = ("relu-cells", str(SLEEPER))
    assert main(["reproduce", *names, "--preset", "tiny", "--out", str(tmp_path)]) == 0
    assert main(["report", str(tmp_path), "--no-claims"]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    pictures = [
        base64.b64decode(p) for p in re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    ]
    files = sorted(path.read_bytes() for path in tmp_path.glob("*/*.png"))
    assert sorted(pictures) == files
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert set(re.findall(r'href="#([^"]+)"', page)) == set(re.findall(r'<h2 id="([^"]+)"', page))
    for name in names:
        shows = find_experiment(name).shows
        assert shows[:1].upper() + shows[1:] in page
    for number, title in PAPERS.items():
        assert f"<b>{number}</b> {html.escape(title)}<" in page


def test_the_report_tells_every_claim(tmp_path, monkeypatch, capsys):
    def needs_torch():
        raise ImportError("hessence.spectrum needs PyTorch: pip install 'hessence[torch]'.")

    claims = {
        "000-A": Claim("000-A", "000 §1", "a < b", lambda: Verdict(True, None, "as it is")),
        "001-B": Claim("001-B", "001 §1", "all m", lambda: Verdict(True, "m ≥ 2", "not at 1")),
        "E-C": Claim("E-C", "000 eq 3", "misprinted", lambda: Verdict(False, None, "off by 2")),
        "002-D": Claim("002-D", "002 §4", "of models", needs_torch),
    }
    monkeypatch.setattr(report, "all_claims", lambda: claims)
    main(["reproduce", str(SLEEPER), "--preset", "tiny", "--out", str(tmp_path)])
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr><td>(000-A|001-B|E-C|002-D)</td>(.+?)</tr>", page)
    shown = {name: re.findall(r'class="verdict (\w+)">([^<]+)<', row) for name, row in rows}
    assert shown == {
        "000-A": [("good", "holds")],
        "001-B": [("partly", "holds if m ≥ 2")],
        "E-C": [("bad", "fails")],
        "002-D": [("open", "not judged")],
    }
    assert "a &lt; b" in page
    assert "needs PyTorch" in dict(rows)["002-D"]
    assert "1 hold, 1 hold on a condition, 1 fail. 1 could not be judged here." in page
    assert main(["report", str(tmp_path), "--no-claims"]) == 0
    assert "000-A" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_report_of_nothing(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "there are no results in" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_report_of_a_damaged_folder(tmp_path, capsys):
    (tmp_path / "relu-cells").mkdir()
    (tmp_path / "relu-cells" / "findings.json").write_text("{", encoding="utf-8")
    assert main(["report", str(tmp_path)]) == 2
    assert "run its experiment again" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        lambda stated: stated.update(title="\ud800"),
        lambda stated: stated["findings"][0].update(evidence="\udfff"),
        lambda stated: stated.update(pictures=["figure"] * 2, captions=["one", "two"]),
    ],
)
def test_a_report_of_data_that_make_no_page(tmp_path, capsys, change):
    run = ["reproduce", str(SLEEPER), "--set", "tasks=1", "--out", str(tmp_path)]
    assert main(run) == 0
    (path,) = tmp_path.glob("*/findings.json")
    stated = json.loads(path.read_text(encoding="utf-8"))
    change(stated)
    path.write_text(json.dumps(stated))
    capsys.readouterr()
    assert main(["report", "--no-claims", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"hessence: {path.parent} cannot be read")
    assert told.count("\n") == 1


def test_a_terminal_gets_a_bar_with_the_time_left(tmp_path):
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "hessence", "reproduce", str(SLEEPER), "--out", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--set", "seconds=0.15"], stdout=subprocess.DEVNULL, stderr=slave
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    assert process.wait() == 0
    text = shown.decode()
    assert re.search(r"sleeper  \[█+ +\] \d+/12 tasks, 0:0\d left", text)
    assert text.endswith("\r\x1b[K")


def test_changed_settings_have_a_folder_of_their_own_and_say_so(tmp_path, capsys):
    arguments = ["reproduce", str(SLEEPER), "--preset", "tiny", "--out", str(tmp_path)]
    assert main(arguments) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "sleeper").iterdir()}
    assert main([*arguments, "--set", "tasks=3", "--seed", "7"]) == 0
    assert {path: path.read_bytes() for path in (tmp_path / "sleeper").iterdir()} == before
    folder = tmp_path / "sleeper--tasks=3"
    assert "with tasks = 3" in (folder / "figure.svg").read_text(encoding="utf-8")
    assert "with tasks" not in (tmp_path / "sleeper" / "figure.svg").read_text(encoding="utf-8")
    where = shlex.quote(str(SLEEPER))
    command = f"hessence reproduce {where} --preset tiny --set tasks=3 --seed 7"
    assert json.loads((folder / "settings.json").read_text())["command"] == command
    assert main(["report", str(tmp_path), "--no-claims"]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"<code>{html.escape(command)}</code>" in page
    assert page.count("with tasks = 3") == 2
    # What a name cannot tell is told from others by a hash; a value of the preset is no change.
    changes = ["--set", f"diary={tmp_path}/a", "--set", "tasks=2"]
    (tmp_path / "a").mkdir()
    assert main([*arguments, *changes]) == 0
    (named,) = (path.name for path in tmp_path.glob("sleeper--diary*"))
    assert re.fullmatch(r"sleeper--diary=[\w.+,=-]+--[0-9a-f]{8}", named)


@pytest.mark.parametrize("arguments", [["--list", "relu-cells"], ["relu-cells", "--help"]])
def test_fields_that_can_be_set_are_shown(arguments, capsys):
    assert main(["reproduce", *arguments]) == 0
    shown = capsys.readouterr().out
    settings = find_experiment("relu-cells").presets["quick"]
    for field in dataclasses.fields(settings):
        value = re.escape(text_of(getattr(settings, field.name)))
        assert re.search(rf"^{field.name} .*{value}", shown, re.MULTILINE)
    assert "whole number, at least" in shown


def test_help_without_an_experiment_is_about_the_command(capsys):
    assert main(["reproduce", "--help"]) == 0
    assert "usage: hessence reproduce" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--jobs", "1000000000"], ["--cluster", "local:1000000"]])
def test_workers_have_a_limit(option, tmp_path, capsys):
    arguments = ["reproduce", "relu-cells", *option, "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert re.search(r"must be (between 1 and|local:)", capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def damaged(folder, name, change):
    """Change a file of a folder of results."""
    path = folder / name
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


OTHERS = {
    "picture elsewhere": ("findings.json", lambda d: d.update(pictures=["../secret"])),
    "picture by a path": ("findings.json", lambda d: d.update(pictures=["/etc/passwd"])),
    "picture no picture": ("findings.json", lambda d: d.update(pictures=["fake"])),
    "pictures no list": ("findings.json", lambda d: d.update(pictures="figure")),
    "findings no list": ("findings.json", lambda d: d.update(findings={})),
    "finding with more": ("findings.json", lambda d: d["findings"][0].update(code="x")),
    "finding no text": ("findings.json", lambda d: d["findings"][0].update(claim=[1])),
    "title no text": ("findings.json", lambda d: d.update(title={"a": 1})),
    "title missing": ("findings.json", lambda d: d.pop("title")),
    "seconds no number": ("settings.json", lambda d: d.update(seconds="long")),
    "seconds too long": ("settings.json", lambda d: d.update(seconds=10**400)),
    "settings no table": ("settings.json", lambda d: d.update(settings=[1])),
    "command no text": ("settings.json", lambda d: d.update(command=["rm"])),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_folder_of_results_is_data(what, tmp_path, capsys):
    main(["reproduce", str(SLEEPER), "--preset", "tiny", "--out", str(tmp_path)])
    folder = tmp_path / "sleeper"
    (tmp_path / "secret.png").write_bytes((folder / "figure.png").read_bytes())
    (folder / "fake.png").write_bytes(b"no picture")
    damaged(folder, *OTHERS[what])
    capsys.readouterr()
    assert main(["report", str(tmp_path), "--no-claims"]) == 2
    assert re.fullmatch(r"hessence: .*sleeper cannot be read; .*\n", capsys.readouterr().err)


def test_a_picture_that_is_a_link_out_of_the_folder(tmp_path, capsys):
    main(["reproduce", str(SLEEPER), "--preset", "tiny", "--out", str(tmp_path)])
    picture = tmp_path / "sleeper" / "figure.png"
    picture.rename(tmp_path / "elsewhere.png")
    picture.symlink_to(tmp_path / "elsewhere.png")
    assert main(["report", str(tmp_path), "--no-claims"]) == 2
    assert "is not in the folder" in capsys.readouterr().err
