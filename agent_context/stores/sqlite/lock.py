"""A lock on a file, which the system takes back when the process ends, however it ends."""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path

from agent_context._runtime.fork_safety import on_fork_child
from agent_context.errors import StoreUnavailable

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["FileLock"]

_held: weakref.WeakSet[FileLock]


class FileLock:
    """Held from its creation to `release`, or until it is dropped. Raises `StoreUnavailable`."""

    def __init__(self, database: Path) -> None:
        path = database.with_name(f"{database.name}.lock")
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"{database}: can't open {path}: {error.strerror}") from error
        self._close = weakref.finalize(self, os.close, file)
        try:
            _lock(file)
        except OSError as error:
            holder = os.read(file, 100).decode(errors="replace") or "another process"
            self.release()
            raise StoreUnavailable(
                f"{database} is used by {holder}: one store at a time may have it open"
            ) from error
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()}".encode())
        _held.add(self)

    def release(self) -> None:
        """Let others have it. Harmless when it is released."""
        self._close()


def _lock(file: int) -> None:
    if sys.platform == "win32":
        # Far behind the text, which others read.
        os.lseek(file, 1 << 20, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        os.lseek(file, 0, os.SEEK_SET)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _let_go() -> None:
    """A forked child has a copy of each handle, which would keep the lock when its parent ends."""
    for lock in list(_held):
        lock.release()


_held = weakref.WeakSet()
on_fork_child(_let_go)
