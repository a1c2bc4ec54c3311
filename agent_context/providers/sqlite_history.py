"""A history in a database of its own: SQLite, and a model for others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from agent_context._context.stored_message import from_message, parse_message
from agent_context.messages import Message
from agent_context.providers.history import HistoryFlags, HistoryProvider

if TYPE_CHECKING:
    import sqlite3

__all__ = ["SqliteHistoryProvider"]

_TABLE: Final = """
    create table if not exists history (
        position integer primary key,
        session text not null,
        message text not null
    )
"""
_INDEX: Final = "create index if not exists history_of_session on history (session, position)"


class SqliteHistoryProvider(HistoryProvider):
    """Keeps messages as rows of one table, those of a run in one transaction.

    For a program that has such a table anyway. To keep whole conversations give the agent a
    `store`.
    """

    def __init__(
        self,
        path: str | Path,
        source_id: str | None = "sqlite_history",
        **flags: Unpack[HistoryFlags],
    ) -> None:
        super().__init__(source_id, **flags)
        self._path = Path(path)

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """The rows of the session."""
        del state, kwargs
        return await asyncio.to_thread(self._load, session_id or "default")

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A row for each message."""
        del state, kwargs
        if messages:
            await asyncio.to_thread(self._save, session_id or "default", messages)

    async def replace_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Other rows in the place of the session's, in one transaction."""
        del state, kwargs
        await asyncio.to_thread(self._save, session_id or "default", messages, instead=True)

    async def count(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> int:
        """How many rows the session has."""
        del state, kwargs
        return await asyncio.to_thread(self._count, session_id or "default")

    def _count(self, session: str) -> int:
        with closing(self._connect()) as db:
            rows = db.execute("select count(*) from history where session = ?", (session,))
            return int(rows.fetchone()[0])

    def _load(self, session: str) -> list[Message]:
        with closing(self._connect()) as db:
            rows = db.execute(
                "select message from history where session = ? order by position", (session,)
            )
            return [parse_message(text) for (text,) in rows]

    def _save(self, session: str, messages: Sequence[Message], *, instead: bool = False) -> None:
        rows = [(session, from_message(message).to_json_line().decode()) for message in messages]
        with closing(self._connect()) as db, db:
            if instead:
                db.execute("delete from history where session = ?", (session,))
            db.executemany("insert into history (session, message) values (?, ?)", rows)

    def _connect(self) -> sqlite3.Connection:
        """A connection for one task: SQLite opens one in well under a millisecond."""
        import sqlite3

        db = sqlite3.connect(self._path, timeout=10)
        db.execute(_TABLE)
        db.execute(_INDEX)
        return db
