import asyncio
import json
import re
import threading
from typing import Any

import pytest

from agent_context import AgentContext, Append, Compress, Extend, Fork
from agent_context.agent import Agent
from agent_context.compression import SlidingWindow
from agent_context.events import Appended, ChangeEvent, Compressed, Updated
from agent_context.messages import Message, ToolCall
from agent_context.protocol import Remove, Update
from agent_context.providers import recall
from agent_context.providers.conversation_search import ObservedHistorySearch, StoreHistorySearch
from agent_context.providers.recall import RecallProvider
from agent_context.sessions.session import AgentSession
from agent_context.stores.memory import MemoryStore
from agent_context.tools import Tool
from agent_context_backends.scripted import ScriptedBackend
from tests.support.waiting import wait_for


class Watched(ObservedHistorySearch):
    """Tells when it has heard a certain kind of event."""

    def __init__(self, kind: type[ChangeEvent]) -> None:
        super().__init__()
        self.kind = kind
        self.told = threading.Event()

    def on_change(self, event: ChangeEvent) -> None:
        super().on_change(event)
        if isinstance(event, self.kind):
            self.told.set()

    async def caught_up(self) -> None:
        await asyncio.to_thread(wait_for, self.told)


def recalls(query: str, **more: Any) -> Message:
    arguments = json.dumps({"query": query, **more})
    return Message.assistant(
        "", tool_calls=[ToolCall(id=f"c-{query}", name="recall", arguments=arguments)]
    )


def answered(response: Any) -> str:
    """What the tool has told, today's dates without the day and the hour."""
    [result] = [message.text for message in response.messages if message.tool_call_id]
    return re.sub(r", 20\d\d-\d\d-\d\d \d\d:\d\d UTC:", ", DATE:", str(result))


async def compressed_agent(
    monkeypatch: pytest.MonkeyPatch, *script: Any
) -> tuple[Agent, AgentSession]:
    """An agent whose first turn, about a parrot, is hidden from it."""
    backend = ScriptedBackend(["Polly is a nice name.", "Four.", *script])
    provider, past = RecallProvider(), Watched(Compressed)
    agent = Agent(backend, context_providers=[provider])
    session = agent.create_session()
    with monkeypatch.context() as patched:
        patched.setattr(recall, "ObservedHistorySearch", lambda: past)
        await agent.run("My parrot is called Polly.", session=session)
    await agent.run("What is 2+2?", session=session)
    assert session.conversation is not None
    await session.conversation.aask(Compress(SlidingWindow(1)))
    await past.caught_up()
    assert "parrot" not in " ".join(said.text for said in await session.get_messages())
    return agent, session


