"""One turn with tools that dies at its first step, then at its second, until it gets to its end.

    python -m tests.host.steps send|stream FOLDER

leaves a file behind for each death, and prints how many there were. A step is each side of a write
to the store, of a call of the model, of each event of its stream, and of each tool call.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count
from pathlib import Path

from agent_context import Append, Completion, Host, Message, Send, SendStream
from agent_context._actor import turn_task
from agent_context.backend import Request
from agent_context.errors import StoreError
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Claim, ForkOrigin, Write
from agent_context.stream_events import StreamEvent
from agent_context.tools.loop import ToolRound
from agent_context_backends.scripted import ScriptedBackend
from tests.host.model import answers

DEAD = 9
SAID = "tools x"
PACE = 0.01
"""Seconds between two events: long enough to be noted one by one."""


class Life:
    """So many steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os._exit(DEAD)


class MortalStore(SqliteStore):
    life: Life

    def claim(self, conversation_id: str, *, parent: ForkOrigin | None = None) -> Claim:
        self.life.step()
        claim = super().claim(conversation_id, parent=parent)
        self.life.step()
        return claim

    def write(self, batch: Sequence[Write]) -> Sequence[StoreError | None]:
        self.life.step()
        answers = super().write(batch)
        self.life.step()
        return answers


class MortalModel(ScriptedBackend):
    life: Life

    async def send_stream(self, request: Request) -> AsyncIterator[StreamEvent]:
        self.life.step()
        async for event in super().send_stream(request):
            yield event
            self.life.step()


class MortalTools:
    def __init__(self, life: Life) -> None:
        self._life = life

    async def answer(
        self, completion: Completion, done: Callable[[Message], object]
    ) -> ToolRound | None:
        results: list[Message] = []
        for call in completion.message.tool_calls:
            self._life.step()
            results.append(Message.tool(call.id, call.id))
            done(results[-1])
            await asyncio.sleep(PACE)
            self._life.step()
        return ToolRound(results)


def live(how: str, path: Path, steps: int) -> None:
    turn_task._CHECKPOINT = 0.0  # what streams in is noted at once
    life = Life(steps)
    store, model = MortalStore(path), MortalModel(answers(), delay=PACE)
    store.life = model.life = life
    with Host(store, model) as host:
        ref = host.get("c")
        ref.ask(Append(Message.user("before"), key="before"))
        asked, loop = [Message.user(SAID)], MortalTools(life)
        if how == "send":
            ref.ask(Send(messages=asked, loop=loop, key="turn"))
        else:
            list(ref.ask(SendStream(messages=asked, loop=loop, key="turn")))


def main(how: str, folder: str) -> None:
    # Each life in a fork of this process, which has no threads: an interpreter takes a second.
    for steps in count(1):
        child = os.fork()
        if child == 0:
            live(how, Path(folder, f"{steps}.db"), steps)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != DEAD:
            assert status == 0, status
            sys.stdout.write(f"{steps}\n")
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
