"""A run from its call to its last provider."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from agent_context import (
    Agent,
    AgentResponse,
    AgentSession,
    BackendError,
    ContextProvider,
    ErrorKind,
    FinishReason,
    Message,
    ReasoningDelta,
    Role,
    Send,
    SendOptions,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from agent_context.agent import AgentUpdate
from agent_context.errors import (
    ConversationBusy,
    InvalidMessage,
    InvalidOptions,
    RunCancelled,
    UsageError,
)
from agent_context.providers import ContextResult
from agent_context.sessions.session import count_shared_links
from agent_context.stream_events import UsageReported
from agent_context_backends.scripted import Hold, ScriptedBackend
from tests.agent.conftest import Gives, agent_of, calls, requests, says, sent, texts
from tests.support.waiting import wait_for


def look(where: str = "here") -> str:
    """Look around."""
    return f"nothing {where}"


async def ended(
    agent: Agent, text: str, *, stream: bool, session: AgentSession | None = None
) -> AgentResponse:
    """A run up to where its last provider has been told."""
    if not stream:
        return await agent.run(text, session=session, wait_for_persistence=True)
    run = agent.run(text, stream=True, session=session, wait_for_persistence=True)
    return await run.get_final_response()


@pytest.mark.behaviour(5)
@pytest.mark.behaviour(6)
@pytest.mark.behaviour(91)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_fails_is_told_to_every_provider_and_raised(stream: bool) -> None:
    providers = [Gives("a"), Gives("b")]
    down = BackendError("the model is down")
    agent = agent_of([down], context_providers=providers)

    with pytest.raises(BackendError) as caught:
        await ended(agent, "hello", stream=stream)

    assert caught.value is down
    for provider in providers:
        [(_, _, _, response, error)] = provider.invoked
        assert response is None
        assert error is down


@pytest.mark.behaviour(91)
async def test_a_run_that_failed_leaves_nothing_in_the_session() -> None:
    agent = agent_of([BackendError("down"), "hi"])
    session = agent.create_session()
    with pytest.raises(BackendError):
        await agent.run("lost", session=session)

    await agent.run("hello", session=session)

    assert texts(await session.get_messages()) == ["hello", "hi"]


@pytest.mark.behaviour(24)
@pytest.mark.behaviour(25)
@pytest.mark.behaviour(26)
async def test_a_request_is_instructions_then_providers_then_the_caller() -> None:
    given = [Message.system("from a provider"), Message.user("context")]
    provider = Gives("p", ContextResult(messages=given))
    agent = agent_of(["hi"], instructions="base", context_providers=[provider])

    response = await agent.run([Message.system("from the caller"), Message.user("hello")])

    assert sent(agent) == ["system: base", "user: context", "user: hello"]
    assert [(d.source, d.text) for d in response.diagnostics] == [
        ("caller", "1 system messages of the caller were left out"),
        ("p", "1 system messages were left out"),
    ]


@pytest.mark.behaviour(27)
async def test_without_instructions_there_is_no_system_message() -> None:
    agent = agent_of(["hi"])

    await agent.run("hello")

    assert sent(agent) == ["user: hello"]


@pytest.mark.behaviour(28)
async def test_a_runs_instructions_stand_in_the_place_of_the_agents() -> None:
    provider = Gives("p", ContextResult(instructions="more"))
    agent = agent_of(["1", "2", "3"], instructions="base", context_providers=[provider])

    await agent.run("a", instructions="other")
    await agent.run("b", options=SendOptions(instructions="again"))
    await agent.run("c")

    assert [sent(agent, n)[0] for n in range(3)] == [
        "system: other\n\nmore",
        "system: again\n\nmore",
        "system: base\n\nmore",
    ]


@pytest.mark.behaviour(29)
async def test_the_callers_messages_are_kept_apart_from_what_providers_add() -> None:
    provider = Gives("p", says("context"))
    agent = agent_of(["hi"], context_providers=[provider])
    session = agent.create_session()

    response = await agent.run([Message.system("no"), Message.user("hello")], session=session)

    assert texts(provider.invoking[0][2]) == ["hello"]
    assert texts(response.messages) == ["hi"]
    assert texts(await session.get_messages()) == ["hello", "hi"]


@pytest.mark.behaviour(38)
@pytest.mark.behaviour(39)
async def test_the_request_hash_is_of_what_was_sent_last() -> None:
    agent = agent_of(["1", "2"], instructions="base", context_providers=[Gives("p", says("c"))])
    session = agent.create_session()
    assert session.get_last_request_hash() is None

    await agent.run("hello", session=session)
    first, links = session.get_last_request_hash(), session.request_trace
    await agent.run("again", session=session)

    assert first is not None
    assert links[-1] == first
    assert session.get_last_request_hash() != first


async def test_a_growing_session_shares_all_but_the_context_with_its_last_request() -> None:
    agent = agent_of(["1", "2"], instructions="base")
    session = agent.create_session()
    await agent.run("hello", session=session)
    before = session.request_trace

    await agent.run("again", session=session)

    assert count_shared_links(before, session.request_trace) == len(before)


@pytest.mark.behaviour(46)
@pytest.mark.behaviour(47)
async def test_updates_say_something_and_the_last_one_how_it_ended() -> None:
    script: list[StreamEvent] = [
        TextDelta(""),
        ReasoningDelta("hm"),
        TextDelta("he"),
        TextDelta("llo"),
        UsageReported(Usage(input_tokens=7, output_tokens=2)),
    ]
    agent = agent_of([script])

    updates = [update async for update in agent.run("hi", stream=True)]

    assert updates == [
        AgentUpdate(reasoning="hm"),
        AgentUpdate(text="he"),
        AgentUpdate(text="llo"),
        AgentUpdate(finish_reason=FinishReason.STOP, usage=Usage(input_tokens=7, output_tokens=2)),
    ]


@pytest.mark.behaviour(47)
async def test_tool_calls_come_whole() -> None:
    pieces = [ToolCallDelta(0, "c1", "look", '{"wh'), ToolCallDelta(0, arguments='ere": "up"}')]
    agent = agent_of([pieces, "done"], tools=[look])

    updates = [update async for update in agent.run("hi", stream=True)]

    [with_calls] = [update for update in updates if update.tool_calls]
    assert [(call.id, call.arguments) for call in with_calls.tool_calls] == [
        ("c1", '{"where": "up"}')
    ]
    assert [texts(update.results) for update in updates if update.results] == [["nothing up"]]
    assert "".join(update.text for update in updates) == "done"


@pytest.mark.behaviour(48)
@pytest.mark.behaviour(92)
async def test_a_stream_that_breaks_gives_what_had_arrived_and_then_the_error() -> None:
    provider = Gives("p")
    agent = agent_of([[TextDelta("half"), BackendError("gone")]], context_providers=[provider])
    session = agent.create_session()
    stream = agent.run("hello", stream=True, session=session)

    first = await anext(stream)
    with pytest.raises(BackendError, match="gone"):
        await anext(stream)

    await agent.drain(session)
    assert first.text == "half"
    assert provider.invoked[0][3] is None
    assert isinstance(provider.invoked[0][4], BackendError)
    stored = await session.get_messages()
    assert texts(stored) == ["hello", "half"]
    assert stored[-1].interrupted


class Slow(ContextProvider):
    """Is told of the end of a run and doesn't return before it is released."""

    def __init__(self) -> None:
        super().__init__("slow")
        self.entered, self.release = asyncio.Event(), asyncio.Event()
        self.left = False

    async def after_run(self, **_: Any) -> None:
        self.entered.set()
        await self.release.wait()
        self.left = True


