"""Making a request smaller: by a provider, or before the call when it is too much."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context import (
    Agent,
    AgentContext,
    Append,
    Completion,
    Compress,
    ContextProvider,
    HistoryProvider,
    Message,
    Role,
    SendOptions,
    SlidingWindow,
    Summarize,
    TokenBudget,
    ToolCall,
)
from agent_context.backend import Request
from agent_context.compression import EvictToolResults, Strategy
from agent_context.compression.strategy import CompressionPlan, PlanningView
from agent_context.compression.summarize import PROMPT
from agent_context.errors import InvalidOptions, StoreUnavailable
from agent_context.messages import TextPart
from agent_context.models import ModelFacts
from agent_context.providers import (
    CompressionProvider,
    FileHistoryProvider,
    InMemoryHistoryProvider,
    SqliteHistoryProvider,
)
from agent_context.providers.compression import ModelTokenCounter, compress, input_budget
from agent_context.tools import tool
from agent_context_backends.scripted import ScriptedBackend, ScriptItem
from tests.agent.conftest import Gives, agent_of, calls, requests, says, sent, texts
from tests.support.examples import examples
from tests.support.waiting import wait_for

SMALL = ModelFacts(context_window=1_000, max_output=200)


async def talked(agent: Agent, *said: str) -> None:
    session = agent.create_session()
    for text in said:
        await agent.run(text, session=session)


@pytest.mark.behaviour(22)
async def test_a_compression_provider_shortens_what_came_before_it() -> None:
    providers = [InMemoryHistoryProvider("memory"), CompressionProvider(SlidingWindow(1))]
    agent = agent_of(["1", "2", "3"], context_providers=providers)

    await talked(agent, "a", "b", "c")

    assert providers[1].kind == "compression"
    assert sent(agent) == ["user: b", "assistant: 2", "user: c"]


async def test_what_is_stored_stays_whole_under_a_compression_provider() -> None:
    agent = agent_of(["1", "2", "3"], context_providers=[CompressionProvider(SlidingWindow(1))])
    session = agent.create_session()

    for text in "abc":
        await agent.run(text, session=session)

    assert texts(await session.get_messages()) == ["a", "1", "b", "2", "c", "3"]


@pytest.mark.behaviour(22)
async def test_older_messages_become_a_summary_past_the_budget() -> None:
    strategy = Summarize(keep=2)
    agent = agent_of(
        ["1" * 400, "2", "(summary)", "3"],
        context_providers=[CompressionProvider(strategy, budget=100)],
    )

    await talked(agent, "a", "b", "c")

    *_, summary, kept, last, question = sent(agent)
    assert "(summary)" in summary
    assert summary.startswith("assistant: ")
    assert [kept, last, question] == ["user: b", "assistant: 2", "user: c"]


async def test_no_summary_is_paid_for_while_there_is_room() -> None:
    agent = agent_of(["1", "2", "3"], context_providers=[CompressionProvider(Summarize(keep=2))])

    await talked(agent, "a", "b", "c")

    assert len(requests(agent)) == 3
    assert sent(agent)[0] == "user: a"


@pytest.mark.behaviour(23)
async def test_a_compression_provider_leaves_alone_what_comes_after_it() -> None:
    def one(messages: list[Message], budget: int, counter: object) -> list[Message]:
        return messages[-1:]

    providers = [
        Gives("a", says("A1", "A2")), CompressionProvider(one), Gives("b", says("B1", "B2")),
    ]  # fmt: skip
    agent = agent_of(["hi"], context_providers=providers)

    await agent.run("hello")

    assert sent(agent) == ["user: A2", "user: B1", "user: B2", "user: hello"]


class Chatty(ScriptedBackend):
    """Says fifty words, or a short summary if it is asked for one; counts those."""

    def __init__(self) -> None:
        super().__init__()
        self.summaries = 0
        self.told: list[list[Message]] = []

    async def send(self, request: Request) -> Completion:
        said = [record.message for record in request.records]
        if PROMPT in said[-1].text:
            self.summaries += 1
            return Completion(message=Message.assistant(f"(summary {self.summaries})"))
        self.told.append(said)
        return Completion(message=Message.assistant("word " * 50))


async def past_the_budget(compression: CompressionProvider, history: HistoryProvider) -> Chatty:
    """Ten runs of a conversation that was past the budget of its compression before."""
    long_ago = [Message.user("word " * 50), Message.assistant("word " * 50)] * 10
    said = [message.model_copy(update={"id": f"m{n}"}) for n, message in enumerate(long_ago)]
    await history.save_messages("s", said)
    client = Chatty()
    agent = client.as_agent(context_providers=[history, compression])
    session = agent.create_session("s")
    for _ in range(10):
        response = await agent.run("word " * 50, session=session)
        assert not response.diagnostics
    await agent.drain()
    return client


@pytest.mark.parametrize(("rewrite", "paid"), [(False, 10), (True, 2)])
async def test_a_summary_that_the_history_keeps_is_paid_for_once(
    tmp_path: Path, rewrite: bool, paid: int
) -> None:
    history = FileHistoryProvider(tmp_path)
    compression = CompressionProvider(Summarize(keep=2), budget=1_000, rewrite=rewrite)

    client = await past_the_budget(compression, history)

    assert client.summaries == paid
    kept = await history.get_messages("s")
    assert [m.text for m in kept if "(summary" in m.text] == [kept[0].text] * rewrite
    assert len(kept) == (40 if not rewrite else len(client.told[-1]) + 1)


async def test_what_is_kept_is_what_was_sent(tmp_path: Path) -> None:
    history = SqliteHistoryProvider(tmp_path / "talks.db")
    await history.save_messages("s", [Message.user(text * 400) for text in "abc"])
    agent = agent_of(
        ["(summary)", "hi"],
        context_providers=[history, CompressionProvider(Summarize(1), budget=9, rewrite=True)],
    )

    await agent.run("hello", session=agent.create_session("s"), wait_for_persistence=True)

    summary, *rest = sent(agent)
    assert summary.startswith("assistant: ")
    assert "(summary)" in summary
    assert rest == [f"user: {'c' * 400}", "user: hello"]
    kept = [f"{m.role}: {m.text}" for m in await history.get_messages("s")]
    assert kept == [summary, *rest, "assistant: hi"]


async def test_a_rewrite_is_of_the_history_and_of_nothing_else(tmp_path: Path) -> None:
    history = FileHistoryProvider(tmp_path)
    await history.save_messages("s", [Message.user(text) for text in "abc"])
    compression = CompressionProvider(SlidingWindow(1), rewrite=True)
    providers = [Gives("x", says("X1", "X2")), history, Gives("y", says("Y1", "Y2")), compression]
    agent = agent_of(["hi"], context_providers=providers)

    await agent.run("hello", session=agent.create_session("s"), wait_for_persistence=True)

    said = ["user: X1", "user: X2", "user: c", "user: Y1", "user: Y2", "user: hello"]
    assert sent(agent) == said
    assert texts(await history.get_messages("s")) == ["c", "hello", "hi"]


async def test_what_others_added_meanwhile_is_not_rewritten(tmp_path: Path) -> None:
    history = FileHistoryProvider(tmp_path)
    await history.save_messages("s", [Message.user(text) for text in "abc"])

    async def slowly(messages: list[Message], budget: int, counter: object) -> list[Message]:
        await history.save_messages("s", [Message.user("from elsewhere")])
        return messages[-1:]

    compression = CompressionProvider(slowly, rewrite=True)
    agent = agent_of(["hi"], context_providers=[history, compression])

    await agent.run("hello", session=agent.create_session("s"), wait_for_persistence=True)

    assert sent(agent) == ["user: c", "user: hello"]
    kept = texts(await history.get_messages("s"))
    assert kept == ["a", "b", "c", "from elsewhere", "hello", "hi"]


async def test_a_history_that_can_not_be_written_goes_out_whole_and_stays(tmp_path: Path) -> None:
    class ReadOnly(FileHistoryProvider):
        async def replace_messages(self, *_: Any, **__: Any) -> None:
            raise StoreUnavailable("the disk is full")

    history = ReadOnly(tmp_path)
    await history.save_messages("s", [Message.user(text) for text in "abc"])
    compression = CompressionProvider(SlidingWindow(1), rewrite=True)
    agent = agent_of(["hi"], context_providers=[history, compression])

    response = await agent.run("hello", session=agent.create_session("s"))

    assert [found.text for found in response.diagnostics] == ["StoreUnavailable: the disk is full"]
    assert sent(agent) == ["user: a", "user: b", "user: c", "user: hello"]


@pytest.mark.parametrize("history", [[], [InMemoryHistoryProvider("memory")]])
def test_the_conversations_own_history_is_not_a_providers_to_rewrite(
    history: list[ContextProvider],
) -> None:
    with pytest.raises(InvalidOptions, match="give the agent `compression`"):
        agent_of(context_providers=[*history, CompressionProvider(SlidingWindow(1), rewrite=True)])


def test_what_compresses_nothing_is_refused() -> None:
    with pytest.raises(InvalidOptions, match="strategy: a Strategy, or what compresses a list"):
        CompressionProvider(7)  # type: ignore[arg-type]


class LastOnly:
    """Keeps the instructions and the last message."""

    def __init__(self, *, fails: bool = False) -> None:
        self.given: list[tuple[list[str], int, Any]] = []
        self._fails = fails

    def compress(self, messages: list[Message], budget: int, counter: Any) -> list[Message]:
        self.given.append((texts(messages), budget, counter))
        if self._fails:
            raise RuntimeError("no idea")
        kept = [messages[0], messages[-1]]
        messages.clear()
        return kept


class Counts:
    """Finds every list as long as it is told."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def count_tokens(self, messages: Sequence[Message], /) -> int:
        return self.tokens


