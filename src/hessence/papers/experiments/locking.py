"""One process at a time: a lock on a file that vanishes with the process that holds it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class InUseError(Exception):
    """Another process holds the lock; the text is one sentence for the user."""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock of a file, or raise InUseError at once.

    The operating system drops the lock when the process ends, however it ends, so a file that is
    left behind locks nobody out. It is not removed: another process may be about to lock it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            _lock(handle)
        except (BlockingIOError, PermissionError):  # on Windows the latter
            os.lseek(handle, 1, os.SEEK_SET)
            holder = os.read(handle, 32).decode(errors="replace").strip()
            named = f" (process {holder})" if holder.isdigit() else ""
            raise InUseError(
                f"{path.parent} is in use by another run{named}; wait for it to end, or name "
                "another folder with --out."
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"\n{os.getpid()}\n".encode())
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt  # type: ignore[unreachable, unused-ignore]

    # The first byte is what is locked; the number of the process stands behind it, readable.
    msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
