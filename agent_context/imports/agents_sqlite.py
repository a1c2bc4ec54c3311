"""Sessions of openai-agents in an SQLite file.

Source: openai-agents 0.24 (2026-11) for the tables and for what `message_data` holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson

from agent_context.errors import ImportFailed
from agent_context.imports.responses_api import Row, messages_from
from agent_context.imports.result import (
    ImportedConversation,
    ImportResult,
    Rejected,
    collect,
    own_ids,
    parse_timestamp,
)
from agent_context.messages import Message

if TYPE_CHECKING:
    import sqlite3

__all__ = ["read_agents_sqlite"]

_PATIENCE = 5.0
"""Seconds to wait for a writer."""


def read_agents_sqlite(
    path: str | os.PathLike[str],
    *,
    vendor: str = "openai",
    sessions_table: str = "agent_sessions",
    messages_table: str = "agent_messages",
) -> ImportResult:
    """Each session as a conversation, all as they were at one moment.

    The file is only read, and may be in use. `vendor` is whose model wrote the answers: their
    reasoning goes back to that one only. Raises `ImportFailed`.
    """
    import sqlite3

    file = Path(path)
    tables = _quote(sessions_table), _quote(messages_table)
    try:
        # A database that nobody has open is read without the files that even a reader would leave.
        if (at_rest := _state_at_rest(file)) is not None:
            imported = _read(file, "mode=ro&immutable=1", vendor, tables)
            if _state_at_rest(file) == at_rest:
                return imported
        return _read(file, "mode=ro", vendor, tables)
    except sqlite3.Error as error:
        raise ImportFailed(
            0, f"{os.fspath(path)}: sessions of openai-agents are expected: {error}"
        ) from error


def _state_at_rest(path: Path) -> tuple[int, int] | None:
    """What tells that the file was changed; None if somebody may have it open, or it is no file."""
    try:
        with path.open("rb") as file:
            has_log = file.read(20)[18:] == b"\x02\x02"
        found = path.stat()
    except OSError:
        return None
    in_use = not has_log or path.with_name(f"{path.name}-wal").exists()
    return None if in_use else (found.st_mtime_ns, found.st_size)


def _read(path: Path, how: str, vendor: str, tables: tuple[str, str]) -> ImportResult:
    import sqlite3

    address = f"{path.absolute().as_uri()}?{how}"
    with closing(
        sqlite3.connect(address, uri=True, timeout=_PATIENCE, isolation_level=None)
    ) as database:
        # What is no UTF-8 is to be reported, not to end the import.
        database.text_factory = bytes
        database.execute("BEGIN")
        return collect(_sessions(database, vendor, *tables))


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sessions(
    database: sqlite3.Connection, vendor: str, sessions: str, messages: str
) -> Iterator[ImportedConversation | Rejected]:
    # A table's name can't be a parameter of a query: it is quoted.
    named = (
        f"SELECT said.session_id, s.created_at FROM "  # noqa: S608
        f"(SELECT session_id, MIN(id) AS first FROM {messages} GROUP BY session_id) AS said "
        f"LEFT JOIN {sessions} AS s ON s.session_id = said.session_id ORDER BY first"
    )
    said = (
        f"SELECT id, message_data, created_at FROM {messages} "  # noqa: S608
        "WHERE session_id = CAST(? AS TEXT) ORDER BY id"
    )
    branched = _has_branches(database)
    for name, created in database.execute(named).fetchall():
        rows = database.execute(said, (name,)).fetchall()
        ways = _branches(database, name) if branched else {}
        yield from _session(_text(name), parse_timestamp(_text(created)), rows, vendor, ways)


def _has_branches(database: sqlite3.Connection) -> bool:
    columns = {_text(row[1]) for row in database.execute("PRAGMA table_info(message_structure)")}
    return columns >= {"session_id", "message_id", "branch_id", "sequence_number"}


def _branches(database: sqlite3.Connection, session: object) -> dict[str, list[int]]:
    """The rows of each branch of a session, in order; first the branch that was written last.

    An `AdvancedSQLiteSession` copies the order of what its branches have in common, not the rows.
    """
    ways: dict[str, list[int]] = {}
    found = database.execute(
        "SELECT branch_id, message_id FROM message_structure "
        "WHERE session_id = CAST(? AS TEXT) ORDER BY sequence_number, id",
        (session,),
    )
    for branch, row in found:
        ways.setdefault(_text(branch), []).append(row)
    newest = sorted(ways, key=lambda branch: max(ways[branch]), reverse=True)
    return {branch: ways[branch] for branch in newest}


def _session(
    name: str,
    created: datetime | None,
    rows: list[tuple[Any, ...]],
    vendor: str,
    ways: dict[str, list[int]],
) -> Iterator[ImportedConversation | Rejected]:
    items: dict[int, Row] = {}
    for number, data, written in rows:
        where = f"session {name!r}, row {number}"
        item = _item(data, where)
        if isinstance(item, Rejected):
            yield item
        else:
            items[number] = where, item, parse_timestamp(_text(written))
    in_branches = {number for way in ways.values() for number in way}
    loose = [number for number in items if number not in in_branches]
    orders = [sorted({*loose, *way}) if loose else way for way in ways.values()] or [loose]
    reported: set[str] = set()
    found: list[list[tuple[Message, datetime | None]]] = []
    for order in orders:
        said: list[tuple[Message, datetime | None]] = []
        for piece in messages_from([items[each] for each in order if each in items], vendor):
            if not isinstance(piece, Rejected):
                said.append(piece)
            elif piece.where not in reported:
                reported.add(piece.where)
                yield piece
        found.append(said)
    main, *others = found
    yield ImportedConversation(
        tuple(own_ids(message for message, _ in main)),
        id=name,
        created=created,
        times=tuple(time for _, time in main),
        branches=tuple(tuple(own_ids(message for message, _ in other)) for other in others),
    )


def _item(data: object, where: str) -> dict[str, Any] | Rejected:
    raw = data if isinstance(data, bytes) else str(data).encode()
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return Rejected(where, raw, f"not JSON: {error}")
    if not isinstance(value, dict):
        why = f"an object is expected, not {type(value).__name__}"
        return Rejected(where, raw, why)
    return cast("dict[str, Any]", value)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
