"""Runs that are killed, stopped, or started twice: real processes, real signals."""

import os
import signal

import pytest

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
from tests.papers.experiments.sleeper import OPEN

SHORT = ("--set", "tasks=8", "--set", "seconds=0.05")


@pytest.fixture
def diary(tmp_path):
    """A diary that lets some tasks through and holds up the others, until they are let go."""
    path = tmp_path / "diary"
    path.mkdir()
    (path / "closed").touch()
    return path


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return finish(tmp_path_factory.mktemp("whole"), *SHORT)


@pytest.mark.parametrize("workers", [(), ("--jobs", "2")], ids=["here", "workers"])
def test_a_killed_run_goes_on_where_it_stopped(tmp_path, diary, uninterrupted, workers):
    options = (*SHORT, *workers, "--set", f"diary={diary}")
    process = start(tmp_path / "out", *options)
    wait_until(lambda: stored(tmp_path / "out") >= 3)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    # No worker outlives the process that started it.
    wait_until(lambda: group_is_gone(process.pid))
    kept = stored(tmp_path / "out")
    assert 3 <= kept <= OPEN
    assert not list((tmp_path / "out").glob("sleeper*"))
    (diary / "closed").unlink()
    assert finish(tmp_path / "out", *options) == uninterrupted
    again = sum(count - 1 for count in begun(diary).values())
    # With workers, some results may be on their way when the process dies.
    assert again <= (6 if workers else 1)
    assert len(begun(diary)) == 8


@pytest.mark.parametrize("workers", [(), ("--jobs", "2")], ids=["here", "workers"])
def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path, diary, uninterrupted, workers):
    options = (*SHORT, *workers, "--set", f"diary={diary}")
    process = start(tmp_path, *options)
    # Until all workers are at work: one that is still starting would answer an interrupt itself.
    held_up = 2 if workers else 1
    wait_until(lambda: stored(tmp_path) == OPEN and len(begun(diary)) == OPEN + held_up)
    # A terminal sends it to the whole group.
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == (
        "hessence: stopped; what is finished is kept, and the same command goes on from there."
    )
    assert "Traceback" not in errors
    wait_until(lambda: group_is_gone(process.pid))
    assert stored(tmp_path) == OPEN
    (diary / "closed").unlink()
    assert finish(tmp_path, *options) == uninterrupted


def test_a_second_process_is_refused(tmp_path, diary, uninterrupted):
    options = (*SHORT, "--set", f"diary={diary}")
    first = start(tmp_path, *options)
    wait_until(lambda: stored(tmp_path) >= 1)
    second = start(tmp_path, *options)
    _, errors = second.communicate(timeout=PATIENCE)
    assert second.returncode == 2
    assert errors == (
        f"hessence: {tmp_path} is in use by another run (process {first.pid}); wait for it to "
        "end, or name another folder with --out.\n"
    )
    (diary / "closed").unlink()
    first.communicate(timeout=PATIENCE)
    assert first.returncode == 0
    assert exported(tmp_path) == uninterrupted


@pytest.mark.slow
def test_ctrl_c_on_a_cluster(tmp_path, uninterrupted):
    options = (*SHORT, "--cluster", "local:2")
    process = start(tmp_path, *options)
    wait_until(lambda: stored(tmp_path) >= 2)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in errors
    wait_until(lambda: group_is_gone(process.pid))
    assert finish(tmp_path, *options) == uninterrupted
