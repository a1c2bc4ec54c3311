"""What stands around an agent's runs, the calls of its model, and the calls of its tools."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace as replace_run
from typing import Any

import pytest
from msgspec.structs import replace

from agent_context import AgentResponse, Completion, Message, tool
from agent_context.agent import Middleware, RunRequest, around_model, around_run, around_tool
from agent_context.errors import BackendError, InvalidOptions
from agent_context.model_call import ModelCall
from agent_context.tools import ToolContext
from agent_context_backends.scripted import ScriptedBackend
from tests.agent.conftest import agent_of, calls, sent, texts

Next = Callable[[Any], Awaitable[Any]]


@tool
async def look(place: str = "here") -> str:
    """Look."""
    return f"nothing {place}"


class Named(Middleware):
    """Writes down when it is entered and left."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    async def _note(self, kind: str, item: Any, proceed: Next) -> Any:
        self.log.append(f"{self.name}: {kind}")
        result = await proceed(item)
        self.log.append(f"{self.name}: end of {kind}")
        return result

    async def around_run(self, run: RunRequest, proceed: Next) -> AgentResponse:
        result: AgentResponse = await self._note("run", run, proceed)
        return result

    async def around_model(self, call: ModelCall, proceed: Next) -> Completion:
        result: Completion = await self._note("model", call, proceed)
        return result

    async def around_tool(self, call: ToolContext, proceed: Next) -> object:
        return await self._note("tool", call, proceed)


async def test_the_first_is_the_outermost_of_all_three_kinds() -> None:
    log: list[str] = []
    agent = agent_of(
        [calls("look"), "done"], tools=[look], middleware=[Named("a", log), Named("b", log)]
    )

    await agent.run("go")

    once = ["a: model", "b: model", "b: end of model", "a: end of model"]
    tools = ["a: tool", "b: tool", "b: end of tool", "a: end of tool"]
    runs = ["a: run", "b: run"], ["b: end of run", "a: end of run"]
    assert log == [*runs[0], *once, *tools, *once, *runs[1]]


async def test_it_may_change_what_a_run_says() -> None:
    @around_run
    async def shout(run: RunRequest, proceed: Next) -> AgentResponse:
        said = [Message.user(message.text.upper()) for message in run.messages]
        result: AgentResponse = await proceed(replace_run(run, messages=said))
        return result

    agent = agent_of(["done"], middleware=[shout])
    await agent.run("go")

    assert sent(agent) == ["user: GO"]


async def test_it_may_answer_a_run_without_it() -> None:
    @around_run
    async def cached(run: RunRequest, proceed: Next) -> AgentResponse:
        return AgentResponse(completion=Completion(message=Message.assistant("from the cache")))

    agent = agent_of([], middleware=[cached])

    assert (await agent.run("go")).text == "from the cache"


async def test_what_a_run_gives_must_be_a_response() -> None:
    @around_run
    async def wrong(run: RunRequest, proceed: Next) -> Any:
        return "text"

    with pytest.raises(InvalidOptions, match="around_run: AgentResponse expected, not str"):
        await agent_of([], middleware=[wrong]).run("go")


async def test_it_may_run_again() -> None:
    @around_run
    async def twice(run: RunRequest, proceed: Next) -> AgentResponse:
        try:
            result: AgentResponse = await proceed(run)
        except BackendError:
            result = await proceed(run)
        return result

    agent = agent_of([BackendError("down"), "done"], middleware=[twice])
    session = agent.create_session()

    assert (await agent.run("go", session=session)).text == "done"
    assert texts(await session.get_messages()) == ["go", "done"]


async def test_it_may_change_what_the_model_is_asked_and_what_it_says() -> None:
    @around_model
    async def cool(call: ModelCall, proceed: Next) -> Completion:
        options = call.options.model_copy(update={"temperature": 0.0})
        answer: Completion = await proceed(replace(call, options=options))
        return answer.model_copy(update={"message": Message.assistant(answer.text.title())})

    backend = ScriptedBackend(["well done"])
    agent = agent_of(backend, middleware=[cool])

    assert (await agent.run("go")).text == "Well Done"
    assert backend.requests[0].options.temperature == 0.0


async def test_it_may_change_the_arguments_of_a_tool_and_its_result() -> None:
    @around_tool
    async def elsewhere(call: ToolContext, proceed: Next) -> object:
        return f"[{await proceed(call.with_arguments(place='there'))}]"

    agent = agent_of([calls("look"), "done"], tools=[look], middleware=[elsewhere])
    response = await agent.run("go")

    assert texts(response.messages) == ["look", "[nothing there]", "done"]


async def test_it_may_keep_a_tool_from_running() -> None:
    @around_tool
    async def forbid(call: ToolContext, proceed: Next) -> object:
        return f"{call.call.name} is not for today"

    agent = agent_of([calls("look"), "done"], tools=[look], middleware=[forbid])

    assert texts((await agent.run("go")).messages)[1] == "look is not for today"


async def test_what_goes_wrong_around_a_tool_is_told_to_the_model() -> None:
    @around_tool
    async def fail(call: ToolContext, proceed: Next) -> object:
        raise LookupError("no such desk")

    agent = agent_of([calls("look"), "done"], tools=[look], middleware=[fail])

    assert texts((await agent.run("go")).messages)[1] == "look failed: LookupError: no such desk"


async def test_a_plain_function_runs_on_a_thread_and_need_not_await() -> None:
    threads: list[str] = []

    @around_tool
    def slow(call: ToolContext, proceed: Callable[[ToolContext], object]) -> object:
        threads.append(threading.current_thread().name)
        return f"{proceed(call)}!"

    agent = agent_of([calls("look"), "done"], tools=[look], middleware=[slow])

    assert texts((await agent.run("go")).messages)[1] == "nothing here!"
    assert threads != [threading.current_thread().name]


async def test_it_runs_on_the_programs_loop_with_its_context_variables() -> None:
    loops: list[object] = []

    @around_model
    async def look_around(call: ModelCall, proceed: Next) -> Completion:
        loops.append(asyncio.get_running_loop())
        result: Completion = await proceed(call)
        loops.append(asyncio.get_running_loop())
        return result

    await agent_of(["done"], middleware=[look_around]).run("go")

    assert loops == [asyncio.get_running_loop()] * 2


async def test_a_cancelled_run_cancels_what_stands_around_its_model() -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    @around_model
    async def hang(call: ModelCall, proceed: Next) -> Completion:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    agent = agent_of(["next"], middleware=[hang])
    task = asyncio.create_task(agent.run("go"))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(cancelled.wait(), 60)


async def test_a_streamed_run_goes_the_same_way() -> None:
    log: list[str] = []
    agent = agent_of(["well done"], middleware=[Named("a", log)])

    updates = [update.text async for update in agent.run("go", stream=True)]

    assert "".join(updates) == "well done"
    assert log == ["a: run", "a: model", "a: end of model", "a: end of run"]


def test_what_is_no_middleware_is_refused_when_the_agent_is_made() -> None:
    with pytest.raises(InvalidOptions, match="middleware: Middleware expected, not function"):
        agent_of([], middleware=[lambda call, proceed: None])