def small_agent(script: list[ScriptItem], **described: Any) -> Agent:
    return agent_of(ScriptedBackend(script, facts=SMALL), instructions="base", **described)


@pytest.mark.behaviour(30)
@pytest.mark.behaviour(34)
@pytest.mark.behaviour(37)
async def test_a_request_past_the_budget_goes_out_smaller_and_what_is_stored_stays() -> None:
    strategy, counter = LastOnly(), Counts(0)
    agent = small_agent(["1", "2", "3"], compression_strategy=strategy, token_counter=counter)
    session = agent.create_session()
    await agent.run("a", session=session)
    await agent.run("b", session=session)
    counter.tokens = 801

    await agent.run("c", session=session)

    assert strategy.given == [(["base", "a", "1", "b", "2", "c"], 800, counter)]
    assert sent(agent) == ["system: base", "user: c"]
    assert texts(await session.get_messages()) == ["a", "1", "b", "2", "c", "3"]


async def test_a_strategy_of_conversations_shrinks_a_request_too() -> None:
    agent = small_agent(
        ["1", "2", "3"], compression_strategy=SlidingWindow(1), token_counter=lambda m: 900
    )

    await talked(agent, "a", "b", "c")

    assert sent(agent) == ["system: base", "user: b", "assistant: 2", "user: c"]


