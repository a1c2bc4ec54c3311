"""A process that owns conversations and writes to them until it is killed or fenced.

python -m tests.support.appender DSN SCHEMA LEASE CONVERSATION...

It waits for a line on its input, claims each conversation as soon as it can be had, and then says
on its output, as lines of JSON, what happened: claimed, acked, fenced.
"""

from __future__ import annotations

import json
import os
import sys
import time
from threading import Thread
from typing import Any

from agent_context.errors import Fenced, OwnedByAnotherProcess
from agent_context.stores.postgres import PostgresStore
from agent_context.stores.store import Claim, Entry, Write
from agent_context.stores.writer import StoreExecutor


def main(dsn: str, schema: str, lease: str, *conversations: str) -> None:
    store = PostgresStore(dsn, schema=schema, lease=float(lease))
    access = StoreExecutor(store)
    say("ready")
    sys.stdin.readline()
    threads = [Thread(target=work, args=(store, access, each)) for each in conversations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say("ended")
    sys.stdin.readline()


def work(store: PostgresStore, access: StoreExecutor, conversation: str) -> None:
    claim = claimed(store, conversation)
    head, pid = claim.head, os.getpid()
    while True:
        head += 1
        try:
            access.submit(following(conversation, claim.epoch, head, pid)).get(timeout=60)
        except Fenced:
            say("fenced", conversation, seq=head)
            return
        say("acked", conversation, epoch=claim.epoch, seq=head, pid=pid)


def following(conversation: str, epoch: int, seq: int, pid: int) -> Write:
    payload = json.dumps({"content": f"{epoch} {seq} {pid}"}).encode()
    entry = Entry(seq, "appended", payload, time.time())
    return Write(conversation_id=conversation, epoch=epoch, head=seq - 1, entries=(entry,))


def claimed(store: PostgresStore, conversation: str) -> Claim:
    while True:
        begun = time.perf_counter()
        try:
            claim = store.claim(conversation)
        except OwnedByAnotherProcess:
            time.sleep(0.05)
            continue
        at, took = time.time(), time.perf_counter() - begun
        store.load(conversation)
        load = time.perf_counter() - begun - took
        say("claimed", conversation, at=at, claim=took, load=load)
        return claim


def say(what: str, conversation: str = "", **facts: Any) -> None:
    line = json.dumps({"what": what, "id": conversation} | facts) + "\n"
    os.write(1, line.encode())  # in one piece, whatever the other threads say


if __name__ == "__main__":
    main(*sys.argv[1:])
