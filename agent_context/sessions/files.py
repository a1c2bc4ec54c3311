"""Sessions as files of one directory."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, ParamSpec, TypeVar

from agent_context._sandbox_fs import SandboxedDirectory, safe_filename
from agent_context.errors import PathNotAllowed, StoreCorrupt, StoreUnavailable
from agent_context.sessions.store import SessionStore

__all__ = ["FileSessionStore"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_FORMAT: Final = 1
_SUFFIX: Final = ".session"
_LONGEST_HEADER: Final = 1 << 20


class FileSessionStore(SessionStore):
    """Keeps each session in a file of its own, which is replaced as a whole.

    Two lines of JSON: the format and the id, then the session. A file that can't be read is put
    aside when it is loaded, which raises `StoreCorrupt` with its new name. Several processes may
    use one directory; of two that save the same session the last one wins.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """The directory is made if there is none. Raises `StoreUnavailable`."""
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self._root = SandboxedDirectory(directory)
        except (OSError, PathNotAllowed) as error:
            raise StoreUnavailable(f"no sessions can be kept in {directory}: {error}") from error

    def path_of(self, session_id: str) -> Path:
        """Where a session is kept: always a file of the directory itself, whatever its id."""
        return self._root.path / _name(session_id)

    async def put(self, key: str, payload: bytes) -> None:
        header = json.dumps({"agent_context": _FORMAT, "session": key}).encode()
        content = b"\n".join((header, payload, b""))
        await asyncio.to_thread(self._done, self._root.write, _name(key), content)

    async def get(self, key: str) -> bytes | None:
        return await asyncio.to_thread(self._read, key)

    async def quarantine(self, key: str) -> str:
        return await asyncio.to_thread(self._put_aside, _name(key))

    async def delete(self, session_id: str) -> bool:
        return await asyncio.to_thread(self._done, self._root.remove, _name(session_id))

    async def list(self) -> Sequence[str]:
        """The ids of all sessions, sorted. A file that can't be read is left out, and logged."""
        return await asyncio.to_thread(self._ids)

    def _read(self, key: str) -> bytes | None:
        name = _name(key)
        file = self._done(self._open, name)
        if file is None:
            return None
        with file:
            header, payload = file.readline(), file.read()
        try:
            _check(header, key)
        except ValueError as error:
            aside = self._put_aside(name)
            raise StoreCorrupt(f"session {key!r} can't be read: {error}; {aside}") from error
        return payload

    def _open(self, name: str) -> BinaryIO | None:
        try:
            return self._root.open(name)
        except PathNotAllowed as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def _put_aside(self, name: str) -> str:
        aside = f"{name}.corrupt-{secrets.token_hex(4)}"
        self._done(self._root.rename, name, aside)
        logger.warning("a session that can't be read was put aside: %s", self._root.path / aside)
        return f"it was put aside as {self._root.path / aside}"

    def _ids(self) -> Sequence[str]:
        return sorted(self._done(lambda: [*self._list_files()]))

    def _list_files(self) -> Iterator[str]:
        for found in self._root.files(depth=0, count=sys.maxsize):
            if not found.name.endswith(_SUFFIX):
                continue
            try:
                with self._root.open(found.name) as file:
                    yield _id(file.readline(_LONGEST_HEADER))
            except (PathNotAllowed, ValueError, StoreCorrupt) as error:
                logger.warning("%s is left out: %s", self._root.path / found.name, error)

    def _done(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except PathNotAllowed as error:
            raise StoreUnavailable(f"sessions in {self._root.path}: {error}") from error


def _name(session_id: str) -> str:
    return safe_filename(session_id) + _SUFFIX


def _id(header: bytes) -> str:
    """The id that a file's first line says. Raises `ValueError`, `StoreCorrupt` for a format."""
    match json.loads(header):
        case {"agent_context": int(version), "session": str(session_id)}:
            if version == _FORMAT:
                return session_id
            raise StoreCorrupt(f"format {version} of sessions is not known; this reads {_FORMAT}")
        case _:
            raise ValueError("its first line is not that of a session")


def _check(header: bytes, key: str) -> None:
    if _id(header) != key:
        raise ValueError("another session is in its file")
