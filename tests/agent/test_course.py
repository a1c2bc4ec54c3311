"""Whatever happens to a kept conversation of an agent: what is kept is what is live, nothing that
was ever said is missing in its history, and every vendor takes each of its requests.

Elsewhere a transcript was another one once it was restored: strands harness-sdk#4027, #4087.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from itertools import count, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context import (
    AgentSession,
    Append,
    BackendError,
    Compress,
    ContextFull,
    ContextRef,
    ErrorKind,
    Extend,
    Fork,
    Incremental,
    Message,
    Messages,
    SendOptions,
    SlidingWindow,
    Summarize,
    ToolCall,
)
from agent_context._actor.recovery import load_state
from agent_context.backend import Request
from agent_context.compression import EvictToolResults, default_strategy
from agent_context.compression.summarize import PROMPT
from agent_context.errors import CompressionError, UsageError
from agent_context.protocol import History, Restore, Rewind
from agent_context.ref import read_zones
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from agent_context.tools import tool
from agent_context.wire.repair import repair_history
from agent_context_backends.scripted import ScriptedBackend
from tests.histories import DIALECTS
from tests.support.examples import examples
from tests.wire.rules import record_faults
from tests.wire.test_vendor_rules import refusals

answers = st.sampled_from(["text", "text", "look", "two", "pay", "hang", "fail"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.lists(answers, max_size=3)),
        st.tuples(st.just("stream"), st.lists(answers, max_size=3)),
        st.tuples(st.just("leave"), st.integers(0, 4)),
        st.tuples(st.just("decide"), st.sampled_from([True, False, "no"])),
        st.tuples(st.sampled_from(["compress", "allow"]), st.integers(0, 4)),
        st.tuples(st.just("rewind"), st.integers(0, 9)),
        st.tuples(st.sampled_from(["restore", "fork", "append", "crash", "stop"]), st.none()),
    ),
    max_size=9,
)
STRATEGIES = [
    Summarize(0),
    Summarize(3),
    SlidingWindow(1),
    EvictToolResults(0),
    default_strategy(keep=2),
]


class Course:
    """One conversation, and what has been seen of it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.answers: deque[str] = deque()
        self.numbers = count()
        self.seen: dict[str, Message] = {}
        self.paid: list[str] = []
        self.hangs = asyncio.Event()
        self.backend = ScriptedBackend(repeat(self.answer))
        self.agent = self.backend.as_agent(
            "Be brief.",
            tools=[
                tool(lambda: "seen " * 150, name="look", description="Look."),
                tool(self.pay, approval="require"),
                tool(self.hang),
            ],
            options=SendOptions(context_window=900, max_tokens=150),
            store=store,
        )
        self.session = AgentSession("s")
        self.pending: Sequence[ToolCall] = ()

    def pay(self) -> str:
        """Pay."""
        self.paid.append("once")
        return "paid"

    async def hang(self) -> str:
        """Hang."""
        self.hangs.set()
        await asyncio.Event().wait()
        return "never"

    def answer(self, request: Request) -> Message | str | Exception:
        check_request(request)
        if request.records[-1].message.text == PROMPT:
            return "They talked."
        kind = self.answers.popleft() if self.answers else "text"
        if kind == "fail":
            return BackendError("down", kind=ErrorKind.OVERLOADED, retryable=False)
        if kind == "text":
            return f"Answer {next(self.numbers)}. " + "word " * 40
        names = ["look", "look"] if kind == "two" else [kind]
        made = [ToolCall(id=f"c{next(self.numbers)}", name=name) for name in names]
        return Message.assistant("", tool_calls=made, reasoning="Hm.")

    async def conversation(self) -> ContextRef:
        return await self.agent.conversations.open(self.session)

    async def go(self, step: str, given: Any) -> None:
        work: Callable[[Any], Coroutine[Any, Any, None]] = getattr(self, f"_{step}")
        await work(given)
        await self.agent.drain(self.session)
        await self.check()

    async def _run(self, answers: list[str]) -> None:
        self.answers.extend(answers)
        await self._watched(self.agent.run("go on", session=self.session))

    async def _stream(self, answers: list[str]) -> None:
        self.answers.extend(answers)
        stream = self.agent.run("go on", session=self.session, stream=True)
        await self._watched(stream.get_final_response())

    async def _watched(self, run: Coroutine[Any, Any, Any]) -> None:
        """A run, which is cancelled when a tool hangs."""
        self.hangs.clear()
        self.pending = ()
        task = asyncio.create_task(run)
        hangs = asyncio.create_task(self.hangs.wait())
        await asyncio.wait([task, hangs], return_when=asyncio.FIRST_COMPLETED)
        hangs.cancel()
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, BackendError, ContextFull):
            self.pending = (await task).pending
        self.answers.clear()

    async def _leave(self, updates: int) -> None:
        self.pending = ()
        with contextlib.suppress(ContextFull):
            async with self.agent.run("go on", session=self.session, stream=True) as stream:
                for _ in range(updates):
                    if await anext(stream, None) is None:
                        break

    async def _allow(self, which: int) -> None:
        await self._run(["pay"])
        await self._compress(which)
        await self._decide(True)

    async def _decide(self, decision: bool | str) -> None:
        waiting, before = self.pending, len(self.paid)
        if not waiting:
            return
        decisions = {call.id: decision for call in waiting}
        await self._watched(self.agent.run(session=self.session, approvals=decisions))
        assert len(self.paid) - before == (len(waiting) if decision is True else 0)

    async def _compress(self, which: int) -> None:
        ref = await self.conversation()
        before = await ref.aask(Messages())
        try:
            await ref.aask(Compress(STRATEGIES[which]))
        except CompressionError:
            assert await ref.aask(Messages()) == before

    async def _rewind(self, back: int) -> None:
        ref = await self.conversation()
        self.pending = ()
        before = await ref.aask(Messages())
        to = max(0, len(await ref.aask(Incremental())) - back)
        if await ref.aask(Rewind(to)):
            await ref.aask(Restore())
            assert await ref.aask(Messages()) == before
            await ref.aask(Rewind(to))

    async def _restore(self, _: None) -> None:
        ref = await self.conversation()
        self.pending = ()
        with contextlib.suppress(UsageError):  # there was no rewind
            await ref.aask(Restore())

    async def _append(self, _: None) -> None:
        ref = await self.conversation()
        self.pending = ()
        await ref.aask(Extend([Message.user("by the way"), Message.assistant("Yes?")]))

    async def _fork(self, _: None) -> None:
        ref = await self.conversation()
        fork = await ref.aask(Fork())
        await fork.aask(Append(Message.user("elsewhere")))
        assert (await fork.aask(Messages()))[:-1] == await ref.aask(Messages())
        assert live(await read_zones(fork)) == live(load_state(self.store, fork.id).zones)
        said = [remark.message.id for remark in await everything(ref)]
        assert [remark.message.id for remark in await everything(fork)][:-1] == said
        await asyncio.to_thread(fork.stop)

    async def _crash(self, _: None) -> None:
        await self.conversation()
        self.store.claim("s")
        self.session = AgentSession("s")

    async def _stop(self, _: None) -> None:
        await asyncio.to_thread((await self.conversation()).stop)
        self.session = AgentSession("s")

    async def check(self) -> None:
        ref = await self.conversation()
        said = await ref.aask(Messages())
        assert live(await read_zones(ref)) == live(load_state(self.store, "s").zones)
        calls = {call.id for message in said for call in message.tool_calls}
        assert calls >= {message.tool_call_id for message in said if message.tool_call_id}
        self.seen |= {message.id: message for message in said}
        history = [remark.message.id for remark in await everything(ref)]
        assert self.seen.keys() <= set(history)


