"""A conversation changes its model in mid-talk."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import httpx
import pytest

from agent_context import (
    AgentContext,
    Append,
    Compress,
    ContextRef,
    EstimateTokens,
    Extend,
    Fork,
    Message,
    Messages,
    Send,
    SendOptions,
    Summarize,
    Tool,
    events,
)
from agent_context.errors import InvalidOptions
from agent_context.models import ModelFacts
from agent_context.prompt_cache import PrefixChangeCause
from agent_context.protocol import CacheReport, UseBackend
from agent_context_backends.chat_completions import ChatCompletionsBackend
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.openai import OpenAIBackend
from agent_context_backends.scripted import Hold, ScriptedBackend
from agent_context_backends.zhipu import ZhipuBackend
from tests.actor.conftest import Seen, Talk
from tests.support.waiting import WAIT, wait_for
from tests.wire.rules import deepseek_refuses, faults

HELLO = Message.user("Hello")
CLOCK = Tool(name="clock", description="The time.")


def in_turn(ctx: ContextRef, *texts: str) -> None:
    for text in texts:
        ctx.ask(Send(messages=[Message.user(text)]))


# What changes, and when


def test_from_the_next_turn_on_another_backend_answers(talk: Talk, seen: Seen) -> None:
    old, new = ScriptedBackend(["Old."]), ScriptedBackend(["New."])
    ctx = talk(old, on_change=seen)
    in_turn(ctx, "Hello")

    assert ctx.ask(UseBackend(new)) is old
    in_turn(ctx, "And you?")

    assert [message.text for message in ctx.ask(Messages())] == [
        "Hello", "Old.", "And you?", "New.",
    ]  # fmt: skip
    (changed,) = seen.wait_for(events.BackendChanged)
    assert changed.vendor == "scripted"
    (broken,) = seen.wait_for(events.PromptPrefixChanged)
    assert broken.cause is PrefixChangeCause.BACKEND


def test_what_was_meant_for_the_old_model_is_forgotten(talk: Talk) -> None:
    new = ScriptedBackend(["1", "2"])
    usual = SendOptions(
        model="old", context_window=500, effort="low", tools=[CLOCK], extra={"user_id": "u"}
    )
    ctx = talk(ScriptedBackend(), options=usual)

    ctx.ask(UseBackend(new))
    in_turn(ctx, "Hello")
    ctx.ask(UseBackend(new, SendOptions(model="new", effort="high")))
    in_turn(ctx, "Hello")

    first, second = (request.options for request in new.requests)
    assert (first.model, first.context_window, first.extra) == (None, None, {})
    assert (first.effort, first.tools) == ("low", (CLOCK,))
    assert (second.model, second.effort, second.tools) == ("new", "high", (CLOCK,))


def test_a_running_turn_ends_with_the_old_and_waiting_ones_take_the_new(talk: Talk) -> None:
    hold = Hold()
    old, new = ScriptedBackend([hold, "Old."]), ScriptedBackend(["New."])
    ctx = talk(old, options=SendOptions(model="old"))
    running = ctx.actor_ref.ask(Send(messages=[HELLO]), block=False)
    wait_for(hold.entered)
    waiting = ctx.actor_ref.ask(
        Send(SendOptions(model="old-2", effort="high"), messages=[HELLO]), block=False
    )

    ctx.ask(UseBackend(new, SendOptions(model="new")))
    hold.release()

    assert running.get(timeout=WAIT).message.text == "Old."
    assert waiting.get(timeout=WAIT).message.text == "New."
    (request,) = new.requests
    assert (request.options.model, request.options.effort) == ("new", "high")


def test_counting_begins_anew(talk: Talk) -> None:
    narrow = ScriptedBackend(
        facts=ModelFacts(context_window=400, max_output=50, message_overhead=100)
    )
    ctx = talk([])
    ctx.ask(Append(HELLO))
    before = ctx.ask(EstimateTokens())

    ctx.ask(UseBackend(narrow))

    after = ctx.ask(EstimateTokens())
    assert after.window == 400
    assert after.incremental == before.incremental + 96


def test_a_compression_asks_the_backend_that_it_began_with(talk: Talk) -> None:
    hold = Hold()
    old, new = ScriptedBackend([hold, "They talked."]), ScriptedBackend(["So they did."])
    ctx = talk(old)
    ctx.ask(Extend([Message.user("It rains again. " * 30) for _ in range(6)]))
    work = ctx.actor_ref.ask(Compress(Summarize(keep=1)), block=False)
    wait_for(hold.entered)

    ctx.ask(UseBackend(new))
    hold.release()
    work.get(timeout=WAIT)
    ctx.ask(Extend([Message.user("It rains again. " * 30) for _ in range(6)]))
    ctx.ask(Compress(Summarize(keep=1)))

    assert (len(old.requests), len(new.requests)) == (1, 1)


def test_a_compression_ahead_of_need_asks_the_backend_of_its_turn(talk: Talk, seen: Seen) -> None:
    hold = Hold()
    old, new = ScriptedBackend([hold, "Old.", "They talked."]), ScriptedBackend()
    options = SendOptions(model="old", context_window=2_000, max_tokens=100, soft_limit=0.1)
    ctx = talk(old, options=options, compression=Summarize(keep=1), on_change=seen)
    ctx.ask(Extend([Message.user("It rains again. " * 30) for _ in range(6)]))
    turn = ctx.actor_ref.ask(Send(messages=[HELLO]), block=False)
    wait_for(hold.entered)

    ctx.ask(UseBackend(new))
    hold.release()

    assert turn.get(timeout=WAIT).message.text == "Old."
    seen.wait_for(events.Compressed)
    assert [request.options.model for request in old.requests] == ["old", "old"]
    assert new.requests == []


def test_a_fork_takes_the_current_backend(talk: Talk) -> None:
    new = ScriptedBackend(["New."])
    ctx = talk(ScriptedBackend(), options=SendOptions(model="old"))
    ctx.ask(UseBackend(new, SendOptions(model="new")))

    in_turn(ctx.ask(Fork()), "Hello")

    assert new.requests[0].options.model == "new"


@pytest.mark.parametrize("nonsense", [None, "deepseek", ScriptedBackend, object()])
def test_what_is_no_backend_is_refused_and_changes_nothing(talk: Talk, nonsense: Any) -> None:
    ctx = talk(["Still here."])

    with pytest.raises(InvalidOptions, match="backend"):
        ctx.ask(UseBackend(nonsense))
    with pytest.raises(InvalidOptions, match="options"):
        ctx.ask(UseBackend(ScriptedBackend(), "fast"))  # type: ignore[arg-type]

    assert ctx.ask(Send(messages=[HELLO])).message.text == "Still here."


# From one vendor to the next and back


class Server(httpx.MockTransport):
    """Calls the clock when a user has spoken, thinks aloud, and answers a result in words."""

    def __init__(self, vendor: str, ids: count[int]) -> None:
        self.vendor = vendor
        self.bodies: list[dict[str, Any]] = []
        self._ids = ids
        super().__init__(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        message: dict[str, Any] = {"role": "assistant", "content": f"{self.vendor} says noon."}
        if self.vendor != "openai":
            message["reasoning_content"] = f"{self.vendor} thinks."
        reason = "stop"
        if body["messages"][-1]["role"] == "user":
            name = f"call_{next(self._ids)}_{self.vendor}_" + "x" * 40
            function = {"name": "clock", "arguments": "{}"}
            call = {"id": name, "type": "function", "function": function}
            message |= {"content": "", "tool_calls": [call]}
            reason = "tool_calls"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return httpx.Response(200, json={"model": body["model"], "choices": [choice]})


def tool_loop(ctx: ContextRef, text: str) -> None:
    reply = ctx.ask(Send(messages=[Message.user(text)]))
    for call in reply.message.tool_calls:
        ctx.ask(Append(Message.tool(call.id, "12:00")))
    ctx.ask(Send())


KINDS: list[type[ChatCompletionsBackend]] = [DeepSeekBackend, OpenAIBackend, ZhipuBackend]


def test_a_talk_with_tools_and_reasoning_goes_round_the_vendors_and_back(seen: Seen) -> None:
    ids = count()
    servers = {kind.vendor: Server(kind.vendor, ids) for kind in KINDS}
    backends = [kind(api_key="k", transport=servers[kind.vendor]) for kind in KINDS]
    ctx = AgentContext.start(
        backends[0],
        immutable=[Message.system("You are terse.")],
        options=SendOptions(model="deepseek-v4-pro", tools=[CLOCK], extra={"user_id": "u"}),
        on_change=seen,
    )

    tool_loop(ctx, "What time is it?")
    for turn in (1, 2, 0, 1):
        ctx.ask(UseBackend(backends[turn]))
        tool_loop(ctx, "And now?")

    for backend in backends:
        for body in servers[backend.vendor].bodies:
            _is_legal(body, backend)
    assert [body["model"] for body in servers["deepseek"].bodies] == [
        "deepseek-v4-pro", "deepseek-v4-pro", "deepseek-flash", "deepseek-flash",
    ]  # fmt: skip
    assert {body["model"] for body in servers["openai"].bodies} == {"gpt-5.4"}
    broken = seen.wait_for(events.PromptPrefixChanged, 4)
    assert [event.cause for event in broken] == [PrefixChangeCause.BACKEND] * 4
    report = ctx.ask(CacheReport())
    assert (report.turns, report.broken) == (10, 4)


def _is_legal(body: dict[str, Any], backend: ChatCompletionsBackend) -> None:
    messages = body["messages"]
    assert faults(messages, backend.dialect) == []
    if backend.vendor == "deepseek":
        assert deepseek_refuses(messages) is None
    called = [call["id"] for message in messages for call in message.get("tool_calls", [])]
    assert called == [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    assert len(set(called)) == len(called)
    thoughts = {message.get("reasoning_content") for message in messages}
    assert thoughts <= {None, "", f"{backend.vendor} thinks."}


def test_reasoning_is_sent_back_when_its_vendor_is_asked_again() -> None:
    ids = count()
    servers = {kind.vendor: Server(kind.vendor, ids) for kind in KINDS}
    backends = [kind(api_key="k", transport=servers[kind.vendor]) for kind in KINDS]
    ctx = AgentContext.start(backends[0], options=SendOptions(tools=[CLOCK]))
    tool_loop(ctx, "What time is it?")
    ctx.ask(UseBackend(backends[2]))
    tool_loop(ctx, "And now?")
    ctx.ask(UseBackend(backends[0]))
    tool_loop(ctx, "And again?")

    said = servers["deepseek"].bodies[-1]["messages"]
    thoughts = [m.get("reasoning_content") for m in said if m["role"] == "assistant"]
    own, withheld = "deepseek thinks.", ""
    assert thoughts == [own, own, withheld, None, own]
