"""A process with a host under load that says what was acknowledged, to be killed.

    python -m tests.host.busy SEED sqlite FILE
    python -m tests.host.busy SEED postgres DSN SCHEMA

prints a line of JSON before each thing that it asks and after each reply.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Sequence
from threading import Thread
from typing import Any, Final
from uuid import uuid4

from agent_context import (
    Append,
    Compress,
    ContextRef,
    Extend,
    Fork,
    Host,
    Message,
    Send,
    SendStream,
    SlidingWindow,
)
from agent_context.errors import StoreError, UsageError
from agent_context.protocol import Len, Restore, Rewind
from agent_context.stores.store import Store, Write
from tests.host.model import TOOLS, Echo, model

CONVERSATIONS: Final = [f"c{number}" for number in range(6)]
LEASE: Final = 1.0


def open_store(kind: str, place: str, schema: str = "") -> Store:
    if kind == "sqlite":
        from agent_context.stores.sqlite import SqliteStore

        return SqliteStore(place)
    from agent_context.stores.postgres import PostgresStore

    return PostgresStore(place, schema=schema, lease=LEASE)


def append(ref: ContextRef, said: str) -> str:
    return ref.ask(Append(Message.user(said), key=said))


def append_keyless(ref: ContextRef, said: str) -> str:
    return ref.ask(Append(Message.user(said)))


def extend(ref: ContextRef, said: str) -> str:
    return ref.ask(Extend([Message.user(said), Message.user("and more")], key=said))[0]


def send(ref: ContextRef, said: str) -> str:
    return ref.ask(Send(messages=[Message.user(said)], key=said)).message.id


def call_tools(ref: ContextRef, said: str) -> str:
    return ref.ask(Send(messages=[Message.user(said)], loop=Echo(), key=said)).message.id


def stream(ref: ContextRef, said: str) -> str:
    with ref.ask(SendStream(messages=[Message.user(said)], key=said)) as streamed:
        list(streamed)
    return streamed.message.id


KEYLESS: Final = "keyless"
ASKS: Final = {
    KEYLESS: append_keyless,
    "append": append,
    "extend": extend,
    "send": send,
    TOOLS: call_tools,
    "stream": stream,
}


def work(host: Host, name: str, luck: random.Random) -> None:
    ref = host.get(name, patience=60)
    while True:
        how = luck.choice([*ASKS, "fork", "compress", "rewind"])
        if how in ASKS:
            ask(how, ref)
        elif how == "fork":
            ask("append", ref.ask(Fork()))
        elif how == "compress":
            ref.ask(Compress(SlidingWindow(turns=luck.randrange(1, 5))))
        else:
            rewind(ref, luck)


def ask(how: str, ref: ContextRef) -> None:
    said = f"{how} {uuid4().hex[:12]}"
    say(begun=said, id=ref.id)
    say(acked=said, id=ref.id, answer=ASKS[how](ref, said))


def rewind(ref: ContextRef, luck: random.Random) -> None:
    try:
        ref.ask(Rewind(luck.randrange(1 + ref.ask(Len()))))
        if luck.random() < 0.5:
            ref.ask(Restore())
    except UsageError:
        pass  # a compression came in between


def say(**fact: Any) -> None:
    # One system call: a line is told whole or not at all.
    os.write(1, json.dumps(fact).encode() + b"\n")


def slow_down(store: Store) -> None:
    """Give it a slow disk, so that an answer before the commit is seldom a true one."""
    write = store.write

    def late(batch: Sequence[Write]) -> Sequence[StoreError | None]:
        time.sleep(0.005)
        return write(batch)

    store.write = late  # type: ignore[method-assign]


def main(seed: str, *place: str) -> None:
    luck = random.Random(seed)
    store = open_store(*place)
    if luck.random() < 0.5:
        slow_down(store)
    host = Host(store, model(), live=4)
    threads = [
        Thread(target=work, args=(host, name, random.Random(luck.random())))
        for name in CONVERSATIONS
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
