"""Finished records, in one SQLite file for each output folder.

Each record is one transaction in write-ahead mode: a process that is killed loses what it was
computing and nothing else. Every row carries a checksum of all but the time it took, because
SQLite has none of its own. A folder belongs to one process at a time, by a lock that vanishes with
the process that holds it.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hessence._common.files import lock

NAME = "records.sqlite"
LOCK = "records.lock"
KIND = 0x68657373
"""SQLite's application id of these files: "hess"."""

SCHEMA = """
CREATE TABLE records (
  experiment TEXT NOT NULL, code TEXT NOT NULL, settings TEXT NOT NULL, seed INTEGER NOT NULL,
  task TEXT NOT NULL, record TEXT NOT NULL, seconds REAL NOT NULL, checksum TEXT NOT NULL,
  PRIMARY KEY (experiment, code, settings, seed, task)
) WITHOUT ROWID
"""
COLUMNS = {"experiment", "code", "settings", "seed", "task", "record", "seconds", "checksum"}


class CorruptStoreError(Exception):
    """A file that cannot be trusted; the text is one sentence for the user."""


@dataclass(frozen=True)
class Key:
    """What identifies a run: experiment, code, settings and seed."""

    experiment: str
    code: str
    settings: str
    seed: int


@dataclass(frozen=True)
class Row:
    """A finished task: its record as JSON text, and the processor's seconds it took."""

    record: str
    seconds: float


class Store:
    """The records of one output folder; :func:`open_store` makes one."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def read(self, key: Key) -> dict[str, Row]:
        """Return the finished tasks of one run, by the text of the task."""
        rows = self._connection.execute(
            "SELECT task, record, seconds FROM records "
            "WHERE experiment = ? AND code = ? AND settings = ? AND seed = ?",
            (key.experiment, key.code, key.settings, key.seed),
        )
        return {task: Row(record, seconds) for task, record, seconds in rows}

    def write(self, key: Key, task: str, row: Row) -> None:
        """Add a finished task at once; one that is there already stays as it is."""
        fields = (key.experiment, key.code, key.settings, key.seed, task, row.record)
        with self._connection:
            self._connection.execute(
                "INSERT OR IGNORE INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*fields, row.seconds, _checksum(*fields)),
            )

    def __len__(self) -> int:
        (count,) = self._connection.execute("SELECT count(*) FROM records").fetchone()
        return int(count)


@contextmanager
def open_store(folder: Path) -> Iterator[Store]:
    """Open the folder's records for this process alone.

    A file that is not whole is refused before anything could be written to it.
    """
    path = folder / NAME
    with exclusive(folder / LOCK):
        if not path.exists() or path.stat().st_size == 0 or not _has_records(path):
            _create(path)
        with closing(sqlite3.connect(path)) as connection:
            # Enough against kills of the process; only a power cut may lose the last records.
            connection.execute("PRAGMA synchronous = NORMAL")
            yield Store(connection)


def _create(path: Path) -> None:
    """Make an empty file of records, which appears whole or not at all."""
    fresh = path.with_name(f".{NAME}.new")
    for tail in ("", "-journal", "-wal", "-shm"):
        fresh.with_name(fresh.name + tail).unlink(missing_ok=True)
    with closing(sqlite3.connect(fresh)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        with connection:
            connection.execute(f"PRAGMA application_id = {KIND}")
            connection.execute(SCHEMA)
    # The log of a file that was moved away would be read into the new one.
    log = path.with_name(f"{NAME}-wal")
    if log.exists():
        log.replace(log.with_name(f"{log.name}.old"))
    path.with_name(f"{NAME}-shm").unlink(missing_ok=True)
    fresh.replace(path)


def _has_records(path: Path) -> bool:
    """Check pages, schema and checksums through a connection that cannot write.

    A file without any table, which may be what a kill leaves of a new one, has none.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as reader:
            (kind,) = reader.execute("PRAGMA application_id").fetchone()
            columns = {row[1] for row in reader.execute("PRAGMA table_info(records)")}
            if (kind, columns) not in ((KIND, COLUMNS), (0, set()), (KIND, set())):
                raise CorruptStoreError(f"{path} is not a file of records; it is left as it is.")
            if reader.execute("PRAGMA quick_check").fetchone() != ("ok",):
                raise _damaged(path)
            if not columns:
                if reader.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                    raise CorruptStoreError(
                        f"{path} is not a file of records; it is left as it is."
                    )
                return False
            for *fields, _, checksum in reader.execute("SELECT * FROM records"):
                if _checksum(*fields) != checksum:
                    raise _damaged(path)
            return True
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> CorruptStoreError:
    return CorruptStoreError(
        f"{path} is damaged and left as it is; move it away to start afresh, or name another "
        "folder with --out."
    )


def _checksum(*fields: str | int) -> str:
    return hashlib.sha256("\0".join(map(str, fields)).encode()).hexdigest()


class InUseError(Exception):
    """Another process holds the lock; the text is one sentence for the user."""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock of a file, or raise InUseError at once.

    The operating system drops the lock when the process ends, however it ends, so a file that is
    left behind locks nobody out. It is not removed: another process may be about to lock it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        if not lock(handle):
            os.lseek(handle, 1, os.SEEK_SET)
            holder = os.read(handle, 32).decode(errors="replace").strip()
            named = f" (process {holder})" if holder.isdigit() else ""
            raise InUseError(
                f"{path.parent} is in use by another run{named}; wait for it to end, or name "
                "another folder with --out."
            )
        held = os.read(handle, 32)
        if held and not re.fullmatch(rb"\n[0-9]+\n", held):
            raise CorruptStoreError(f"{path} is not a lock of ours; it is left as it is.")
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, f"\n{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)