@pytest.mark.behaviour(49)
@pytest.mark.behaviour(50)
@pytest.mark.behaviour(93)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_end_of_a_run_does_not_wait_for_a_slow_provider(stream: bool) -> None:
    slow = Slow()
    agent = agent_of(["hi"], context_providers=[slow])

    if stream:
        updates = [update async for update in agent.run("hello", stream=True)]
        assert updates[-1].finish_reason is FinishReason.STOP
    else:
        await agent.run("hello")

    assert not slow.left
    slow.release.set()
    await agent.drain()
    assert slow.left


@pytest.mark.behaviour(49)
async def test_each_update_comes_before_the_answer_is_whole() -> None:
    hold = Hold()
    agent = agent_of([[TextDelta("first"), hold, TextDelta("second")]])
    stream = agent.run("hello", stream=True)

    first = await anext(stream)
    assert not hold.released
    hold.release()

    assert first.text == "first"
    assert (await stream.get_final_response()).text == "firstsecond"


@pytest.mark.behaviour(51)
async def test_providers_are_told_all_that_was_said_in_the_run() -> None:
    provider = Gives("p")
    agent = agent_of([calls("look"), "done"], tools=[look], context_providers=[provider])

    response = await agent.run("hello", wait_for_persistence=True)

    told: AgentResponse = provider.invoked[0][3]
    assert told is response
    assert [m.role for m in told.messages] == [Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    assert [call.name for call in told.tool_calls] == ["look"]
    assert (told.text, told.finish_reason) == ("done", FinishReason.STOP)


@pytest.mark.behaviour(54)
@pytest.mark.behaviour(93)
async def test_a_failure_after_the_call_never_reaches_the_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = agent_of(["hi"], context_providers=[Gives("p", after=ValueError("x"))])

    with caplog.at_level(logging.WARNING):
        updates = [update async for update in agent.run("hello", stream=True)]
        await agent.drain()

    assert updates[-1].finish_reason is FinishReason.STOP
    assert "after_run failed" in caplog.text


@pytest.mark.behaviour(55)
@pytest.mark.behaviour(92)
async def test_a_stream_that_is_left_early_ends_the_run_and_providers_are_told() -> None:
    provider = Gives("p")
    hold = Hold()
    held: list[StreamEvent | Hold] = [TextDelta("first"), hold, TextDelta("second")]
    agent = agent_of([held, "next"], context_providers=[provider])
    session = agent.create_session()

    async for _ in agent.run("hello", stream=True, session=session):
        break

    await agent.run("again", session=session)
    response, error = provider.invoked[0][3:]
    assert response is None
    assert isinstance(error, RunCancelled)
    assert not hold.released
    assert texts(await session.get_messages()) == ["hello", "first", "again", "next"]


@pytest.mark.behaviour(56)
@pytest.mark.behaviour(92)
async def test_an_answer_without_a_chunk_is_a_failure_that_providers_are_told() -> None:
    provider = Gives("p")
    agent = agent_of([[]], context_providers=[provider], options=SendOptions(retries=0))

    with pytest.raises(BackendError) as caught:
        await ended(agent, "hello", stream=True)

    assert caught.value.kind is ErrorKind.EMPTY_RESPONSE
    assert len(provider.invoked) == 1
    assert provider.invoked[0][4] is caught.value


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_run_tells_each_provider_once(stream: bool) -> None:
    provider = Gives("p")
    hold = Hold()
    agent = agent_of([hold, "never", "next"], context_providers=[provider])
    session = agent.create_session()

    task = asyncio.create_task(ended(agent, "hello", stream=stream, session=session))
    await asyncio.to_thread(wait_for, hold.entered)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await asyncio.wait_for(provider.told.wait(), 20)
    await agent.drain(session)
    assert len(provider.invoked) == 1
    assert isinstance(provider.invoked[0][4], RunCancelled)
    assert not await session.get_messages()


async def test_a_run_cancelled_in_a_provider_tells_those_that_were_asked() -> None:
    entered = asyncio.Event()

    class Hangs(ContextProvider):
        async def before_run(self, **_: Any) -> None:
            entered.set()
            await asyncio.Event().wait()

    first, last = Gives("first"), Gives("last")
    agent = agent_of(["hi"], context_providers=[first, Hangs(), last])
    task = asyncio.create_task(agent.run("hello"))
    await entered.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    await agent.drain()
    assert (len(first.invoked), len(last.invoked)) == (1, 0)


@pytest.mark.behaviour(94)
async def test_the_next_run_sees_the_last_one_and_waits_for_its_providers() -> None:
    slow = Slow()
    agent = agent_of(["one", "two"], context_providers=[slow])
    session = agent.create_session()
    async for _ in agent.run("first", stream=True, session=session):
        pass
    second = asyncio.create_task(agent.run("second", session=session))
    await slow.entered.wait()
    assert len(requests(agent)) == 1

    slow.release.set()
    await second

    assert sent(agent) == ["user: first", "assistant: one", "user: second"]


@pytest.mark.behaviour(101)
async def test_runs_of_one_session_go_in_order_and_others_beside_them() -> None:
    hold = Hold()
    agent = agent_of([hold, "1", "other", "2", "3"])
    session = agent.create_session()
    runs = [asyncio.create_task(agent.run(text, session=session)) for text in ("a", "b", "c")]
    await asyncio.to_thread(wait_for, hold.entered)

    other = await agent.run("x")
    hold.release()
    answers = await asyncio.gather(*runs)

    assert other.text == "other"
    assert [answer.text for answer in answers] == ["1", "2", "3"]
    assert texts(await session.get_messages()) == ["a", "1", "b", "2", "c", "3"]


async def test_a_run_may_refuse_to_wait() -> None:
    hold = Hold()
    agent = agent_of([hold, "1"])
    session = agent.create_session()
    first = asyncio.create_task(agent.run("a", session=session))
    await asyncio.to_thread(wait_for, hold.entered)

    with pytest.raises(ConversationBusy, match="has a run already"):
        await agent.run("b", session=session, options=SendOptions(on_busy="reject"))

    hold.release()
    await first


@pytest.mark.parametrize("on_busy", ["interrupt", "steer"])
async def test_a_run_can_not_barge_in_but_a_user_can_still_steer(on_busy: Any) -> None:
    agent = agent_of([])

    with pytest.raises(InvalidOptions, match=f"to {on_busy} send to session.conversation"):
        await agent.run("a", options=SendOptions(on_busy=on_busy))


async def test_what_is_said_to_the_conversation_meanwhile_joins_the_next_round() -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        entered.set()
        await go_on.wait()
        return "found"

    agent = agent_of([calls("slow"), "both"], tools=[slow])
    session = agent.create_session()
    run = asyncio.create_task(agent.run("look", session=session))
    await entered.wait()
    assert session.conversation is not None
    steer = SendOptions(on_busy="steer")
    session.conversation.tell(Send(steer, [Message.user("and be quick")]))
    await session.get_messages()
    go_on.set()

    await run

    assert sent(agent)[-1] == "user: and be quick"


@pytest.mark.behaviour(95)
async def test_equal_turns_are_all_kept() -> None:
    agent = agent_of(["ok"] * 3)
    session = agent.create_session()
    yes = Message.user("yes")

    for _ in range(3):
        await agent.run(yes, session=session)

    stored = await session.get_messages()
    assert texts(stored) == ["yes", "ok"] * 3
    assert len({message.id for message in stored}) == 6


async def test_messages_come_in_any_form() -> None:
    agent = agent_of(["hi"])

    await agent.run(["a", Message.user("b"), {"role": "user", "content": "c"}])

    assert sent(agent) == ["user: a", "user: b", "user: c"]


async def test_what_is_no_message_is_refused() -> None:
    agent = agent_of(["hi"])

    with pytest.raises(InvalidMessage):
        await agent.run({"role": "nobody", "content": "x"})
    with pytest.raises(InvalidOptions, match="options: Mapping expected, not int"):
        await agent.run("hello", options=3)  # type: ignore[call-overload]


async def test_a_streams_response_is_there_at_its_end() -> None:
    agent = agent_of(["hi"])
    stream = agent.run("hello", stream=True)

    with pytest.raises(UsageError, match="has not ended"):
        _ = stream.response
    async for _ in stream:
        pass

    assert stream.response.text == "hi"
    assert str(stream.response) == "hi"


def test_a_program_without_a_loop_runs_all_the_same() -> None:
    slow = Gives("p")
    agent = agent_of(["one", "two"], context_providers=[slow])
    session = agent.create_session()

    first = agent.run_sync("a", session=session)
    second = agent.run_sync("b", session=session)

    assert (first.text, second.text) == ("one", "two")
    assert len(slow.invoked) == 2
    assert sent(agent) == ["user: a", "assistant: one", "user: b"]


async def test_run_sync_is_refused_where_a_loop_runs() -> None:
    with pytest.raises(UsageError, match="await run"):
        agent_of(["hi"]).run_sync("hello")


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_the_program_does_not_cut_the_last_provider_short(fails: bool) -> None:
    done: list[str] = []

    class Saves(ContextProvider):
        async def after_run(self, **_: Any) -> None:
            for step in ("begun", "half", "done"):
                async with asyncio.timeout(20):
                    await asyncio.sleep(0.001)
                done.append(step)

    agent = agent_of([BackendError("down") if fails else "hi"], context_providers=[Saves()])

    async def main() -> None:
        await agent.run("hello")

    if fails:
        with pytest.raises(BackendError):
            asyncio.run(main())
    else:
        asyncio.run(main())
    assert done == ["begun", "half", "done"]


def test_sessions_go_from_one_agent_to_another() -> None:
    one, other = agent_of(["from one"]), agent_of(["from other"])
    session = one.create_session()

    one.run_sync("a", session=session)
    other.run_sync("b", session=session)

    assert sent(other) == ["user: a", "assistant: from one", "user: b"]


def test_a_session_that_was_written_down_goes_on() -> None:
    agent = agent_of(["one", "two"])
    session = agent.create_session("s")
    agent.run_sync("a", session=session)
    text = json.dumps(session.to_dict())

    again = AgentSession.from_dict(json.loads(text))
    agent.run_sync("b", session=again)

    assert again.session_id == "s"
    assert sent(agent) == ["user: a", "assistant: one", "user: b"]


async def test_an_unnamed_agent_takes_its_model_as_it_is() -> None:
    backend = ScriptedBackend(["hi"])

    agent = backend.as_agent("Be brief.", name="Bob")

    assert agent.client is backend
    assert (agent.name, agent.instructions, repr(agent)) == ("Bob", "Be brief.", "<agent Bob>")
