"""The file of records: refused when it is not whole, and never touched then."""

import errno
import sqlite3

import pytest

from hessence.cli.main import main
from hessence.papers.experiments import store
from hessence.papers.experiments.store import CorruptStoreError, InUseError, Key, Row, open_store
from tests.papers.experiments.runs import SLEEPER

KEY = Key("sleeper", "1", "{}", 0)


@pytest.fixture
def filled(tmp_path):
    with open_store(tmp_path) as store:
        for i in range(300):
            store.write(KEY, f'{{"draw":{i}}}', Row(f'{{"value":{i / 7}}}', 0.5))
    return tmp_path / "records.sqlite"


def garbage(path):
    path.write_bytes(b"not a data base, but somebody's notes\n" * 40)


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def page_lost(path):
    content = bytearray(path.read_bytes())
    content[4096:8192] = bytes(4096)
    path.write_bytes(content)


def digit_changed(path):
    content = path.read_bytes()
    assert content.count(b'{"value":0.14285714285714285}') == 1
    path.write_bytes(
        content.replace(b'{"value":0.14285714285714285}', b'{"value":0.94285714285714285}')
    )


def somebody_elses(path):
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE people (name TEXT)")
    other.commit()
    other.close()


def test_a_file_without_tables_is_one_that_was_never_finished(tmp_path):
    path = tmp_path / "records.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA application_id = 0")
    connection.close()
    assert path.stat().st_size > 0
    with open_store(tmp_path) as store:
        store.write(KEY, '{"draw":0}', Row("{}", 0.5))
        assert len(store) == 1


def test_a_folder_that_cannot_be_locked_is_not_said_to_be_in_use(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(store, "lock", fail)
    with pytest.raises(OSError, match="No locks available"), open_store(tmp_path):
        pass


@pytest.mark.parametrize("linked", [True, False])
def test_a_file_in_the_place_of_the_lock_is_left_alone(tmp_path, linked):
    theirs = tmp_path / "theirs" if linked else tmp_path / "records.lock"
    theirs.write_text("notes")
    if linked:
        (tmp_path / "records.lock").symlink_to(theirs)
    with pytest.raises((OSError, CorruptStoreError), match=r"symbolic link|not a lock"):
        open_store(tmp_path).__enter__()
    assert theirs.read_text() == "notes"
    assert not (tmp_path / "records.sqlite").exists()


@pytest.mark.parametrize("damage", [garbage, truncated, page_lost, digit_changed, somebody_elses])
def test_a_damaged_store_is_refused_and_left_untouched(filled, damage, capsys):
    damage(filled)
    before = filled.read_bytes()
    with pytest.raises(CorruptStoreError, match="left as it is"), open_store(filled.parent):
        pass
    assert main(["reproduce", str(SLEEPER), "--preset", "tiny", "--out", str(filled.parent)]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"hessence: {filled} is ")
    assert errors.count("\n") == 1
    assert filled.read_bytes() == before
    names = {path.name for path in filled.parent.iterdir()}
    assert names - {"records.sqlite-wal", "records.sqlite-shm"} == {
        "records.sqlite",
        "records.lock",
    }


def test_records_survive_closing(filled):
    with open_store(filled.parent) as store:
        rows = store.read(KEY)
    assert len(rows) == 300
    assert rows['{"draw":3}'] == Row(f'{{"value":{3 / 7}}}', 0.5)


def test_a_record_is_written_once(tmp_path):
    with open_store(tmp_path) as store:
        store.write(KEY, "{}", Row("1", 0.0))
        store.write(KEY, "{}", Row("2", 0.0))
        assert store.read(KEY) == {"{}": Row("1", 0.0)}


def test_an_empty_file_is_a_fresh_store(tmp_path):
    (tmp_path / "records.sqlite").touch()
    with open_store(tmp_path) as store:
        assert len(store) == 0


def test_one_at_a_time(tmp_path):
    with open_store(tmp_path), pytest.raises(InUseError, match="in use"), open_store(tmp_path):
        pass
    with open_store(tmp_path):
        pass


def test_the_log_of_a_store_that_was_moved_away_is_not_read(filled):
    log = filled.with_name("records.sqlite-wal")
    reader = sqlite3.connect(filled)
    reader.execute("SELECT count(*) FROM records").fetchone()
    with open_store(filled.parent) as store:
        store.write(KEY, "late", Row("1", 0.0))
        content = log.read_bytes()
        assert content
    reader.close()
    filled.unlink()
    log.write_bytes(content)
    with open_store(filled.parent) as store:
        assert len(store) == 0
        store.write(KEY, "{}", Row("1", 0.0))
    with open_store(filled.parent) as store:
        assert len(store) == 1
