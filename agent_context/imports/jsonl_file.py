"""A file that messages are appended to, one a line, and that survives being cut off."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from agent_context._context.stored_message import from_message
from agent_context.errors import StoreUnavailable
from agent_context.imports.jsonl import read_jsonl
from agent_context.imports.lenient_jsonl import objects_in
from agent_context.imports.result import ImportResult, Rejected, raw_of
from agent_context.messages import Message

__all__ = ["JsonlFile"]

_BLOCK = 64 * 1024


class JsonlFile:
    """Messages in a file of lines, as `FromJsonl` and chat programs read them.

    Any number of threads may use it, and processes too where files can be locked (not on Windows).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Final = Path(path)
        self._lock = threading.Lock()

    @property
    def torn(self) -> Path:
        """Where broken ends of the file are put, one after the other."""
        return self.path.with_name(f"{self.path.name}.torn")

    def read(self) -> ImportResult:
        """What the file holds, broken lines reported; of a missing one nothing."""
        return read_jsonl(self.path) if self.path.exists() else ImportResult(())

    def messages(self) -> tuple[Message, ...]:
        """All messages that can be read."""
        return tuple(said for each in self.read().conversations for said in each.messages)

    def append(self, messages: Iterable[Message]) -> tuple[Rejected, ...]:
        """Add messages, which are on the disk when this returns.

        If the last line was cut off, what there is of it goes to the file `torn` and is reported,
        so that the next line is whole. Raises `StoreUnavailable`; nothing is added then.
        """
        text = b"".join(from_message(message).to_json_line() + b"\n" for message in messages)
        try:
            with self._lock, self._open() as file:
                _lock(file)
                quarantined = self._mend(file)
                _add(file, text)
        except OSError as error:
            raise StoreUnavailable(f"{self.path}: {error.strerror}") from error
        return quarantined

    def _open(self) -> io.FileIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self.path.exists()
        file = io.FileIO(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666), "r+")
        if is_new:
            _sync_directory(self.path.parent)
        return file

    def _mend(self, file: io.FileIO) -> tuple[Rejected, ...]:
        """End the file with a whole line."""
        start, tail = _last_line(file)
        if not tail:
            return ()
        pieces = list(objects_in([tail]))
        broken = tuple(piece for piece in pieces if isinstance(piece, Rejected))
        if not broken:
            _add(file, b"\n")  # whole, but for its end
            return ()
        whole = b"".join(raw_of(piece[1]) + b"\n" for piece in pieces if isinstance(piece, tuple))
        with self.torn.open("ab") as torn:
            torn.write(tail + b"\n")
            torn.flush()
            os.fsync(torn.fileno())
        _sync_directory(self.path.parent)  # before the only other copy goes
        file.truncate(start)
        _add(file, whole)
        where = f"{self.path}, byte {start}"
        return tuple(Rejected(where, piece.raw, piece.why) for piece in broken)


def _last_line(file: io.FileIO) -> tuple[int, bytes]:
    """Where the last line begins, and what of it there is: nothing if the one before has ended."""
    end = file.seek(0, os.SEEK_END)
    tail = b""
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        block = file.read(end - start)
        if (newline := block.rfind(b"\n")) >= 0:
            return start + newline + 1, block[newline + 1 :] + tail
        tail, end = block + tail, start
    return 0, tail


def _add(file: io.FileIO, text: bytes) -> None:
    """All of `text` at the end, or nothing."""
    end = file.seek(0, os.SEEK_END)
    try:
        rest = memoryview(text)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            file.truncate(end)
        raise


def _lock(file: io.FileIO) -> None:
    """Keep other processes out until the file is closed."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX)


def _sync_directory(directory: Path) -> None:
    """Make a new file's name last."""
    if sys.platform != "win32":
        place = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)
