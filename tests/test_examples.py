"""Every example runs and ends in its own assertions."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_data_parallel():
    script = str(EXAMPLES / "data_parallel.py")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    together, alone = run(*launcher, script), run(script)
    assert together.splitlines()[0] == alone.splitlines()[0]
    assert together.startswith("5 of 1123 eigenvalues, estimated")


def test_small_transformer(tmp_path):
    pytest.importorskip("matplotlib")
    script = EXAMPLES / "small_transformer.py"
    options = ("-k", "2", "--probes", "1", "--steps", "4", "--out", str(tmp_path))
    printed = run("-m", "hessence", "spectrum", f"{script}:build", *options)
    assert printed.startswith("2 of 4808 eigenvalues, estimated")
    assert (tmp_path / "spectrum.png").exists()


def test_watch_training(tmp_path):
    pytest.importorskip("matplotlib")
    script = str(EXAMPLES / "watch_training.py")
    first, second = run(script, str(tmp_path)), run(script, str(tmp_path))
    assert first.startswith("8 measurements of 2 eigenvalues")
    assert second.startswith("16 measurements of 2 eigenvalues")
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == {"density.png", "layers.png", "training.png"}


def test_own_network():
    assert run(str(EXAMPLES / "own_network.py")).startswith("120 eigenvalues, twin and bulk")