@pytest.mark.behaviour(31)
async def test_a_request_of_just_the_budget_goes_out_as_it_is() -> None:
    strategy = LastOnly()
    agent = small_agent(["1"], compression_strategy=strategy, token_counter=Counts(800))

    await agent.run("a")

    assert not strategy.given


@pytest.mark.behaviour(32)
def test_without_a_known_window_there_is_no_budget() -> None:
    unknown = ScriptedBackend(facts=ModelFacts(context_window=0, max_output=10))

    assert input_budget(unknown, SendOptions()) is None
    assert input_budget(unknown, SendOptions(context_window=100)) == 90


@pytest.mark.behaviour(33)
@pytest.mark.parametrize("has", ["strategy", "counter"])
async def test_strategy_and_counter_do_nothing_alone(has: str) -> None:
    strategy, counter = LastOnly(), Counts(10_000)
    agent = small_agent(
        ["1"],
        compression_strategy=strategy if has == "strategy" else None,
        token_counter=counter if has == "counter" else None,
    )

    await agent.run("a")

    assert not strategy.given
    assert sent(agent) == ["system: base", "user: a"]


@pytest.mark.behaviour(35)
async def test_a_strategy_that_fails_lets_everything_go_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = small_agent(
        ["1"], compression_strategy=LastOnly(fails=True), token_counter=Counts(10_000)
    )

    with caplog.at_level(logging.WARNING):
        response = await agent.run("a")

    assert sent(agent) == ["system: base", "user: a"]
    assert "compression failed" in caplog.text
    assert [d.source for d in response.diagnostics] == ["compression"]


