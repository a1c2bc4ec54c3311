"""Taking away what nobody needs any more."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from agent_context.stores.sqlite.connection import SqliteFile
from agent_context.stores.sqlite.queries import fork_points, latest_snapshot_seq
from agent_context.stores.store import VacuumResult

__all__ = ["vacuum"]

_SHORTENED = """
SELECT DISTINCT s.conv FROM snapshot s
WHERE EXISTS (SELECT 1 FROM event e WHERE e.conv = s.conv AND e.seq <= s.seq AND e.at < ?)
"""

Range = tuple[int, int]
"""Entries from the first number to the second, both included."""


def vacuum(file: SqliteFile, before: float | None) -> VacuumResult:
    """Remove conversation by conversation, so that writers need not wait for all of it."""
    conversations = entries = 0
    for num in _numbers(file, "SELECT num FROM conversation WHERE deleted AND NOT emptied"):
        count = _find_emptied(file, num)
        conversations += count is not None
        entries += count or 0
    if before is not None:
        for num in _numbers(file, _SHORTENED, before):
            entries += _find_shortened(file, num, before)
    if conversations or entries:
        _drop_word_tables(file)
        _shrink(file)
    return VacuumResult(conversations, entries)


def _numbers(file: SqliteFile, query: str, *params: float) -> list[int]:
    with file.read_transaction() as connection:
        return [num for (num,) in connection.execute(query, params)]


def _find_emptied(file: SqliteFile, num: int) -> int | None:
    """How many entries of a deleted conversation were removed; None if forks need it."""
    with file.write_transaction() as connection:
        if fork_points(connection, num):
            return None
        count = _remove(connection, num, [(0, _head(connection, num))])
        for table in ("snapshot", "draft", "attachment"):
            connection.execute(f"DELETE FROM {table} WHERE conv = ?", (num,))  # noqa: S608 - ours
        connection.execute(
            "UPDATE conversation SET emptied = 1, metadata = '{}' WHERE num = ?", (num,)
        )
        return count


def _find_shortened(file: SqliteFile, num: int, before: float) -> int:
    """How many entries from before then were removed that a snapshot stands for."""
    with file.write_transaction() as connection:
        (alive,) = connection.execute(
            "SELECT NOT deleted FROM conversation WHERE num = ?", (num,)
        ).fetchone()
        newest = latest_snapshot_seq(connection, num, _head(connection, num))
        if not alive or newest is None:
            return 0
        (young,) = connection.execute(
            "SELECT min(seq) FROM event WHERE conv = ? AND seq <= ? AND at >= ?",
            (num, newest, before),
        ).fetchone()
        last = newest if young is None else young - 1
        points = fork_points(connection, num)
        needed = [
            ((latest_snapshot_seq(connection, num, point) or 0) + 1, point) for point in points
        ]
        return _remove(connection, num, _between(needed, last))


def _between(needed: Iterable[Range], last: int) -> Iterator[Range]:
    """What lies up to `last` outside all that is needed."""
    first = 0
    for start, end in sorted(needed):
        yield first, min(start - 1, last)
        first = max(first, end + 1)
    yield first, last


def _remove(connection: sqlite3.Connection, num: int, ranges: Iterable[Range]) -> int:
    # Positions go upwards for ever, also past those that are removed.
    connection.execute(
        "UPDATE removed SET position = max(position, ifnull((SELECT max(pos) FROM event), 0))"
    )
    count = 0
    for first, last in ranges:
        place = (num, first, last)
        (some,) = connection.execute(
            "SELECT count(*) FROM event WHERE conv = ? AND seq BETWEEN ? AND ?", place
        ).fetchone()
        connection.execute("DELETE FROM event WHERE conv = ? AND seq BETWEEN ? AND ?", place)
        count += some
    return count


def _head(connection: sqlite3.Connection, num: int) -> int:
    (head,) = connection.execute("SELECT head FROM conversation WHERE num = ?", (num,)).fetchone()
    return int(head)


def _drop_word_tables(file: SqliteFile) -> None:
    """Remove the index of words that earlier versions kept in the file."""
    with file.write_transaction() as connection:
        for table in ("word", "indexed"):
            connection.execute(f"DROP TABLE IF EXISTS {table}")


def _shrink(file: SqliteFile) -> None:
    """Give the room back to the system, and write over what the log still holds."""
    with file.writer_connection() as connection:
        # As a script: it works page by page, and `execute` takes one step only.
        connection.executescript("PRAGMA incremental_vacuum")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
