"""The tables, and how files of older versions come to have them."""

from __future__ import annotations

import sqlite3
from typing import Final

from agent_context.errors import StoreCorrupt

__all__ = ["APPLICATION", "MIGRATIONS", "check_version", "migrate"]

APPLICATION: Final = 0x41436F6E
"""Says in the file's head whose file it is."""

# The events have a row number, though they are looked up by conversation: measured against a table
# WITHOUT ROWID they are written two to three times as fast, and a message of 1.2 kB takes 1.4 kB
# on disk, not 4.7, because such a table moves all but small rows to pages of their own.
FIRST: Final = (
    """
    CREATE TABLE conversation(
        num INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        epoch INTEGER NOT NULL,
        head INTEGER NOT NULL DEFAULT 0,
        owner TEXT,
        metadata BLOB NOT NULL DEFAULT '{}',
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        parent INTEGER REFERENCES conversation(num),
        parent_seq INTEGER,
        deleted INTEGER NOT NULL DEFAULT 0,
        emptied INTEGER NOT NULL DEFAULT 0
    )
    """,
    "CREATE INDEX conversation_parent ON conversation(parent) WHERE parent IS NOT NULL",
    """
    CREATE TABLE event(
        pos INTEGER PRIMARY KEY,
        conv INTEGER NOT NULL REFERENCES conversation(num),
        seq INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        kind TEXT NOT NULL,
        payload BLOB NOT NULL,
        at REAL NOT NULL,
        key TEXT
    )
    """,
    "CREATE UNIQUE INDEX event_seq ON event(conv, seq)",
    "CREATE UNIQUE INDEX event_key ON event(conv, key) WHERE key IS NOT NULL",
    """
    CREATE TABLE snapshot(
        conv INTEGER NOT NULL REFERENCES conversation(num),
        seq INTEGER NOT NULL,
        format INTEGER NOT NULL,
        payload BLOB NOT NULL,
        PRIMARY KEY(conv, seq)
    )
    """,
    """
    CREATE TABLE draft(
        conv INTEGER PRIMARY KEY REFERENCES conversation(num),
        payload BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE attachment(
        conv INTEGER NOT NULL REFERENCES conversation(num),
        name TEXT NOT NULL,
        payload BLOB NOT NULL,
        PRIMARY KEY(conv, name)
    )
    """,
    # The last position that was given to an entry which is not there any more.
    "CREATE TABLE removed(position INTEGER NOT NULL)",
    "INSERT INTO removed VALUES(0)",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (FIRST,)
"""The statements that lead from one version to the next; a file says how many it has had."""


def check_version(connection: sqlite3.Connection, path: str) -> int:
    """The schema version of the file; 0 for an empty one. Raises `StoreCorrupt`."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION and (application or version or tables):
        raise StoreCorrupt(f"{path} is a database of another program: choose another file")
    if version > len(MIGRATIONS):
        raise StoreCorrupt(
            f"{path} was written by a newer version of this library: its schema is {version}, the"
            f" newest that this version knows is {len(MIGRATIONS)}. Update the library"
        )
    return int(version)


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring the tables of `version` up to date, inside a transaction of the caller."""
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
