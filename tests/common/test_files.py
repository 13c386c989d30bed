"""Files that appear whole or not at all."""

import os
import stat

import pytest

from hessence._common.files import write_atomically


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
