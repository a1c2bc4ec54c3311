"""A history in files: one of lines of JSON for each session."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from agent_context.errors import InvalidMessage
from agent_context.messages import Message
from agent_context.providers.history import HistoryProvider
from agent_context.records import message_of, record_of

__all__ = ["FileHistoryProvider"]

logger = logging.getLogger(__name__)

_LONGEST: Final = 120
_SAFE: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


class FileHistoryProvider(HistoryProvider):
    """Keeps each session's messages in a file of its own, to which it only ever adds.

    What a run said is written at once and is on the disk when the provider returns. A line that a
    crash left half written is not read, and the next one begins a new line.
    """

    def __init__(
        self,
        folder: str | Path,
        source_id: str | None = "file_history",
        *,
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: Iterable[str] | None = None,
        store_outputs: bool = True,
    ) -> None:
        super().__init__(
            source_id,
            load_messages=load_messages,
            store_inputs=store_inputs,
            store_context_messages=store_context_messages,
            store_context_from=store_context_from,
            store_outputs=store_outputs,
        )
        self._folder = Path(folder)

    def path_of(self, session_id: str | None) -> Path:
        """Where the messages of a session are; no id leads out of the folder."""
        return self._folder / f"{_stem(session_id or 'default')}.jsonl"

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """What the session's file holds."""
        del state, kwargs
        return await asyncio.to_thread(_read, self.path_of(session_id))

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add messages to the session's file."""
        del state, kwargs
        if messages:
            await asyncio.to_thread(_append, self.path_of(session_id), messages)


def _stem(session_id: str) -> str:
    """A file name for an id; two ids never have the same one, whatever the file system ignores."""
    if set(session_id) <= _SAFE and len(session_id) <= _LONGEST:
        return session_id
    raw = session_id.encode("utf-8", "surrogatepass")
    written = base64.b32encode(raw).decode("ascii").rstrip("=").lower()
    return "~" + (written if len(written) <= _LONGEST else hashlib.sha256(raw).hexdigest())


def _read(path: Path) -> list[Message]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    found: list[Message] = []
    for number, line in enumerate(lines, start=1):
        try:
            found += [message_of(line)] if line.strip() else []
        except InvalidMessage as error:
            logger.warning("%s, line %s can't be read and is left out: %s", path, number, error)
    return found


def _append(path: Path, messages: Sequence[Message]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    block = b"".join(record_of(message).line() + b"\n" for message in messages)
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            block = block if file.read(1) == b"\n" else b"\n" + block
        file.write(block)
        file.flush()
        os.fsync(file.fileno())
