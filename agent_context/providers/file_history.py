"""A history in files: one of lines of JSON for each session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from agent_context._context.stored_message import from_message
from agent_context._sandbox_fs import SandboxedDirectory, safe_filename
from agent_context.errors import PathNotAllowed, StoreUnavailable
from agent_context.messages import Message
from agent_context.providers.history import HistoryFlags, HistoryProvider

if TYPE_CHECKING:
    from agent_context.imports import JsonlFile, Rejected

__all__ = ["FileHistoryProvider"]

logger = logging.getLogger(__name__)


class FileHistoryProvider(HistoryProvider):
    """Keeps each session's messages in a file of its own, to which runs only ever add.

    What a run said is written at once and is on the disk when the provider returns. What a crash
    left half written is put aside in a file of its own, and logged.
    """

    def __init__(
        self,
        folder: str | Path,
        source_id: str | None = "file_history",
        **flags: Unpack[HistoryFlags],
    ) -> None:
        super().__init__(source_id, **flags)
        self._folder = Path(folder)

    def path_of(self, session_id: str | None) -> Path:
        """Where the messages of a session are; no id leads out of the folder."""
        return self._folder / f"{safe_filename(session_id or 'default')}.jsonl"

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

    async def replace_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Put a file with these in the place of the session's."""
        del state, kwargs
        await asyncio.to_thread(_replace, self.path_of(session_id), messages)


def _file(path: Path) -> JsonlFile:
    from agent_context.imports import JsonlFile

    return JsonlFile(path)


def _read(path: Path) -> list[Message]:
    imported = _file(path).read()
    _report(path, imported.quarantined)
    return [said for each in imported.conversations for said in each.messages]


def _append(path: Path, messages: Sequence[Message]) -> None:
    _report(path, _file(path).append(messages))


def _replace(path: Path, messages: Sequence[Message]) -> None:
    text = b"".join(from_message(message).to_json_line() + b"\n" for message in messages)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        SandboxedDirectory(path.parent).write(path.name, text)
    except (OSError, PathNotAllowed) as error:
        raise StoreUnavailable(f"{path}: {error}") from error


def _report(path: Path, quarantined: Iterable[Rejected]) -> None:
    for piece in quarantined:
        logger.warning("%s, %s is left out: %s", path, piece.where, piece.why)
