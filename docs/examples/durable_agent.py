"""An agent whose talk outlives its process: run this twice with the same file.

    python durable_agent.py talks.db
    python durable_agent.py talks.db

What the model can't see any more it finds again with the tool of `RecallProvider`.
"""

import asyncio
import sys

from agent_context import Agent, ChangeEvent, Host, Message, Role, SlidingWindow, ToolCall, events
from agent_context.backend import Request
from agent_context.models import ModelFacts
from agent_context.providers import RecallProvider
from agent_context.stores.sqlite import SqliteStore
from agent_context_backends.scripted import ScriptedBackend

SAID = [
    "My parrot is called Polly.",
    *(f"On day {day} we walked along the river and it rained." for day in range(1, 7)),
]


def answer(request: Request) -> Message | str:
    """What a model might say; any other backend does in its place."""
    last = request.records[-1].message
    if last.role is Role.TOOL:
        return f"I looked it up. {last.text.splitlines()[-1]}"
    if "parrot" in last.text and last.text.endswith("?"):
        call = ToolCall(id="c1", name="recall", arguments='{"query": "parrot called"}')
        return Message.assistant(tool_calls=[call])
    return "I see."


def tell(event: ChangeEvent) -> None:
    if isinstance(event, events.Compressed):
        print(f"       [{len(event.removed)} messages are hidden from the model now]")


async def main(path: str) -> None:
    window = ModelFacts(context_window=230, max_output=20, default_reserve=20)
    model = ScriptedBackend([answer] * 20, facts=window)
    async with Host(SqliteStore(path), model, compression=SlidingWindow(2), on_change=tell) as host:
        agent = Agent(model, "You are a diary.", context_providers=[RecallProvider()], host=host)
        known = host.info("ann")
        print(f"process {1 if known is None else 2}:")
        session = agent.create_session("ann")
        for text in SAID if known is None else ["What is my parrot called?"]:
            response = await agent.run(text, session=session)
            print(f"user:  {text}\nmodel: {response.text}")
        print(f"The model sees {len(await session.get_messages())} messages.")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "talks.db"))
