"""Files of every format, damaged at random: a sentence each, no crash, little memory."""

import subprocess
import sys

import numpy as np
import pytest


def load_damaged(folder, count, seed):
    command = [sys.executable, "-m", "tests.fuzzing", str(folder), str(count), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    assert f"{count} files" in done.stdout


def test_some_damaged_files(tmp_path):
    load_damaged(tmp_path, 150, 0)


@pytest.mark.slow
@pytest.mark.hunt
def test_thousands_of_damaged_files(tmp_path):
    load_damaged(tmp_path, 5000, np.random.SeedSequence().entropy % 2**32)
