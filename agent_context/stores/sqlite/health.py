"""What a SQLite store says of itself."""

from __future__ import annotations

import shutil
import sqlite3
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Final

from agent_context.stores.sqlite.connection import SqliteFile
from agent_context.stores.sqlite.schema import MIGRATIONS
from agent_context.stores.store import HealthCheck

__all__ = ["check_health", "has_wal_reset_bug"]

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


def check_health(file: SqliteFile) -> Sequence[HealthCheck]:
    """Everything that can be found out without knowing what the file should hold."""
    with file.writer_connection() as connection:
        return (
            *_check_settings(connection),
            _check_integrity(connection),
            _check_commit_time(connection),
            _check_disk_space(file),
        )


def _check_settings(connection: sqlite3.Connection) -> Iterator[HealthCheck]:
    (text,) = connection.execute("SELECT sqlite_version()").fetchone()
    bug = has_wal_reset_bug([int(part) for part in text.split(".")])
    note = (
        " has the WAL-reset bug (fixed in 3.51.3, 3.50.7 and 3.44.6); it can't strike while nothing"
        " but this store writes to the file"
    )
    yield HealthCheck("sqlite", ok=True, text=f"SQLite {text}{note if bug else ''}")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    yield HealthCheck("schema", ok=version == len(MIGRATIONS), text=f"schema {version}")
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    yield HealthCheck("journal", ok=mode == "wal", text=f"journal mode {mode}")
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    name = DURABLE.get(level, f"{level}: a power cut loses what was acknowledged")
    yield HealthCheck("synchronous", ok=level in DURABLE, text=f"synchronous {name}")


def _check_integrity(connection: sqlite3.Connection) -> HealthCheck:
    try:
        problems = [text for (text,) in connection.execute("PRAGMA quick_check(10)")]
    except sqlite3.Error as error:
        problems = [str(error)]
    ok = problems == ["ok"]
    text = "the file is sound" if ok else "; ".join(problems[:SHOWN])
    return HealthCheck("integrity", ok=ok, text=text)


def _check_commit_time(connection: sqlite3.Connection) -> HealthCheck:
    times: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        try:
            connection.execute("UPDATE removed SET position = position")
        except sqlite3.Error as error:
            return HealthCheck("commit", ok=False, text=f"nothing can be written: {error}")
        times.append(time.perf_counter() - start)
    took = statistics.median(times)
    return HealthCheck(
        "commit", ok=took < SLOW, text=f"a durable commit takes {took * 1000:.1f} ms"
    )


def _check_disk_space(file: SqliteFile) -> HealthCheck:
    free = shutil.disk_usage(file.path.parent).free
    return HealthCheck("room", ok=free > ROOM, text=f"{free >> 20} MiB free where the file is")
