"""What providers may do to a run, and what becomes of it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from agent_context import ContextProvider, HistoryProvider, Message, SendOptions, Tool
from agent_context.backend import Request
from agent_context.errors import InvalidOptions
from agent_context.providers import (
    BaseContextProvider,
    BaseHistoryProvider,
    ContextResult,
    SessionContext,
)
from tests.agent.conftest import Gives, Log, Works, agent_of, requests, says, sent, texts


@pytest.mark.behaviour(1)
def test_a_provider_has_a_name_and_a_kind() -> None:
    class Plain(ContextProvider):
        pass

    class Wiki(ContextProvider):
        kind = "wiki"

        @property
        def name(self) -> str:
            return "docs"

    assert (Plain().name, Plain().kind) == ("Plain", "unknown")
    assert (Wiki().name, Wiki().kind, Wiki().source_id) == ("docs", "wiki", "docs")
    assert ContextProvider("given").name == "given"


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
def test_both_styles_of_one_phase_are_refused_at_definition(before: bool, after: bool) -> None:
    async def hook(self: Any, *args: Any, **kwargs: Any) -> None: ...

    names = ("before_run", "on_invoking") if before else ("after_run", "on_invoked")
    assert before is not after

    with pytest.raises(TypeError, match=f"Both has both {names[0]} and {names[1]}"):
        type("Both", (ContextProvider,), dict.fromkeys(names, hook))


def test_one_phase_in_each_style_is_allowed() -> None:
    class Mixed(ContextProvider):
        async def on_invoking(self, *given: Any) -> ContextResult | None:
            return ContextResult(instructions="both")

        async def after_run(self, **given: Any) -> None: ...

    assert Mixed().name == "Mixed"


@pytest.mark.behaviour(2)
async def test_on_invoking_is_awaited_once_before_the_call() -> None:
    log: Log = []
    provider = Gives("p", log=log)

    def model(request: Request) -> str:
        log.append("model")
        return "hi"

    agent = agent_of([model], context_providers=[provider])
    options = SendOptions(temperature=0.5)

    await agent.run("hello", options=options)

    assert log[:2] == ["p before", "model"]
    [(given, session, messages, chosen)] = provider.invoking
    assert given is agent
    assert session.session_id
    assert texts(messages) == ["hello"]
    assert chosen.temperature == 0.5


@pytest.mark.behaviour(3)
@pytest.mark.behaviour(4)
async def test_on_invoked_is_awaited_once_after_the_call_with_the_response() -> None:
    provider = Gives("p")
    agent = agent_of(["hi"], context_providers=[provider])

    response = await agent.run("hello", wait_for_persistence=True)

    [(given, session, request_messages, told, error)] = provider.invoked
    assert given is agent
    assert session.session_id == response.session_id
    assert texts(request_messages) == ["hello"]
    assert told is response
    assert error is None


@pytest.mark.behaviour(7)
async def test_an_empty_result_changes_nothing() -> None:
    plain = agent_of(["hi"], instructions="Be brief.")
    with_provider = agent_of(
        ["hi"], instructions="Be brief.", context_providers=[Gives("p", ContextResult())]
    )

    await plain.run("hello")
    await with_provider.run("hello")

    empty = ContextResult()
    assert (empty.instructions, list(empty.messages), list(empty.tools)) == (None, [], [])
    assert empty.replace_messages is False
    assert sent(with_provider) == sent(plain)


@pytest.mark.behaviour(8)
@pytest.mark.behaviour(9)
async def test_providers_are_called_in_order_and_then_in_reverse() -> None:
    log: Log = []
    agent = agent_of(["hi"], context_providers=[Gives(name, log=log) for name in "abc"])

    await agent.run("hello", wait_for_persistence=True)

    assert log == ["a before", "b before", "c before", "c after", "b after", "a after"]


@pytest.mark.behaviour(9)
async def test_after_the_run_providers_may_be_called_in_their_order_too() -> None:
    log: Log = []
    agent = agent_of(
        ["hi"], context_providers=[Gives(name, log=log) for name in "abc"], post_order="forward"
    )

    await agent.run("hello", wait_for_persistence=True)

    assert log == ["a before", "b before", "c before", "a after", "b after", "c after"]


def test_an_order_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidOptions, match="post_order is 'reverse' or 'forward', not 'random'"):
        agent_of(post_order="random")


@pytest.mark.behaviour(10)
async def test_a_provider_that_fails_before_the_call_adds_nothing_and_stops_nobody() -> None:
    broken = Gives("broken", ValueError("no memory"))
    agent = agent_of(
        ["hi"], context_providers=[Gives("a", says("A")), broken, Gives("b", says("B"))]
    )

    response = await agent.run("hello")

    assert sent(agent) == ["user: A", "user: B", "user: hello"]
    [diagnostic] = response.diagnostics
    assert (diagnostic.source, diagnostic.phase) == ("broken", "before_run")
    assert diagnostic.text == "ValueError: no memory"


async def test_a_provider_that_fails_half_way_leaves_nothing_behind() -> None:
    def half(context: SessionContext) -> None:
        context.extend_messages("half", [Message.user("half")])
        context.extend_instructions("half", "half")
        context.extend_tools("half", [Tool(name="half")])
        context.extend_scratch("half", "half")
        context.replace_messages("half", [])
        raise RuntimeError

    agent = agent_of(["hi"], context_providers=[Gives("a", says("A")), Works("half", half)])

    await agent.run("hello")

    assert sent(agent) == ["user: A", "user: hello"]


@pytest.mark.behaviour(11)
async def test_a_provider_that_fails_after_the_call_is_logged_and_stops_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, broken = Gives("first"), Gives("broken", after=ValueError("disk full"))
    agent = agent_of(["hi"], context_providers=[first, broken])

    with caplog.at_level(logging.WARNING):
        response = await agent.run("hello", wait_for_persistence=True)

    assert response.text == "hi"
    assert len(first.invoked) == 1
    assert "provider broken: after_run failed: ValueError: disk full" in caplog.text


async def test_with_raise_a_provider_that_fails_ends_the_run() -> None:
    attempted, never = Gives("attempted"), Gives("never")
    broken = Gives("broken", ValueError("no memory"))
    agent = agent_of([], context_providers=[attempted, broken, never], on_provider_error="raise")

    with pytest.raises(ValueError, match="no memory"):
        await agent.run("hello")

    assert [len(p.invoked) for p in (attempted, broken, never)] == [1, 1, 0]
    assert isinstance(attempted.invoked[0][4], ValueError)


async def test_with_raise_a_failure_after_the_call_reaches_the_caller() -> None:
    first = Gives("first")
    broken = Gives("broken", after=ValueError("disk full"))
    agent = agent_of(["hi"], context_providers=[first, broken], on_provider_error="raise")

    with pytest.raises(ValueError, match="disk full"):
        await agent.run("hello")

    assert len(first.invoked) == 1


@pytest.mark.behaviour(12)
async def test_without_a_session_providers_run_and_nothing_survives() -> None:
    class Counts(ContextProvider):
        async def before_run(self, *, context: SessionContext, state: Any, **_: Any) -> None:
            state["runs"] = state.get("runs", 0) + 1
            context.extend_instructions(self, f"run {state['runs']}")

    agent = agent_of(["hi", "hi"], context_providers=[Counts()])

    await agent.run("one")
    await agent.run("two")

    assert sent(agent) == ["system: run 1", "user: two"]


@pytest.mark.behaviour(13)
@pytest.mark.behaviour(14)
async def test_instructions_follow_the_agents_in_order_and_empty_ones_leave_no_gap() -> None:
    results = ["one", "", None, "two"]
    providers = [Gives(str(n), ContextResult(instructions=text)) for n, text in enumerate(results)]
    agent = agent_of(["hi"], instructions="base", context_providers=providers)

    await agent.run("hello")

    assert sent(agent) == ["system: base\n\none\n\ntwo", "user: hello"]


@pytest.mark.behaviour(15)
async def test_messages_follow_each_other_in_order() -> None:
    providers = [Gives("a", says("A1", "A2")), Gives("b", says("B"))]
    agent = agent_of(["hi"], context_providers=providers)

    await agent.run("hello")

    assert sent(agent) == ["user: A1", "user: A2", "user: B", "user: hello"]


@pytest.mark.behaviour(16)
async def test_tools_of_all_providers_hold_for_one_run() -> None:
    one, two = (Gives(n, ContextResult(tools=[Tool(name=n)])) for n in ("one", "two"))
    agent = agent_of(["hi", "hi"], context_providers=[one, two])

    await agent.run("hello")
    first = [tool.name for tool in requests(agent)[-1].options.tools]
    one.result = two.result = None
    await agent.run("hello")

    assert first == ["one", "two"]
    assert not requests(agent)[-1].options.tools


def replacing(*words: str) -> ContextResult:
    return ContextResult(messages=[Message.user(w) for w in words], replace_messages=True)


@pytest.mark.behaviour(17)
@pytest.mark.behaviour(21)
async def test_a_replacing_provider_drops_what_came_before_and_not_what_the_caller_says() -> None:
    providers = [Gives("a", says("A")), Gives("r", replacing("R")), Gives("b", says("B"))]
    agent = agent_of(["hi"], context_providers=providers)

    await agent.run("hello")

    assert sent(agent) == ["user: R", "user: B", "user: hello"]


@pytest.mark.behaviour(18)
async def test_replacing_leaves_instructions_and_tools() -> None:
    first = ContextResult(instructions="kept", messages=[Message.user("A")], tools=[Tool(name="t")])
    agent = agent_of(["hi"], context_providers=[Gives("a", first), Gives("r", replacing())])

    await agent.run("hello")

    assert sent(agent) == ["system: kept", "user: hello"]
    assert [tool.name for tool in requests(agent)[-1].options.tools] == ["t"]


@pytest.mark.behaviour(19)
async def test_replacing_with_nothing_empties_the_list_and_the_history() -> None:
    provider = Gives("r")
    agent = agent_of(["one", "two"], context_providers=[Gives("a", says("A")), provider])
    session = agent.create_session()

    await agent.run("first", session=session)
    provider.result = replacing()
    await agent.run("second", session=session)

    assert sent(agent) == ["user: second"]


@pytest.mark.behaviour(20)
async def test_of_two_replacing_providers_the_last_wins() -> None:
    providers = [Gives("r1", replacing("R1")), Gives("r2", replacing("R2"))]
    agent = agent_of(["hi"], context_providers=providers)

    await agent.run("hello")

    assert sent(agent) == ["user: R2", "user: hello"]


async def test_replacing_changes_only_what_goes_out() -> None:
    provider = Gives("r")
    agent = agent_of(["one", "two", "three"], context_providers=[provider])
    session = agent.create_session()
    await agent.run("first", session=session)
    provider.result = replacing("R")
    await agent.run("second", session=session)
    provider.result = None

    await agent.run("third", session=session)

    assert texts(await session.get_messages()) == [
        "first",
        "one",
        "second",
        "two",
        "third",
        "three",
    ]
    assert sent(agent)[:2] == ["user: first", "assistant: one"]


async def test_later_providers_see_what_earlier_ones_added() -> None:
    seen: list[str] = []
    looks = Works("looks", lambda context: seen.extend(texts(context.get_messages())))
    agent = agent_of(["hi"], context_providers=[Gives("a", says("A")), looks])

    await agent.run("hello")

    assert seen == ["A"]


async def test_volatile_text_goes_last_and_is_never_stored() -> None:
    clock = Works("clock", lambda context: context.extend_scratch("clock", "It is noon."))
    agent = agent_of(["hi"], instructions="base", context_providers=[clock])
    session = agent.create_session()

    await agent.run("hello", session=session)

    assert sent(agent) == ["system: base", "user: hello", "system: It is noon."]
    assert texts(await session.get_messages()) == ["hello", "hi"]


@pytest.mark.behaviour(60)
@pytest.mark.behaviour(61)
@pytest.mark.behaviour(62)
@pytest.mark.behaviour(63)
async def test_state_lives_as_long_as_the_session_and_is_each_providers_own() -> None:
    class Counts(BaseContextProvider):
        def __init__(self, source_id: str) -> None:
            super().__init__(source_id)

        async def before_run(self, *, agent: Any, session: Any, context: Any, state: Any) -> None:
            context.extend_instructions(self.source_id, f"{self.source_id}{state.get('n', 0)}")

        async def after_run(self, *, agent: Any, session: Any, context: Any, state: Any) -> None:
            state["n"] = state.get("n", 0) + (1 if self.source_id == "x" else 10)

    agent = agent_of(["1", "2", "3"], context_providers=[Counts("x"), Counts("y")])
    one, other = agent.create_session(), agent.create_session()

    await agent.run("a", session=one)
    await agent.run("b", session=one)
    assert sent(agent)[0] == "system: x1\n\ny10"
    await agent.run("c", session=other)
    assert sent(agent)[0] == "system: x0\n\ny0"
    await agent.drain()
    assert one.state["x"] == {"n": 2}


@pytest.mark.behaviour(70)
def test_two_loaders_or_two_equal_source_ids_are_refused() -> None:
    class History(BaseHistoryProvider):
        pass

    with pytest.raises(ValueError, match="a, b: only one may load the history"):
        agent_of(context_providers=[History("a"), HistoryProvider("b")])
    with pytest.raises(ValueError, match="same: more than one provider has this source_id"):
        agent_of(context_providers=[Gives("same"), Gives("same")])
    agent_of(context_providers=[History("a"), HistoryProvider("b", load_messages=False)])


async def test_a_slow_provider_is_given_up_in_time() -> None:
    class Hangs(ContextProvider):
        async def before_run(self, **_: Any) -> None:
            await asyncio.Event().wait()

    agent = agent_of(["hi"], context_providers=[Hangs()], provider_timeout=0.01)

    response = await agent.run("hello")

    assert response.text == "hi"
    assert response.diagnostics[0].text == "TimeoutError: no end within 0.01 seconds"


async def test_a_provider_may_ask_another_session_but_not_its_own() -> None:
    class Asks(ContextProvider):
        async def before_run(self, *, agent: Any, session: Any, **_: Any) -> None:
            await agent.run("inner", session=session)

    agent = agent_of(["hi"], context_providers=[Asks()])

    response = await agent.run("hello")

    assert "DeadlockError" in response.diagnostics[0].text
