"""What was acknowledged is still there: after kill -9, and after a power cut."""

from __future__ import annotations

import logging
import os
import random
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import apsw
import pytest

from agent_context.errors import StoreError
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Write
from tests.stores import crash
from tests.stores.material import texts, write
from tests.stores.power import Disk, ForgetfulVfs, write_image

KILLS = int(os.environ.get("AGENT_CONTEXT_SOAK", "20"))
TRIALS = 100
NAMES: tuple[str, ...] = ("a", "b", "c")


@pytest.mark.slow
@pytest.mark.timeout(60 + 5 * KILLS)
def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    entries = crash.trials(tmp_path / "store.db", KILLS)

    assert entries > KILLS
    logging.getLogger(__name__).info("%d kills, %d entries, none lost", KILLS, entries)


def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    lost = [cut(tmp_path / str(trial), seed=trial) for trial in range(TRIALS)]

    assert lost == [0] * TRIALS


def test_the_power_cut_is_felt_where_commits_are_not_synchronised(tmp_path: Path) -> None:
    lost = [cut(tmp_path / str(trial), seed=trial, synchronous="NORMAL") for trial in range(TRIALS)]

    assert sum(each > 0 for each in lost) > TRIALS / 2


def cut(folder: Path, *, seed: int, synchronous: str = "FULL") -> int:
    """Cut the power at some moment of a workload; how many acknowledged entries were lost."""
    folder.mkdir()
    luck = random.Random(seed)
    disk = Disk()
    path = folder / "live.db"
    acknowledged: dict[str, int] = dict.fromkeys(NAMES, 0)
    moment, images = luck.randrange(20, 300), list[tuple[dict[str, int], dict[str, bytes]]]()

    def count() -> None:
        nonlocal moment
        moment -= 1
        if moment == 0:
            images.append((dict(acknowledged), disk.after_power_cut(luck)))

    with forgetful(path, disk, f"forgetful-{seed}-{synchronous}") as store:
        with store._file.writer_connection() as connection:
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {luck.choice([10, 50, 1000])}")
        for name in NAMES:
            store.claim(name)
        disk.on_change = count
        work(store, luck, acknowledged, images)
    (before, image), *_ = images
    (folder / "after").mkdir()
    return missing(write_image(image, path.name, folder / "after"), before)


def work(
    store: SqliteStore, luck: random.Random, acknowledged: dict[str, int], images: Sequence[object]
) -> None:
    """Write batches until the power was cut."""
    while not images:
        heads = dict(acknowledged)
        batch: list[Write] = []
        for name in luck.choices(NAMES, k=luck.randrange(1, 6)):
            batch.append(write(name, heads[name], str(heads[name] + 1), draft=b"x" * 500))
            heads[name] += 1
        answers: list[StoreError | None] = list(store.write(batch))
        assert answers == [None] * len(batch)
        acknowledged.update(heads)


def missing(path: Path, acknowledged: dict[str, int]) -> int:
    """How many entries are not in the file that should be; fails if it is damaged."""
    store = SqliteStore(path)
    try:
        assert all(finding.ok for finding in store.health()), store.health()
        lost = 0
        for name in NAMES:
            said = texts(store, name) if store.info(name) else []
            assert said == [str(number) for number in range(1, len(said) + 1)]
            lost += max(0, acknowledged[name] - len(said))
        return lost
    finally:
        store.close()


@contextmanager
def forgetful(path: Path, disk: Disk, name: str) -> Generator[SqliteStore]:
    """A store on a disk that forgets."""
    vfs = ForgetfulVfs(name, disk)

    def connect(database: str) -> sqlite3.Connection:
        connection = apsw.Connection(database, vfs=name)
        # Without shared memory, which a VFS in Python can't have.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        return cast("sqlite3.Connection", connection)

    store = SqliteStore(path, connect=connect)
    try:
        yield store
    finally:
        store.close()
        vfs.unregister()
