"""Kills at random moments: nothing is half-written, and work goes on where it stopped."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import hessence as hs
from tests.papers.experiments.runs import (
    PATIENCE,
    begun,
    exported,
    finish,
    group_is_gone,
    start,
    stored,
    wait_until,
)

KILLS = 60
TASKS = 40
SETTINGS = ("--set", f"tasks={TASKS}", "--set", "seconds=0.03")

SAVER = """
import sys, hessence as hs
from dataclasses import replace
first = hs.Trace(0.0, 0.0, 3, "x" * 10000)
print("ready", flush=True)
for i in range(10**9):
    replace(first, value=float(i)).save(sys.argv[1])
"""


def whole(folder):
    """Tell whether all that a folder of results holds is whole, and return what it holds."""
    for path in folder.glob("*/*.json"):
        json.loads(path.read_text(encoding="utf-8"))
    for path in folder.glob("*/*.png"):
        assert path.read_bytes().endswith(b"IEND\xaeB`\x82")
    for path in folder.glob("*/*.svg"):
        assert path.read_text(encoding="utf-8").rstrip().endswith("</svg>")
    return stored(folder)


@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.parametrize("workers", [(), ("--jobs", "2")], ids=["here", "workers"])
def test_kills_of_a_run_at_random_moments(tmp_path, workers):
    rng = np.random.default_rng()
    diary, out, kept = tmp_path / "diary", tmp_path / "out", 0
    diary.mkdir()
    expected = finish(tmp_path / "alone", *SETTINGS)
    options = (*SETTINGS, *workers, "--set", f"diary={diary}")
    kills = 0
    while kills < KILLS // 2:
        process = start(out, *options)
        before = kept
        # From the first import to the last picture: some after a while, some after a record more.
        if kept == TASKS or rng.random() < 0.5:
            time.sleep(rng.uniform(0, 4))
        else:
            wait_until(lambda n=before, p=process: stored(out) > n or p.poll() is not None)
            time.sleep(rng.uniform(0, 0.2))
        kills += process.poll() is None
        process.kill()
        process.communicate(timeout=PATIENCE)
        wait_until(lambda pid=process.pid: group_is_gone(pid))
        kept = whole(out)
        assert kept >= before
    assert finish(out, *options) == expected == exported(out)
    assert stored(out) == TASKS
    # What was finished was not begun again; what a kill interrupted was, once for each of them.
    again = sum(count - 1 for count in begun(diary).values())
    assert again <= KILLS // 2 * (4 if workers else 1)


@pytest.mark.slow
@pytest.mark.hunt
def test_kills_of_savers_at_random_moments(tmp_path):
    rng, path = np.random.default_rng(), tmp_path / "trace.json"
    for _ in range(KILLS):
        command = [sys.executable, "-c", SAVER, str(path)]
        saver = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert saver.stdout.readline() == b"ready\n"
        time.sleep(rng.uniform(0, 0.2))
        saver.kill()
        saver.wait()
        saver.stdout.close()
        if path.exists():
            assert hs.load(path).method == "x" * 10000
        assert len(os.listdir(tmp_path)) <= 2
    hs.Trace(1.0, 0.0, 1, "dense").save(path)
    assert os.listdir(tmp_path) == ["trace.json"]