async def test_what_a_compression_hid_is_recalled(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, session = await compressed_agent(monkeypatch, recalls("PARROT called"), "Polly.")

    response = await agent.run("What is my bird's name?", session=session)

    assert answered(response) == "[recalled]\n\nuser, DATE: My parrot is called Polly."
    assert response.text == "Polly."


async def test_what_the_model_sees_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, session = await compressed_agent(
        monkeypatch, recalls("what"), "So.", recalls("parrot"), "x"
    )

    seen = await agent.run("q", session=session)
    own = await agent.run("q", session=session)

    assert answered(seen) == "[recalled] nothing that you don't see holds 'what'"
    assert answered(own).count("parrot") == 1


async def test_a_query_without_words_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, session = await compressed_agent(monkeypatch, recalls("?!"), "x")

    assert "it has no words" in answered(await agent.run("q", session=session))


async def test_a_long_message_is_told_around_what_was_found() -> None:
    past = ObservedHistorySearch()
    message = Message.user("a" * 5000 + " needle " + "b" * 5000)
    past.on_change(
        Appended(
            conversation_id="c", seq=1, version_before=0, version_after=1, index=0, message=message
        )
    )
    provider = RecallProvider(lambda _: past)
    agent = Agent(ScriptedBackend([recalls("needle"), "x"]), context_providers=[provider])

    told = answered(await agent.run("q"))

    assert " needle " in told
    assert len(told) < 2100
    assert told.startswith("[recalled]\n\nuser, DATE: …a")
    assert told.endswith("b…")


async def test_sessions_do_not_hear_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, _ = await compressed_agent(monkeypatch, recalls("parrot"), "x")

    assert "nothing" in answered(await agent.run("q", session=agent.create_session()))


async def test_what_was_taken_out_on_purpose_is_forgotten() -> None:
    conversation = AgentContext.start(ScriptedBackend([]))
    await conversation.aask(Append(Message.user("secret before")))
    past = Watched(Updated)
    await past.listen(conversation)
    await past.listen(conversation)
    await conversation.aask(Extend([Message.user("secret one"), Message.user("secret two")]))
    await conversation.aask(Remove(0))
    await conversation.aask(Update(0, Message.user("redacted")))
    await past.caught_up()

    assert [said.text for said in await past.search("secret", 9)] == ["secret two"]
    conversation.stop()


async def test_only_the_latest_are_remembered() -> None:
    conversation = AgentContext.start(ScriptedBackend([]))
    await conversation.aask(Extend([Message.user(f"word {n}") for n in range(5)]))
    past = ObservedHistorySearch(most=2)

    await past.listen(conversation)

    assert [said.text for said in await past.search("word", 9)] == ["word 4", "word 3"]
    conversation.stop()


async def test_a_durable_conversation_is_searched_in_its_store() -> None:
    store = MemoryStore()
    first = AgentContext.start(ScriptedBackend([]), store=store, id="s")
    await first.aask(Extend([Message.user("My parrot is Polly."), Message.user("No bird.")]))
    first.stop()
    backend = ScriptedBackend(["So.", recalls("parrot"), "Polly."])
    agent = Agent(backend, context_providers=[RecallProvider()], store=store)
    session = agent.create_session("s")
    await agent.run("2+2?", session=session)
    assert session.conversation is not None
    await session.conversation.aask(Compress(SlidingWindow(1)))

    response = await agent.run("q", session=session)

    assert answered(response) == "[recalled]\n\nuser, DATE: My parrot is Polly."


async def test_a_fork_recalls_what_was_said_before_it_branched_off() -> None:
    origin = AgentContext.start(ScriptedBackend([]), store=MemoryStore(), id="s")
    await origin.aask(Append(Message.user("My parrot is Polly.")))
    fork = await origin.aask(Fork())

    found = await StoreHistorySearch(fork).search("parrot", 5)

    assert [said.text for said in found] == ["My parrot is Polly."]
    origin.stop()
    fork.stop()


async def test_a_past_of_ones_own_may_be_searched() -> None:
    class Diary:
        async def search(self, text: str, limit: int) -> list[Message]:
            return [Message.user(f"Dear diary, {text}")]

    provider = RecallProvider(lambda _: Diary())
    agent = Agent(ScriptedBackend([recalls("parrot"), "x"]), context_providers=[provider])

    assert answered(await agent.run("q")) == "[recalled]\n\nuser: Dear diary, parrot"


async def test_the_tool_is_the_same_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, session = await compressed_agent(monkeypatch, "a", "b")
    await agent.run("q", session=session)
    await agent.run("q", session=session)
    assert isinstance(agent.client, ScriptedBackend)

    told: list[list[Tool]] = [
        list(request.options.tools or ()) for request in agent.client.requests[-2:]
    ]

    assert [tool.name for tool in told[0]] == ["recall"]
    assert told[0][0].model_dump() == told[1][0].model_dump()


async def test_a_session_that_goes_on_in_another_conversation_recalls_there() -> None:
    backend = ScriptedBackend(["noted", recalls("mat"), "under the mat"])
    agent = Agent(backend, context_providers=[RecallProvider()], store=MemoryStore())
    session = agent.create_session()
    await agent.run("the key is under the mat", session=session)
    await agent.drain()
    assert session.conversation is not None
    session.conversation.stop()
    response = await agent.run("where is it?", session=session)
    assert "recall failed" not in "".join(message.text for message in response.messages)
    assert agent.create_session(session.session_id) is session


async def test_an_excerpt_shows_where_most_of_the_words_are() -> None:
    past = ObservedHistorySearch()
    text = "parrot " + "x " * 3000 + "the parrot is called Polly " + "y " * 3000
    past._keep([Message.user(text)], None)
    provider = RecallProvider(lambda _: past)
    agent = Agent(
        ScriptedBackend([recalls("How is the parrot called?"), "x"]), context_providers=[provider]
    )

    assert "the parrot is called Polly" in answered(await agent.run("q"))


async def test_the_best_messages_are_recalled_first_without_a_store_too() -> None:
    past = ObservedHistorySearch()
    said = [f"This is what the {word} is like" for word in ("sea", "sky", "sun")]
    past._keep([Message.user(text) for text in (*said, "Parrots, parrots", *said)], None)

    [best] = await past.search("What is a parrot like?", 1)

    assert best.text == "Parrots, parrots"


async def test_what_was_forgotten_costs_nothing_in_the_long_run() -> None:
    past = ObservedHistorySearch(most=10)
    for number in range(500):
        past._keep([Message.user(f"parrot {number}")], None)
        found = await past.search("parrot", 99)
        kept = {f"parrot {n}" for n in range(max(0, number - 9), number + 1)}
        assert {each.text for each in found} == kept

    assert len(past._by_number) < 200
