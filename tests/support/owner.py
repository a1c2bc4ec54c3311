"""A process whose host talks in conversations of a database until it is killed.

python -m tests.support.owner DSN SCHEMA LEASE CONVERSATION...

It waits for a line on its input and then talks in each conversation as soon as it can be had, again
and again. It says on its output, as lines of JSON, what happened: got, acked, refused.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count
from threading import Thread
from typing import Any

from agent_context import Append, ContextRef, Host, Message
from agent_context.errors import OwnedByAnotherProcess, StoreError
from agent_context.stores.postgres import PostgresStore
from agent_context_backends.scripted import ScriptedBackend

PATIENCE = 300.0


def main(dsn: str, schema: str, lease: str, *conversations: str) -> None:
    host = Host(PostgresStore(dsn, schema=schema, lease=float(lease)), ScriptedBackend())
    say("ready")
    sys.stdin.readline()
    threads = [Thread(target=work, args=(host, each)) for each in conversations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def work(host: Host, conversation: str) -> None:
    pid = os.getpid()
    ref = got(host, conversation)
    for number in count():
        said = f"{pid} {number}"
        try:
            ref.ask(Append(Message.user(said)), timeout=PATIENCE)
        except StoreError as error:
            say("refused", conversation, said=said, why=type(error).__name__)
            ref = got(host, conversation)
        else:
            say("acked", conversation, said=said)


def got(host: Host, conversation: str) -> ContextRef:
    """Have the conversation as soon as nobody else has it, and tell how long the last step took."""
    while True:
        begun = time.perf_counter()
        try:
            ref = host.get(conversation)
        except OwnedByAnotherProcess:
            time.sleep(0.05)
            continue
        say("got", conversation, at=time.time(), took=time.perf_counter() - begun)
        return ref


def say(what: str, conversation: str = "", **facts: Any) -> None:
    line = json.dumps({"what": what, "id": conversation} | facts) + "\n"
    os.write(1, line.encode())  # in one piece, whatever the other threads say


if __name__ == "__main__":
    main(*sys.argv[1:])
