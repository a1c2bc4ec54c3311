"""What comes from outside is checked where it comes in, and refused with what to write instead."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from agent_context import Agent, AgentContext, Host, Send, Subscribe
from agent_context._context import tokens
from agent_context.errors import InvalidOptions, UsageError
from agent_context.providers import ClockProvider
from agent_context.stores.memory import MemoryStore
from agent_context.tools import Toolbox, tool
from agent_context.tools.mcp import McpTools
from agent_context_backends.scripted import ScriptedBackend


async def function(*_: object) -> None: ...


class Object:
    async def __call__(self, *_: object) -> None: ...

    async def method(self, *_: object) -> None: ...


ASYNCHRONOUS = {
    "function": function,
    "partial": partial(function, 1),
    "object": Object(),
    "method": Object().method,
}


def start(**described: Any) -> object:
    return AgentContext.start(ScriptedBackend([]), **described)


def host(**described: Any) -> Host:
    return Host(MemoryStore(), ScriptedBackend([]), **described)


def work() -> None: ...


PLACES: dict[str, Callable[[Any], object]] = {
    "on_change": lambda call: start(on_change=call),
    "on_compressed": lambda call: start(on_compressed=call),
    "Subscribe": lambda call: AgentContext.start(ScriptedBackend([])).ask(Subscribe(call)),
    "Host on_change": lambda call: host(on_change=call),
    "Host on_compressed": lambda call: host(on_compressed=call),
    "Host.subscribe": lambda call: host().subscribe(call),
    "approval": lambda call: tool(work, approval=call),
    "progress": lambda call: Toolbox(progress=call),
    "token_counter": lambda call: Agent(ScriptedBackend([]), token_counter=call),
    "facts": lambda call: ClockProvider(facts={"fact": call}),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("call", ASYNCHRONOUS.values(), ids=ASYNCHRONOUS)
def test_what_nobody_would_await_is_refused(
    place: Callable[[Any], object], call: Callable[..., object]
) -> None:
    with pytest.raises(InvalidOptions, match="can't be awaited: give a plain function"):
        place(call)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("hello", r"Send\(messages=\[Message.user\('hello'\)\]\)"),
        (Send, r"Send is a class: ask Send\(\.\.\.\)"),
        (7, "the messages of agent_context.protocol, not with int"),
    ],
)
def test_what_is_no_message_is_refused_with_what_to_ask(asked: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        AgentContext.start(ScriptedBackend([])).ask(asked)


def test_a_conversation_is_started_and_not_made() -> None:
    with pytest.raises(UsageError, match=r"AgentContext.start\(backend, ...\)"):
        AgentContext(ScriptedBackend([]))  # type: ignore[arg-type]


async def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mcp"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)

    with pytest.raises(InvalidOptions, match=r"pip install 'context-actor\[mcp\]'"):
        await McpTools(command=["true"]).__aenter__()


def test_a_missing_vocabulary_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "splintr", None)
    monkeypatch.setattr(tokens, "_counters", {})

    tokens.counter("deepseek_v3")

    assert "pip install 'context-actor[tokenizers]'" in caplog.text


MISTAKES: dict[str, tuple[Callable[[Any], Any], object, str]] = {
    "store": (lambda it: Agent(ScriptedBackend([]), store=it), "x.db", "store: Store expected"),
    "tools": (lambda it: Agent(ScriptedBackend([]), tools=it), 7, "tools: Iterable expected"),
    "approve": (lambda it: Agent(ScriptedBackend([]), approve=it), True, "approve: a function"),
    "strategy": (
        lambda it: Agent(ScriptedBackend([]), compression_strategy=it),
        "half",
        "compression_strategy: a Strategy",
    ),
    "counter": (
        lambda it: Agent(ScriptedBackend([]), token_counter=it),
        7,
        "token_counter: a callable is expected, not int",
    ),
    "messages": (lambda it: Agent(ScriptedBackend([])).run(it), 7, "messages: Iterable"),
    "session": (
        lambda it: Agent(ScriptedBackend([])).run("hi", session=it),
        "ann",
        "session: AgentSession expected, not str",
    ),
}


@pytest.mark.parametrize(("make", "given", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_an_agents_arguments_names_the_argument(
    make: Callable[[Any], Any], given: object, said: str
) -> None:
    with pytest.raises(InvalidOptions, match=said):
        make(given)
