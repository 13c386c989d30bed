"""``hessence spectrum``, run as a user runs it."""

import importlib.util
import json
import os
import pty
import subprocess
import sys

import pytest

import hessence as hs
from hessence.cli.main import main

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)


def exact():
    model = nn.Sequential(nn.Linear(3, 50, bias=False), nn.Linear(50, 2, bias=False)).double()
    return model, (torch.randn(30, 3).double(), torch.randn(30, 2).double()), nn.MSELoss()


def build():
    hidden = nn.Linear(3, 50), nn.Tanh(), nn.Linear(50, 20), nn.Tanh()
    model = nn.Sequential(*hidden, nn.Linear(20, 2))
    return model, (torch.randn(30, 3), torch.randn(30, 2)), nn.MSELoss()


def without_loss():
    return exact()[:2]


def dropout():
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
    return model, (torch.randn(30, 3), torch.randn(30, 4)), nn.MSELoss()


def broken():
    raise RuntimeError("no data today")


def mismatched():
    return nn.Linear(3, 2), (torch.randn(30, 5), torch.randn(30, 2)), nn.MSELoss()


def out_of_range():
    def loss(prediction, target):
        return prediction.sum() + [1.0, 2.0][len(target)]

    return nn.Linear(3, 2), (torch.randn(30, 3), torch.randn(30, 2)), loss


