import asyncio
import json
import threading
from typing import Any

import pytest

from agent_context import AgentContext, Append, Compress, Extend, Remove, Update
from agent_context.agent import Agent
from agent_context.compression import SlidingWindow
from agent_context.events import ChangeEvent, Compressed, Updated
from agent_context.messages import Message, ToolCall
from agent_context.providers.past import HeardPast, StoredPast, messages_in
from agent_context.providers.recall import RecallProvider
from agent_context.session import AgentSession
from agent_context.stores.memory import MemoryStore
from agent_context.stores.store import Entry, Write
from agent_context.tools import Tool
from agent_context_backends.scripted import ScriptedBackend


class Watched(HeardPast):
    """Tells when it has heard a certain kind of event."""

    def __init__(self, kind: type[ChangeEvent]) -> None:
        super().__init__()
        self.kind = kind
        self.told = threading.Event()

    def hear(self, event: ChangeEvent) -> None:
        super().hear(event)
        if isinstance(event, self.kind):
            self.told.set()

    async def caught_up(self) -> None:
        assert await asyncio.to_thread(self.told.wait, 20)


def recalls(query: str, **more: Any) -> Message:
    arguments = json.dumps({"query": query, **more})
    return Message.assistant(
        "", tool_calls=[ToolCall(id=f"c-{query}", name="recall", arguments=arguments)]
    )


def answered(response: Any) -> str:
    [result] = [message.text for message in response.messages if message.tool_call_id]
    return str(result)


async def compressed_agent(*script: Any) -> tuple[Agent, AgentSession]:
    """An agent whose first turn, about a parrot, is hidden from it."""
    backend = ScriptedBackend(["Polly is a nice name.", "Four.", *script])
    provider, past = RecallProvider(), Watched(Compressed)
    agent = Agent(backend, context_providers=[provider])
    session = agent.create_session()
    provider._heard[session] = past
    await agent.run("My parrot is called Polly.", session=session)
    await agent.run("What is 2+2?", session=session)
    assert session.conversation is not None
    await session.conversation.aask(Compress(SlidingWindow(1)))
    await past.caught_up()
    assert "parrot" not in " ".join(said.text for said in await session.get_messages())
    return agent, session


async def test_what_a_compression_hid_is_recalled() -> None:
    agent, session = await compressed_agent(recalls("PARROT called"), "Polly.")

    response = await agent.run("What is my bird's name?", session=session)

    assert answered(response) == "[recalled]\n\nuser: My parrot is called Polly."
    assert response.text == "Polly."


async def test_what_the_model_sees_is_not_told_again() -> None:
    agent, session = await compressed_agent(recalls("what"), "So.", recalls("parrot"), "x")

    seen = await agent.run("q", session=session)
    own = await agent.run("q", session=session)

    assert answered(seen) == "[recalled] nothing that you don't see holds 'what'"
    assert answered(own).count("parrot") == 1


async def test_a_query_without_words_is_refused() -> None:
    agent, session = await compressed_agent(recalls("?!"), "x")

    assert "it has no words" in answered(await agent.run("q", session=session))


async def test_a_long_message_is_told_around_what_was_found() -> None:
    said = {"id": "1", "role": "user", "content": "a" * 5000 + " needle " + "b" * 5000}
    provider = RecallProvider.in_store(stored({"message": said}))
    agent = Agent(ScriptedBackend([recalls("needle"), "x"]), context_providers=[provider])

    told = answered(await agent.run("q", session=agent.create_session("s")))

    assert " needle " in told
    assert len(told) < 2100
    assert told.startswith("[recalled]\n\nuser: …a")
    assert told.endswith("b…")


async def test_sessions_do_not_hear_each_other() -> None:
    agent, _ = await compressed_agent(recalls("parrot"), "x")

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
    past = HeardPast(most=2)

    await past.listen(conversation)

    assert [said.text for said in await past.search("word", 9)] == ["word 4", "word 3"]
    conversation.stop()


def stored(*payloads: object) -> MemoryStore:
    store = MemoryStore()
    claim = store.claim("s")
    entries = tuple(
        Entry(seq, "change", json.dumps(payload).encode(), 0.0)
        for seq, payload in enumerate(payloads, start=1)
    )
    store.write([Write(conversation_id="s", epoch=claim.epoch, head=0, entries=entries)])
    return store


async def test_a_stored_conversation_is_searched_in_its_store() -> None:
    store = stored(
        {"message": {"id": "1", "role": "user", "content": "My parrot is Polly."}},
        {"messages": [{"id": "2", "role": "user", "content": "no bird"}]},
        {"kept": [{"id": "1", "role": "user", "content": "My parrot [cut]"}]},
    )

    found = await StoredPast(store, "s").search("parrot", 5)

    assert [said.text for said in found] == ["My parrot is Polly."]


async def test_an_agent_recalls_from_a_store() -> None:
    store = stored({"message": {"id": "1", "role": "user", "content": "My parrot is Polly."}})
    backend = ScriptedBackend([recalls("parrot"), "Polly."])
    agent = Agent(backend, context_providers=[RecallProvider.in_store(store)])

    response = await agent.run("q", session=agent.create_session("s"))

    assert answered(response) == "[recalled]\n\nuser: My parrot is Polly."


@pytest.mark.parametrize("payload", [b"{", b"[]", b'{"role":"user"}', b'{"role":7,"content":[]}'])
def test_what_holds_no_message_gives_none(payload: bytes) -> None:
    assert list(messages_in(payload)) == []


def test_messages_are_found_at_any_depth() -> None:
    inner = {"role": "user", "content": "x"}

    found = messages_in(json.dumps({"a": [{"b": inner}, {"role": "x", "content": inner}]}).encode())

    assert [said.text for said in found] == ["x", "x"]


async def test_the_tool_is_the_same_in_every_run() -> None:
    agent, session = await compressed_agent("a", "b")
    await agent.run("q", session=session)
    await agent.run("q", session=session)
    assert isinstance(agent.client, ScriptedBackend)

    told: list[list[Tool]] = [
        list(request.options.tools or ()) for request in agent.client.requests[-2:]
    ]

    assert [tool.name for tool in told[0]] == ["recall"]
    assert told[0][0].model_dump() == told[1][0].model_dump()