@pytest.mark.behaviour(36)
def test_the_input_budget_is_the_window_without_the_answer() -> None:
    assert SMALL.input_budget == 800
    assert ModelFacts(context_window=100, max_output=300).input_budget == 0


async def test_a_models_own_counter_tells_when_it_is_too_much() -> None:
    client = ScriptedBackend(["1", "2", "3"], facts=SMALL)
    agent = client.as_agent(
        compression_strategy=SlidingWindow(1), token_counter=ModelTokenCounter(client)
    )

    await talked(agent, "word " * 500, "b", "word " * 500)

    assert [text[:8] for text in sent(agent)] == ["user: b", "assistan", "user: wo"]


@pytest.mark.behaviour(99)
def test_a_character_of_chinese_counts_as_about_a_token() -> None:
    counter = ModelTokenCounter(ScriptedBackend(facts=SMALL))
    text = "今天天气很好我们去公园散步吧" * 10

    assert 0.5 <= counter.count_tokens([Message.user(text)]) / len(text) <= 1.5


async def test_tools_count_as_part_of_a_request() -> None:
    seen: list[int] = []

    def counter(messages: Sequence[Message]) -> int:
        seen.append(sum(len(message.text) for message in messages))
        return 0

    def look() -> str:
        """Look around."""
        return ""

    agent = small_agent(
        ["1", "2"], compression_strategy=LastOnly(), token_counter=counter, tools=[]
    )
    await agent.run("a")
    await agent.run("a", tools=[look])

    assert seen[1] > seen[0] + len("Look around.")


async def test_the_conversation_still_shrinks_by_its_own_strategy_when_nothing_fits() -> None:
    used: list[int] = []

    class Window(Strategy):
        def plan(self, view: Any) -> Any:
            used.append(view.budget)
            return TokenBudget().plan(view)

    facts = ModelFacts(context_window=120, max_output=20, default_reserve=20)
    backend = ScriptedBackend(["1", "2", "3"], facts=facts)
    agent = agent_of(backend, compression=Window())

    await talked(agent, "word " * 60, "last", "word " * 60)

    assert used
    assert len(requests(agent)) == 3


def talk(kinds: Sequence[str]) -> list[Message]:
    """User's words, answers, and rounds of one tool call or two, each call with its result."""
    said: list[Message] = []
    for number, kind in enumerate(kinds):
        ids = [f"c{number}.{each}" for each in range(kind.count("c"))]
        asked = [ToolCall(id=each, name="look") for each in ids]
        if kind == "user":
            said.append(Message.user(f"question {number} " + "word " * 20))
        else:
            said.append(Message.assistant(f"answer {number} " + "word " * 20, tool_calls=asked))
        said += [Message.tool(each, "seen " * 20) for each in reversed(ids)]
    return said


KINDS = st.lists(st.sampled_from(["user", "said", "c", "cc"]), min_size=1, max_size=12)
STRATEGIES: list[Strategy] = [SlidingWindow(1), TokenBudget(), EvictToolResults(1), Summarize(1)]


@pytest.mark.behaviour(99)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
@examples(0.4)
@given(kinds=KINDS, budget=st.integers(0, 300))
async def test_what_goes_out_is_never_empty_and_answers_every_call(
    strategy: Strategy, kinds: list[str], budget: int
) -> None:
    said = talk(kinds)

    smaller = await compress(
        strategy,
        said,
        budget=budget,
        counter=None,
        backend=ScriptedBackend(["(summary)"]),
        options=SendOptions(),
    )

    assert smaller
    asked = [call.id for message in smaller for call in message.tool_calls]
    answered = [message.tool_call_id for message in smaller if message.role is Role.TOOL]
    assert sorted(asked) == sorted(filter(None, answered))


def shortened(messages: list[Message]) -> list[Message]:
    return [said.model_copy(update={"parts": (TextPart(text="short"),)}) for said in messages]


