"""A toolbox inside a turn: on the program's loop, for a bounded number of rounds."""

import asyncio
import contextvars
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from agent_context import AgentContext, Cancel, Incremental, Message, Send, SendOptions
from agent_context.errors import InvalidOptions, TurnAborted, TurnCancelled
from agent_context.messages import Completion, ToolCall
from agent_context.protocol import Len
from agent_context.tools import Limits, Toolbox, tool
from agent_context.tools.loop import ToolLoop, ToolLoopRunner, ToolRound
from agent_context_backends.scripted import ScriptedBackend
from tests.support.toolbox import call
from tests.support.waiting import wait_for


def asks(*calls: ToolCall) -> Completion:
    return Completion(message=Message.assistant(tool_calls=calls))


def ignored(_: Message) -> None: ...


@contextmanager
def loop_of_its_own() -> Generator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@tool
async def where() -> str:
    """Name the thread."""
    return threading.current_thread().name


def test_it_is_a_tool_loop() -> None:
    assert isinstance(ToolLoopRunner(Toolbox()), ToolLoop)


async def test_tools_run_on_the_loop_of_the_program_and_results_come_back() -> None:
    told: list[Message] = []

    with loop_of_its_own() as loop:
        asked = asks(call("where", "a"), call("where", "b"))
        round_ = await ToolLoopRunner(Toolbox([where]), loop).answer(asked, told.append)

    assert round_ is not None
    here = threading.current_thread().name
    there = {result.text for result in round_.results}
    assert len(there) == 1
    assert here not in there
    assert told == list(round_.results)


async def test_tools_see_the_context_variables_of_the_program() -> None:
    user = contextvars.ContextVar[str]("user")
    user.set("Ada")

    @tool
    async def who() -> str:
        return user.get()

    with loop_of_its_own() as loop:
        bound = ToolLoopRunner(Toolbox([who]), loop)
        user.set("Bob")
        round_ = await bound.answer(asks(call("who")), ignored)

    assert round_ is not None
    assert [result.text for result in round_.results] == ["Ada"]


async def test_cancelling_the_turn_cancels_the_tool_on_its_loop() -> None:
    running, cancelled = threading.Event(), threading.Event()

    @tool
    async def hang() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with loop_of_its_own() as loop:
        answer = asyncio.create_task(
            ToolLoopRunner(Toolbox([hang]), loop).answer(asks(call("hang")), ignored)
        )
        await asyncio.to_thread(wait_for, running)
        answer.cancel()

        with pytest.raises(asyncio.CancelledError):
            await answer
        await asyncio.to_thread(wait_for, cancelled)


async def test_a_loop_that_is_gone_ends_the_turn() -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    with pytest.raises(TurnAborted, match="the loop that the tools belong to is gone"):
        await ToolLoopRunner(Toolbox([where]), loop).answer(asks(call("where")), ignored)


async def test_after_the_last_round_the_model_must_answer() -> None:
    bound = ToolLoopRunner(Toolbox([where]), max_rounds=2)

    rounds = [await bound.answer(asks(call("where")), ignored) for _ in range(4)]

    choices = [each.tool_choice for each in rounds if each is not None]
    assert choices == [None, "none", "none", "none"]
    with pytest.raises(TurnAborted, match="after 2 rounds"):
        await bound.answer(asks(call("where")), ignored)


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_a_tool_runs_in_no_more_rounds_than_there_are(most: int) -> None:
    ran: list[str] = []
    told: list[Message] = []

    @tool
    async def work() -> str:
        ran.append("work")
        return "worked"

    runner = ToolLoopRunner(Toolbox([work]), max_rounds=most)
    rounds = [await runner.answer(asks(call("work")), told.append) for _ in range(most + 2)]

    assert len(ran) == most
    texts = [each.results[0].text for each in rounds if each is not None]
    assert texts[:most] == ["worked"] * most
    assert all("no rounds of tool calls left" in text for text in texts[most:])
    assert [message.text for message in told] == texts


def test_there_is_at_least_one_round() -> None:
    with pytest.raises(InvalidOptions, match="at least 1, not 0"):
        ToolLoopRunner(Toolbox(), max_rounds=0)


async def test_calls_that_wait_for_a_decision_end_the_turn() -> None:
    @tool(approval="require")
    async def delete() -> None: ...

    bound = ToolLoopRunner(Toolbox([where, delete]))

    assert await bound.answer(asks(call("where", "a"), call("delete", "b")), ignored) is None
    assert [pending.id for pending in bound.pending] == ["b"]


async def test_the_reader_is_offered_from_the_round_on_that_was_cut() -> None:
    long = tool(lambda: "x" * 100, name="long")
    bound = ToolLoopRunner(Toolbox([long], limits=Limits(max_result=10)))

    first = await bound.answer(asks(call("long")), ignored)
    second = await bound.answer(asks(call("long")), ignored)

    assert isinstance(first, ToolRound)
    assert isinstance(second, ToolRound)
    assert first.tools is not None
    assert [item.name for item in first.tools] == ["long", "read_tool_result"]
    assert second.tools is None


async def test_a_call_that_fails_in_each_round_is_told_to_stop() -> None:
    bound = ToolLoopRunner(Toolbox())

    rounds = [await bound.answer(asks(call("nothing")), ignored) for _ in range(3)]

    texts = [each.results[0].text for each in rounds if each is not None]
    assert ["failed 3 times" in text for text in texts] == [False, False, True]


async def test_a_turn_goes_through_its_rounds_in_a_conversation() -> None:
    @tool
    async def weather(city: str) -> str:
        """Forecast."""
        return f"sun in {city}"

    toolbox = Toolbox([weather])
    backend = ScriptedBackend(
        [asks(call("weather", "a", city="Rome")).message, Message.assistant("Sunny.")]
    )
    ctx = AgentContext.start(backend)
    options = SendOptions(tools=toolbox.tools)

    answer = await ctx.aask(
        Send(
            options,
            [Message.user("Rome?")],
            loop=ToolLoopRunner(toolbox, asyncio.get_running_loop()),
        )
    )

    assert answer.message.text == "Sunny."
    stored = await ctx.aask(Incremental())
    assert [message.text for message in stored] == ["Rome?", "", "sun in Rome", "Sunny."]


async def test_a_tool_may_ask_the_conversation_that_it_is_called_from() -> None:
    @tool
    def count() -> int:
        return ctx.ask(Len())

    toolbox = Toolbox([count])
    backend = ScriptedBackend([asks(call("count")).message, Message.assistant("None.")])
    ctx = AgentContext.start(backend, options=SendOptions(tools=toolbox.tools))

    await ctx.aask(Send(messages=[Message.user("How many?")], loop=ToolLoopRunner(toolbox)))

    assert (await ctx.aask(Incremental()))[2].text == "0"


async def test_a_cancelled_turn_keeps_the_results_that_were_there() -> None:
    added, cancelled = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> None:
        added.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    toolbox = Toolbox([where, hang], parallel=False)
    backend = ScriptedBackend([asks(call("where", "a"), call("hang", "b")).message])
    ctx = AgentContext.start(backend, options=SendOptions(tools=toolbox.tools))
    loop = ToolLoopRunner(toolbox, asyncio.get_running_loop())

    turn = asyncio.ensure_future(ctx.aask(Send(messages=[Message.user("Go.")], loop=loop)))
    await added.wait()
    await ctx.aask(Cancel())

    with pytest.raises(TurnCancelled):
        await turn
    await cancelled.wait()
    stored = await ctx.aask(Incremental())
    assert [message.tool_call_id for message in stored] == [None, None, "a", "b"]
    assert stored[2].text == threading.current_thread().name
