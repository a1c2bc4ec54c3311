"""What holds for a conversation whatever is done to it."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent_context import (
    AgentContext,
    Append,
    Compress,
    ContextRef,
    Extend,
    FromJsonl,
    Incremental,
    Message,
    Messages,
    Role,
    Send,
    SlidingWindow,
    Summarize,
    ToJsonl,
    TokenBudget,
)
from agent_context._actor.recovery import load_state
from agent_context._actor.snapshot_codec import decode_snapshot, encode_snapshot
from agent_context._context.jsonl import dump_zones
from agent_context.compression import EvictToolResults, Strategy, default_strategy
from agent_context.errors import AgentContextError
from agent_context.events import Cleared
from agent_context.protocol import (
    Ask,
    Clear,
    Compressed,
    Immutable,
    Insert,
    Len,
    Pop,
    Remove,
    Restore,
    Retain,
    Rewind,
    Update,
    Zone,
)
from agent_context.stores.memory import MemoryStore
from agent_context_backends.scripted import ScriptedBackend
from tests.actor.conftest import Seen
from tests.actor.test_events import replayed
from tests.histories import histories, messages

SYSTEM = Message.system("You are terse.")

strategies: st.SearchStrategy[Strategy] = st.one_of(
    st.builds(Summarize, keep=st.integers(0, 5)),
    st.builds(SlidingWindow, st.integers(1, 4)),
    st.builds(TokenBudget, st.integers(1, 600)),
    st.builds(EvictToolResults, st.integers(0, 3)),
    st.builds(default_strategy, keep=st.integers(0, 5), keep_results=st.integers(0, 3)),
)
indexes = st.integers(-1, 8)
edits: st.SearchStrategy[Ask[Any]] = st.one_of(
    st.builds(Append, messages),
    st.builds(Extend, st.lists(messages, max_size=4)),
    st.builds(Insert, indexes, messages),
    st.builds(Update, indexes, messages),
    st.builds(Remove, indexes),
    st.builds(Pop),
    st.builds(Retain, st.sampled_from(Role)),
    st.builds(Rewind, indexes),
    st.builds(Restore),
    st.builds(Clear),
    st.builds(Compress, strategies),
    st.builds(Send, messages=st.lists(messages, max_size=2)),
)


def started(**config: Any) -> ContextRef:
    backend = ScriptedBackend([lambda _: "So it went."] * 200)
    return AgentContext.start(backend, immutable=[SYSTEM], **config)


def done(ctx: ContextRef, edit: Ask[Any]) -> bool:
    """Whether it was carried out; what is refused must change nothing."""
    before = ctx.ask(ToJsonl())
    try:
        ctx.ask(edit)
    except AgentContextError:
        assert ctx.ask(ToJsonl()) == before
        return False
    return True


@given(st.lists(edits, max_size=12))
def test_the_zones_keep_their_laws_whatever_is_said(said: list[Ask[Any]]) -> None:
    seen = Seen()
    ctx = started(on_change=seen)

    for edit in said:
        done(ctx, edit)

    everything = ctx.ask(Messages())
    assert ctx.ask(Immutable()) == (SYSTEM,)
    assert everything == (SYSTEM, *ctx.ask(Compressed()), *ctx.ask(Incremental()))
    assert ctx.ask(Len()) == len(everything)
    assert len({message.id for message in everything}) == len(everything)
    _everything_was_announced(ctx, seen)
    ctx.stop()


@given(st.lists(edits, max_size=12))
def test_the_log_and_a_snapshot_each_make_the_same_conversation(said: list[Ask[Any]]) -> None:
    store = MemoryStore()
    ctx = started(store=store)

    for edit in said:
        done(ctx, edit)

    kept = load_state(store, ctx.id)
    assert dump_zones(kept.zones, Zone) == ctx.ask(ToJsonl())
    thawed = decode_snapshot(encode_snapshot(kept))
    assert thawed is not None
    assert dump_zones(thawed.zones, Zone) == dump_zones(kept.zones, Zone)
    assert (thawed.seq, thawed.version) == (kept.seq, kept.version)
    assert (thawed.undo is None) == (kept.undo is None)
    if kept.undo is not None and thawed.undo is not None:
        assert dump_zones(thawed.undo, Zone) == dump_zones(kept.undo, Zone)
    assert [entry.seq for entry in store.entries(ctx.id)] == list(range(1, kept.seq + 1))
    ctx.stop()
    again = AgentContext.start(ScriptedBackend(), store=store, id=ctx.id)
    assert again.ask(ToJsonl()) == dump_zones(kept.zones, Zone)
    again.stop()


def _everything_was_announced(ctx: ContextRef, seen: Seen) -> None:
    ctx.ask(Extend([Message.user("last")]))
    ctx.ask(Clear())
    seen.wait_until_last_is(Cleared)
    assert [event.seq for event in seen.events] == list(range(1, len(seen.events) + 1))
    assert replayed(seen.events) == (list(ctx.ask(Compressed())), [])


@given(histories, st.lists(strategies, max_size=2))
def test_export_import_export_is_the_identity(records: Any, compressed_by: list[Strategy]) -> None:
    ctx = started()
    ctx.ask(Extend([record.message for record in records]))
    for strategy in compressed_by:
        done(ctx, Compress(strategy))
    text = ctx.ask(ToJsonl())

    copy = AgentContext.start(ScriptedBackend())
    copy.ask(FromJsonl(text))

    assert copy.ask(ToJsonl()) == text
    ctx.stop()
    copy.stop()


@given(histories, strategies)
def test_no_compression_orphans_a_result_or_touches_the_immutable_zone(
    records: Any, strategy: Strategy
) -> None:
    ctx = started()
    ctx.ask(Extend([record.message for record in records]))
    orphans = _orphans(ctx.ask(Incremental()))
    newest = ctx.ask(Incremental())[-1:]

    done(ctx, Compress(strategy))

    assert ctx.ask(Immutable()) == (SYSTEM,)
    assert _orphans(ctx.ask(Incremental())) <= orphans
    assert [message.id for message in ctx.ask(Incremental())[-1:]] == [m.id for m in newest]
    ctx.stop()


def _orphans(said: tuple[Message, ...]) -> set[str]:
    """Ids of results that no earlier message called for."""
    called: set[str] = set()
    orphans: set[str] = set()
    for message in said:
        called.update(call.id for call in message.tool_calls)
        if message.tool_call_id is not None and message.tool_call_id not in called:
            orphans.add(message.id)
    return orphans


async def test_sends_from_many_tasks_never_interleave() -> None:
    backend = ScriptedBackend([lambda request: f"re {request.records[-1].message.text}"] * 100)
    ctx = AgentContext.start(backend)

    await asyncio.gather(*(ctx.aask(Send(messages=[Message.user(str(n))])) for n in range(100)))

    said = [message.text for message in await ctx.aask(Messages())]
    assert [f"re {text}" for text in said[::2]] == said[1::2]
    assert sorted(map(int, said[::2])) == list(range(100))