class Missing(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise FileNotFoundError(2, "No such file or directory", "images/0.png")


def missing():
    return nn.Linear(3, 2), Missing(), nn.MSELoss()


def wrong():
    return 5


def closure():
    model, data, loss = closures()
    return model, data[0], loss


def batches():
    return *closures()[:2], lambda prediction, target: prediction.sum()


def closures():
    torch.manual_seed(1)
    model, (x, y) = nn.Linear(3, 2).double(), torch.randn(2, 30, 3).double()

    def loss(model, batch):
        return ((model(batch[0]) - batch[1][:, :2]) ** 2).mean()

    return model, [(x[:20], y[:20]), (x[20:], y[20:])], loss
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "training.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def test_an_estimate(script, tmp_path, capsys):
    out = tmp_path / "deep" / "er"
    arguments = ["--out", str(out), "-k", "3", "--probes", "2", "--steps", "10"]
    assert main(["spectrum", f"{script}:build", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "3 of 1262 eigenvalues, estimated: Lanczos" in printed.out
    assert "no closed form: " in printed.out
    saved = hs.load(out / "spectrum.json")
    assert len(saved) == 3
    assert saved.density.nodes.shape == (2, 10)
    assert (out / "spectrum.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in out.iterdir()) == ["spectrum.json", "spectrum.png"]


def test_without_matplotlib(script, tmp_path, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    assert main(["spectrum", f"{script}:build", "--out", str(tmp_path / "out")]) == 2
    assert "pip install 'hessence[plot]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_exact_spectrum_as_json(script, tmp_path, capsys):
    assert main(["spectrum", f"{script}:exact", "--json", "--out", str(tmp_path / "out")]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["exact"]
    assert "TwoLayerLinear" in data["reason"]
    assert data == json.loads((tmp_path / "out" / "spectrum.json").read_text(encoding="utf-8"))
    assert len(hs.load(tmp_path / "out" / "spectrum.json")) == 250


def test_a_closure_on_several_batches(script, tmp_path, capsys):
    torch = pytest.importorskip("torch")
    command = ["spectrum", f"{script}:closures", "--out", str(tmp_path / "out")]
    assert main([*command, "--closure"]) == 2
    assert "reduction" in capsys.readouterr().err
    assert main([*command, "--closure", "--reduction", "mean", "-k", "all"]) == 0
    found = hs.load(tmp_path / "out" / "spectrum.json").eigenvalues
    torch.manual_seed(1)
    _, x = torch.nn.Linear(3, 2).double(), torch.randn(2, 30, 3).double()[0]
    inputs = torch.cat([x, torch.ones(30, 1)], dim=1)
    # The mean is over two outputs: a block x̃ x̃ᵀ for each of them.
    values = torch.linalg.eigvalsh(inputs.T @ inputs / 30).flip(0).repeat_interleave(2)
    assert found == pytest.approx(values.numpy())


def test_the_loss_may_be_left_out(script, tmp_path, capsys):
    assert main(["spectrum", f"{script}:without_loss", "--out", str(tmp_path / "out")]) == 0
    assert "narrow twin" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere.py:build", "there is no file 'nowhere.py'"),
        ("build", "the target must read SCRIPT.py:FUNCTION"),
        ("{script}:", "the target must read SCRIPT.py:FUNCTION"),
        ("{script}:biuld", "has no function biuld; near it: build"),
        ("{script}:dropout", "layer '1' (Dropout) drops values at random: call model.eval()"),
        ("{script}:dropout", "or pass eval_mode=True, which leaves the model as it is."),
        ("{script}:closure", "pass closure=True."),
        ("{script}:batches", "is over."),
        ("{script}:broken", "failed in line 29 of training.py: RuntimeError: no data today"),
        (
            "{script}:mismatched",
            "data: the model cannot be run on inputs of shape (n, 5) and",
        ),
        ("{script}:out_of_range", "IndexError in line 38 of training.py: list index out of range"),
        ("{script}:missing", "images/0.png"),
        ("{script}:wrong", "must return model, data and loss, got int"),
    ],
)
def test_mistakes_are_one_sentence(target, words, script, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["spectrum", target.format(script=script), "--out", str(out)]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-k", "0"], "k must be at least 1"),
        (["--probes", "0"], "probes must be at least 1"),
        (["--params", "decoder"], "no parameter matches 'decoder'"),
        (["--method", "exact"], "model has no exact spectrum here"),
        (["--memory", "-1"], "memory must be"),
        (["--tol", "-1"], "tol must be"),
    ],
)
def test_bad_options(options, words, script, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["spectrum", f"{script}:build", "--out", str(out), *options]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_a_count_that_is_none(script, capsys):
    with pytest.raises(SystemExit):
        main(["spectrum", f"{script}:build", "-k", "x"])
    assert "argument -k: must be a number or 'all', got 'x'" in capsys.readouterr().err


def test_all_eigenvalues(script, tmp_path, capsys):
    arguments = ["--out", str(tmp_path / "out"), "-k", "all"]
    assert main(["spectrum", f"{script}:build", *arguments]) == 0
    assert "1262 of 1262 eigenvalues, from the whole matrix" in capsys.readouterr().out


def test_what_a_script_prints_is_not_in_the_json(script, tmp_path, capsys):
    path = tmp_path / "loud.py"
    path.write_text(f"print('loading')\n{script.read_text(encoding='utf-8')}", encoding="utf-8")
    assert main(["spectrum", f"{path}:exact", "--json", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["exact"]
    assert printed.err == "loading\n"


def test_a_reader_that_has_seen_enough(script, tmp_path):
    command = [sys.executable, "-m", "hessence", "spectrum", f"{script}:exact", "--json"]
    command += ["--out", str(tmp_path / "out")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_a_script_that_does_not_run(tmp_path, capsys):
    path = tmp_path / "bad.py"
    path.write_text("import nothing_like_it\nbuild = nothing_like_it.make\n", encoding="utf-8")
    assert main(["spectrum", f"{path}:build"]) == 2
    assert "cannot be run: ModuleNotFoundError" in capsys.readouterr().err


def test_a_terminal_gets_a_progress_bar(script, tmp_path):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "hessence", "spectrum", f"{script}:build", "-k", "1"]
    command += ["--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=follower)
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait() == 0
    text = shown.decode()
    assert "density  [" in text
    assert "/" in text.partition("density  [")[2]
    assert text.endswith("\r\x1b[K")


def test_a_script_without_the_function_is_not_run(tmp_path, capsys):
    path, trace = tmp_path / "script.py", tmp_path / "ran"
    path.write_text(f"open({str(trace)!r}, 'w').close()\n\ndef building():\n    pass\n")
    assert main(["spectrum", f"{path}:build"]) == 2
    assert "has no function build; near it: building." in capsys.readouterr().err
    assert not trace.exists()


def test_a_function_that_is_made_by_other_means(tmp_path, capsys):
    path = tmp_path / "script.py"
    path.write_text("globals()['build'] = lambda: 1\n")
    assert main(["spectrum", f"{path}:build"]) == 2
    assert "must return model, data and loss, got int" in capsys.readouterr().err
