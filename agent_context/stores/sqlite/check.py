"""What a SQLite store says of itself."""

from __future__ import annotations

import shutil
import sqlite3
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Final

from agent_context.stores.sqlite.file import SqliteFile
from agent_context.stores.sqlite.schema import MIGRATIONS
from agent_context.stores.store import Finding

__all__ = ["findings", "has_wal_reset_bug"]

SLOW: Final = 0.1
ROOM: Final = 100 << 20
DURABLE: Final = {2: "full", 3: "extra"}
SHOWN: Final = 3


def has_wal_reset_bug(version: Sequence[int]) -> bool:
    """Whether this SQLite can lose commits when two connections write and checkpoint at once."""
    release = tuple(version)
    if (3, 44, 6) <= release < (3, 45) or (3, 50, 7) <= release < (3, 51):
        return False
    return (3, 7, 0) <= release < (3, 51, 3)


def findings(file: SqliteFile) -> Sequence[Finding]:
    """Everything that can be found out without knowing what the file should hold."""
    with file.alone() as connection:
        return (*_settings(connection), _integrity(connection), _speed(connection), _room(file))


def _settings(connection: sqlite3.Connection) -> Iterator[Finding]:
    (text,) = connection.execute("SELECT sqlite_version()").fetchone()
    bug = has_wal_reset_bug([int(part) for part in text.split(".")])
    note = (
        " has the WAL-reset bug (fixed in 3.51.3, 3.50.7 and 3.44.6); it can't strike while nothing"
        " but this store writes to the file"
    )
    yield Finding("sqlite", ok=True, text=f"SQLite {text}{note if bug else ''}")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    yield Finding("schema", ok=version == len(MIGRATIONS), text=f"schema {version}")
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    yield Finding("journal", ok=mode == "wal", text=f"journal mode {mode}")
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    name = DURABLE.get(level, f"{level}: a power cut loses what was acknowledged")
    yield Finding("synchronous", ok=level in DURABLE, text=f"synchronous {name}")


def _integrity(connection: sqlite3.Connection) -> Finding:
    try:
        problems = [text for (text,) in connection.execute("PRAGMA quick_check(10)")]
    except sqlite3.Error as error:
        problems = [str(error)]
    ok = problems == ["ok"]
    text = "the file is sound" if ok else "; ".join(problems[:SHOWN])
    return Finding("integrity", ok=ok, text=text)


def _speed(connection: sqlite3.Connection) -> Finding:
    times: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        try:
            connection.execute("UPDATE removed SET position = position")
        except sqlite3.Error as error:
            return Finding("commit", ok=False, text=f"nothing can be written: {error}")
        times.append(time.perf_counter() - start)
    took = statistics.median(times)
    return Finding("commit", ok=took < SLOW, text=f"a durable commit takes {took * 1000:.1f} ms")


def _room(file: SqliteFile) -> Finding:
    free = shutil.disk_usage(file.path.parent).free
    return Finding("room", ok=free > ROOM, text=f"{free >> 20} MiB free where the file is")
