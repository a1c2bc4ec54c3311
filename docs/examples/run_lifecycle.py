"""A run and its phases: providers, compression, the model and its tools, providers again."""

import asyncio
from typing import Any

from agent_context import ContextProvider, Message, SlidingWindow, ToolCall
from agent_context.tools import tool
from agent_context_backends.scripted import ScriptedBackend


class Narrator(ContextProvider):
    """Says when it is called."""

    async def before_run(self, *, context: Any, **_: Any) -> None:
        print(f"  1  {self.name}: {len(context.get_messages())} messages so far")

    async def after_run(self, *, context: Any, **_: Any) -> None:
        await asyncio.sleep(0.05)
        outcome = context.error or [str(message.role) for message in context.response.messages]
        print(f"  3  {self.name}: {outcome}")


@tool
def weather(city: str) -> str:
    """Say how the weather is."""
    return f"Rain in {city}."


def count_tokens(messages: Any) -> int:
    return sum(len(message.text) for message in messages)


async def main() -> None:
    call = ToolCall(id="call-1", name="weather", arguments='{"city": "Kyoto"}')
    client = ScriptedBackend([Message.assistant(tool_calls=[call]), "Take an umbrella.", "Bye!"])
    agent = client.as_agent(
        instructions="Answer in one sentence.",
        tools=[weather],
        context_providers=[Narrator("first"), Narrator("second")],
        compression_strategy=SlidingWindow(turns=3),
        token_counter=count_tokens,
    )
    session = agent.create_session()

    print("A streamed run:")
    async for update in agent.run("How is Kyoto today?", session=session, stream=True):
        for call in update.tool_calls:  # before they are carried out
            print(f"  2  {call.name}({call.arguments})")
        for result in update.results:
            print(f"  2  -> {result.text}")
        if update.text:
            print(f"  2  {update.text!r}")
        if update.finish_reason:
            print(f"  2  the end: {update.finish_reason}; the last phase runs beside us")
    before = session.get_last_request_hash()

    print("The next run waits for it:")
    print(await agent.run("Thanks!", session=session))
    print(f"The request was another one: {before != session.get_last_request_hash()}")


if __name__ == "__main__":
    asyncio.run(main())