def live(zones: Any) -> list[bytes]:
    return [record.to_json_line() for record in zones]


async def everything(ref: ContextRef) -> list[Any]:
    remarks: list[Any] = []
    after: str | None = ""
    while after is not None:
        page = await ref.aask(History(after, limit=7))
        remarks += page.entries
        after = page.cursor
    return remarks


def check_request(request: Request) -> None:
    called: set[str] = set()
    for record in request.records:
        assert record.role != "tool" or called.issuperset(record.call_ids)
        called.update(record.call_ids)
    assert not any(refusals(list(request.records)).values())
    for rules in DIALECTS:
        assert record_faults(repair_history(request.records, rules), rules) == []


async def through(store: Store, course: list[tuple[str, Any]]) -> None:
    one = Course(store)
    for step, given_ in course:
        await one.go(step, given_)
    one.answers.clear()
    response = await one.agent.run("good bye", session=one.session, tools=())
    assert response.text
    await asyncio.to_thread((await one.conversation()).stop)


@pytest.mark.timeout(300)
@given(steps)
def test_any_course_is_kept_as_it_was_lived(course: list[tuple[str, Any]]) -> None:
    pytest.importorskip("deepseek_recipe")

    asyncio.run(through(MemoryStore(), course))


@pytest.mark.timeout(300)
@examples(0.2)
@given(steps)
def test_any_course_is_kept_in_a_file(course: list[tuple[str, Any]]) -> None:
    pytest.importorskip("deepseek_recipe")

    with (
        TemporaryDirectory() as folder,
        closing(SqliteStore(Path(folder) / "talk.db")) as store,
    ):
        asyncio.run(through(store, course))
