"""Files that appear whole or not at all."""

import os
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hessence._common.files import read_regular, write_atomically


@pytest.mark.parametrize("content", ["naïve λ\n", b"\x00\xff", ""])
def test_writes_text_as_utf8_and_bytes_as_they_are(tmp_path, content):
    path = tmp_path / "file"
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode("utf-8") if isinstance(content, str) else content)
    assert os.listdir(tmp_path) == ["file"]


def test_replaces_what_was_there_and_keeps_usual_permissions(tmp_path):
    path, usual = tmp_path / "file", tmp_path / "usual"
    usual.write_text("made by open()")
    path.write_text("old")
    write_atomically(str(path), "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_directory_that_does_not_exist_or_is_in_the_way(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "missing" / "file", "new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", "new")
    assert os.listdir(tmp_path) == ["folder"]


def others(tmp_path):
    """Return what is no regular file, by name."""
    fifo, end, folder = tmp_path / "fifo", tmp_path / "socket", tmp_path / "folder"
    os.mkfifo(fifo)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as open_end:
        open_end.bind(str(end))
    return {"fifo": fifo, "socket": end, "folder": folder, "device": Path(os.devnull)}


@pytest.mark.parametrize("name", ["fifo", "socket", "folder", "device"])
@pytest.mark.parametrize("linked", [False, True])
def test_only_regular_files_are_written_and_read(tmp_path, name, linked):
    path = others(tmp_path)[name]
    before = path.lstat()
    target = path
    if linked:
        target = tmp_path / "link"
        target.symlink_to(path)
    for attempt in (lambda: write_atomically(target, "new"), lambda: read_regular(target)):
        with pytest.raises(OSError, match=r"regular file|directory|No such device"):
            attempt()
    after = path.lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert not [left for left in os.listdir(tmp_path) if left.endswith(".tmp")]


@pytest.mark.parametrize("there", [True, False])
def test_the_target_of_a_link_is_written(tmp_path, there):
    (tmp_path / "data").mkdir()
    target, link, chain = tmp_path / "data" / "file", tmp_path / "link", tmp_path / "chain"
    if there:
        target.write_text("old")
    link.symlink_to(target)
    chain.symlink_to(link)
    write_atomically(chain, "new")
    assert target.read_text() == "new"
    assert link.is_symlink()
    assert chain.is_symlink()
    assert not target.is_symlink()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o666])
def test_the_mode_of_a_file_stays(tmp_path, mode):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(mode)
    write_atomically(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_nobody_else_reads_a_private_file_while_it_is_written(tmp_path, monkeypatch):
    path, seen = tmp_path / "file", []
    path.write_text("old")
    path.chmod(0o600)
    monkeypatch.setattr(
        os, "fsync", lambda _: seen.extend(p.stat().st_mode for p in tmp_path.glob(".*.tmp"))
    )
    write_atomically(path, "secret")
    assert [stat.S_IMODE(mode) for mode in seen] == [0o600]


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="root may give away")
def test_a_file_that_root_writes_still_belongs_to_its_owner(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    os.chown(path, 1234, 2345)
    path.chmod(0o640)
    write_atomically(path, "new")
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 2345, 0o640)


def test_a_file_that_cannot_be_given_away_is_written(tmp_path, monkeypatch):
    path, asked = tmp_path / "file", []

    def denied(_, owner, group):
        asked.append((owner, group))
        raise PermissionError

    path.write_text("old")
    monkeypatch.setattr(os, "chown", denied)
    write_atomically(path, "new")
    assert path.read_text() == "new"
    # The group alone may be allowed.
    assert asked == [(-1, path.stat().st_gid), (path.stat().st_uid, -1)]


def test_links_in_a_circle_are_left_as_they_are(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.symlink_to(second)
    second.symlink_to(first)
    with pytest.raises(OSError, match="symbolic links"):
        write_atomically(first, "new")
    assert sorted(os.listdir(tmp_path)) == ["first", "second"]
    assert first.is_symlink()


def test_hidden_files_of_others_are_not_swept(tmp_path):
    for name in (".file.not-a-number-16.tmp", ".file.tmp", ".file.0123456789abcdeF.tmp"):
        (tmp_path / name).write_text("theirs")
    before = os.listdir(tmp_path)
    write_atomically(tmp_path / "file", "new")
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "file"])


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may write anything")
def test_a_file_that_must_not_be_written_is_not_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(PermissionError):
        write_atomically(path, "new")
    assert path.read_text() == "old"


KILLED = """
import os, signal, sys
from hessence._common import files
os.fsync = lambda handle: (print("half", flush=True), signal.pause())
files.write_atomically(sys.argv[1], "x" * 1000)
"""


def test_what_killed_writers_leave_is_swept_and_what_others_write_is_not(tmp_path):
    path, other = tmp_path / ("n" * 250), tmp_path / "other"
    writers = [
        subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout.readline() == b"half\n"
    write_atomically(other, "")
    assert len(os.listdir(tmp_path)) == 3
    writers[0].kill()
    writers[0].wait()
    write_atomically(path, "new")
    assert len(os.listdir(tmp_path)) == 3  # the file, the other, and what the second one writes
    writers[1].kill()
    writers[1].wait()
    write_atomically(path, "newer")
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, "other"])
    assert path.read_text() == "newer"
    for writer in writers:
        writer.stdout.close()


def test_a_folder_is_listed_once_however_many_files_are_written(tmp_path, monkeypatch):
    listed, plain = [], Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: (listed.append(self), plain(self))[1])
    for i in range(20):
        write_atomically(tmp_path / f"file{i}", "")
    assert len(listed) == 1


def test_many_writers_of_one_file_sweep_no_other(tmp_path):
    path = tmp_path / "file"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: write_atomically(path, str(i) * 1000), range(200)))
    assert len(set(path.read_text())) <= 3
    assert os.listdir(tmp_path) == ["file"]
