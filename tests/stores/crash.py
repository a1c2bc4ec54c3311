"""A process that writes from many threads and says what was acknowledged, to be killed.

    python -m tests.stores.crash FILE

prints a conversation and the number of an entry after each reply.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from threading import Thread

from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.writer import StoreExecutor
from tests.stores.material import texts, write

CONVERSATIONS = [f"c{number}" for number in range(8)]


def killed(path: Path, after: int) -> Counter[str]:
    """Let it write until `after` entries were acknowledged; the last of each conversation."""
    command = [sys.executable, "-m", "tests.stores.crash", str(path)]
    acknowledged: Counter[str] = Counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            name, seq = line.split()
            acknowledged[name.decode()] = int(seq)
            after -= 1
            if after == 0:
                writer.kill()
    assert after <= 0, "it ended by itself"
    return acknowledged


def check(path: Path, acknowledged: Counter[str]) -> int:
    """Fail if an acknowledged entry is missing, or any is there twice; count them."""
    store = SqliteStore(path)
    try:
        for name in CONVERSATIONS:
            said = texts(store, name)
            assert said == [str(number) for number in range(1, len(said) + 1)]
            assert len(said) >= acknowledged[name], (name, len(said), acknowledged[name])
        assert all(finding.ok for finding in store.health()), store.health()
        return len(store.feed(limit=1_000_000))
    finally:
        store.close()


def trials(path: Path, times: int, *, seed: int = 0) -> int:
    """Kill it `times` times, each at another moment; how many entries survived."""
    moments = random.Random(seed)
    acknowledged: Counter[str] = Counter()
    entries = 0
    for _ in range(times):
        acknowledged |= killed(path, moments.randrange(1, 400))
        entries = check(path, acknowledged)
    return entries


def _write_for_ever(store: SqliteStore, access: StoreExecutor, name: str) -> None:
    claim = store.claim(name)
    head = claim.head
    while True:
        access.submit(write(name, head, str(head + 1), epoch=claim.epoch)).get(timeout=60)
        head += 1
        # One system call: a line is told whole or not at all.
        os.write(1, f"{name} {head}\n".encode())


def main() -> None:
    store = SqliteStore(sys.argv[1])
    access = StoreExecutor.for_store(store)
    threads = [Thread(target=_write_for_ever, args=(store, access, name)) for name in CONVERSATIONS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
