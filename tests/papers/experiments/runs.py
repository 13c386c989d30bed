"""Running the command in a process of its own, and looking at its records from outside."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

SLEEPER = Path(__file__).with_name("sleeper.py")
PATIENCE = 300
"""Seconds after which a test gives up waiting for another process: only a fault takes so long."""


def start(out, *options, experiment=SLEEPER):
    """Start the command as the leader of a process group, as a shell does."""
    command = [sys.executable, "-m", "hessence", "reproduce", str(experiment), "--out", str(out)]
    return subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(out, *options):
    """Run the command to its end; return the bytes of the exported records."""
    process = start(out, *options)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    return exported(out)


def exported(out):
    """Return the bytes of the records that a run has exported."""
    (path,) = Path(out).glob("sleeper*/records.csv")
    return path.read_bytes()


def wait_until(condition):
    """Wait until a condition holds; a busy machine may take minutes over what takes a second."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"nothing came of it in {PATIENCE} s"
        time.sleep(0.02)


def stored(out):
    path = Path(out) / "records.sqlite"
    if not path.exists():
        return 0
    reader = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        return reader.execute("SELECT count(*) FROM records").fetchone()[0]
    except sqlite3.Error:
        return 0
    finally:
        reader.close()


def group_is_gone(group):
    """Tell whether no process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def begun(diary):
    """Return how often each task was begun, by the diary of the sleeper."""
    tasks = [int(path.name.split("-")[0]) for path in diary.glob("[0-9]*")]
    return {task: tasks.count(task) for task in tasks}
