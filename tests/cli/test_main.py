"""The command line, run as a user runs it."""

import json
import os
import shlex
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from hessence.cli.main import main


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "hessence", "demo", "--json", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return folder, json.loads(done.stdout), done.stderr


def test_demo_table_is_exact(demo):
    _, rows, errors = demo
    assert errors == ""
    assert {row["method"] for row in rows} >= {"closed form", "narrow twin", "coupled block"}
    for row in rows:
        if row["parameters"] <= 400:
            assert row["autodiff_deviation"] < 1e-12
        # Of a large PyTorch model, products do not tell the trace and the norm.
        defects = [row[name] for name in ("trace_defect", "norm_defect") if row[name] is not None]
        assert len(defects) == 2 or row["method"] == "dual"
        assert max([row["residual"], *defects]) < 1e-12


def test_demo_page_stands_alone(demo):
    folder, _, _ = demo

    class Sources(HTMLParser):
        found = ()

        def handle_starttag(self, tag, attrs):
            self.found += tuple(v for k, v in attrs if k in ("src", "href"))

    parser = Sources()
    parser.feed((folder / "index.html").read_text(encoding="utf-8"))
    pictures = sorted(path.name for path in folder.glob("*.png"))
    assert len(parser.found) == len(pictures) >= 3
    assert all(source.startswith("data:image/png;base64,") for source in parser.found)


@pytest.mark.parametrize("nested", [False, True])
def test_demo_refuses_a_folder_it_cannot_write(tmp_path, capsys, nested):
    blocker = tmp_path / "file"
    blocker.write_text("here first")
    target = blocker / "deeper" if nested else blocker
    assert main(["demo", "--out", str(target)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"hessence: cannot write to {target}")
    assert captured.err.count("\n") == 1
    assert blocker.read_text() == "here first"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_demo_refuses_a_read_only_folder(tmp_path, capsys):
    tmp_path.chmod(0o500)
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "beginning"),
    [
        ([], "hessence: error: the following arguments are required: COMMAND"),
        (["dance"], "hessence: error: argument COMMAND: invalid choice: 'dance'"),
        (["demo", "--colour"], "hessence: error: unrecognized arguments: --colour"),
        (["spectrum", "a.py:b", "-k", "abc"], "hessence spectrum: error: argument -k: must be a"),
        (["spectrum", "a.py:b", "--which", "XX"], "hessence spectrum: error: argument --which: "),
        (["reproduce", "--jobs", "two"], "hessence reproduce: error: argument --jobs: invalid"),
    ],
)
def test_a_line_that_cannot_be_read_is_told_in_one(arguments, beginning, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    told = capsys.readouterr().err
    assert told.startswith(beginning)
    assert told.endswith(" --help.\n")
    assert told.count("\n") == 1


LIST = [sys.executable, "-m", "hessence", "reproduce", "--list"]


def test_terminals_without_our_letters():
    plain = {
        **os.environ,
        "LANG": "C",
        "LC_ALL": "C",
        "PYTHONIOENCODING": "ascii",
        "PYTHONUTF8": "0",
    }
    done = subprocess.run(LIST, capture_output=True, env=plain, check=True)
    assert done.stdout.isascii()
    assert b"relu-cells" in done.stdout
    command = [sys.executable, "-m", "hessence", "reproduce", "λ"]
    done = subprocess.run(command, capture_output=True, env=plain, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"hessence: ")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["2>&-", "2>&- <&-", "2>/dev/full"])
def test_a_closed_standard_error(tmp_path, closed):
    run = [*LIST[:4], "relu-cells", "--preset", "tiny", "--out", str(tmp_path)]
    command = f"{shlex.join(run)} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    assert b"Figure, records and settings" in done.stdout
    assert (tmp_path / "relu-cells" / "findings.json").exists()
    command = f"{shlex.join([*LIST[:4], 'nothing'])} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--list"], ["relu-cells", "--help"]])
def test_output_that_nobody_takes(arguments, unbuffered):
    """Little of it is only written at the end, when Python itself would complain."""
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    command = shlex.join([*LIST[:4], *arguments])
    for end, code, said in (("| true", 0, b""), ("> /dev/full", 2, b"hessence: cannot write to ")):
        # The shell tells the code of the command, not that of its reader.
        script = f"set -o pipefail; {command} {end}"
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, env=environment, check=False
        )
        assert done.returncode == code
        assert done.stderr.startswith(said)
        assert done.stderr.count(b"\n") == bool(said)
        assert b"standard output" in done.stderr or not said


def test_the_help_of_spectrum_says_that_it_runs_the_script(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["spectrum", "--help"])
    assert "Runs SCRIPT.py, as python would" in " ".join(capsys.readouterr().out.split())