class Shortens:
    """Says less for every message, the caller's own too."""

    def compress(self, messages: list[Message], budget: int, counter: Any) -> list[Message]:
        return [messages[0], *shortened(messages[1:])]


@tool
def look() -> str:
    """Look around."""
    return "seen"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_strategy_makes_of_the_callers_words_is_sent_and_not_stored(
    *, stream: bool
) -> None:
    agent = small_agent(
        ["1", calls("look"), "2"],
        compression_strategy=Shortens(),
        token_counter=Counts(900),
        tools=[look],
    )
    session = agent.create_session()
    await agent.run("a long story", session=session)

    if stream:
        await agent.run("another", session=session, stream=True).get_final_response()
    else:
        await agent.run("another", session=session)

    short = ["system: base", "user: short", "assistant: short", "user: short"]
    assert sent(agent, 1) == short
    assert sent(agent, 2) == [*short, "assistant: look", "tool: seen"]
    stored = ["a long story", "1", "another", "look", "seen", "2"]
    assert texts(await session.get_messages()) == stored


async def test_words_that_a_strategy_leaves_out_are_sent_all_the_same() -> None:
    agent = small_agent(
        ["1"], compression_strategy=lambda m, b, c: [m[0]], token_counter=Counts(900)
    )

    await agent.run("hello")

    assert sent(agent) == ["system: base", "user: hello"]


def boom(*_: object) -> Any:
    raise RuntimeError("no idea")


async def late(*_: object) -> Any:
    raise RuntimeError("no idea")


BROKEN: dict[str, dict[str, Any]] = {
    "a text": {"compression_strategy": lambda m, b, c: "short"},
    "nothing": {"compression_strategy": lambda m, b, c: None},
    "texts": {"compression_strategy": lambda m, b, c: ["short"]},
    "rows": {"compression_strategy": lambda m, b, c: [{"role": "user", "content": "short"}]},
    "a number": {"compression_strategy": lambda m, b, c: 7},
    "an error": {"compression_strategy": boom},
    "a late error": {"compression_strategy": late},
    "a counter with an error": {"token_counter": boom},
    "a counter with a text": {"token_counter": lambda m: "many"},
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_a_strategy_or_counter_that_is_broken_lets_everything_go_out(
    broken: dict[str, Any],
) -> None:
    described = {"compression_strategy": Shortens(), "token_counter": Counts(900), **broken}
    agent = small_agent(["1"], **described)

    response = await agent.run("hello")

    assert sent(agent) == ["system: base", "user: hello"]
    assert [d.source for d in response.diagnostics] == ["compression"]


class Blocks(Strategy):
    """Takes its time to plan, all the time that there is."""

    def __init__(self) -> None:
        self.begun, self.opened = threading.Event(), threading.Event()

    def plan(self, view: PlanningView) -> CompressionPlan | None:
        self.begun.set()
        wait_for(self.opened)
        return None


async def test_strategies_that_block_stop_no_other_conversation() -> None:
    blocking = [Blocks() for _ in range(8)]
    opened = [
        AgentContext.start(ScriptedBackend(["1"]), compression=each, options=SendOptions())
        for each in blocking
    ]
    for ref in opened:
        ref.tell(Append(Message.user("hello")))
        ref.tell(Compress())
    await asyncio.to_thread(wait_for, *(each.begun for each in blocking))

    other = AgentContext.start(ScriptedBackend(["1"]), compression=SlidingWindow(1))
    for text in ("a", "b"):
        await other.aask(Append(Message.user(text)))
    report = await other.aask(Compress())

    assert report.strategy
    for each in blocking:
        each.opened.set()


async def test_a_strategy_of_requests_that_blocks_stops_no_other_run() -> None:
    begun, opened = threading.Event(), threading.Event()

    def block(messages: list[Message], budget: int, counter: Any) -> list[Message]:
        begun.set()
        wait_for(opened)
        return messages

    agent = small_agent(["1"], compression_strategy=block, token_counter=Counts(900))
    run = asyncio.create_task(agent.run("hello"))
    await asyncio.to_thread(wait_for, begun)

    other = await small_agent(["2"]).run("hello")

    assert other.text == "2"
    assert not run.done()
    opened.set()
    assert (await run).text == "1"
