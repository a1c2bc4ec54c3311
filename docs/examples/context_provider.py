"""A provider that remembers what a user likes, and tells the model in later runs."""

import asyncio
from typing import Any

from agent_context import AgentSession
from agent_context.providers import BaseContextProvider, SessionContext
from agent_context_backends.scripted import ScriptedBackend


class UserPreferenceProvider(BaseContextProvider):
    def __init__(self) -> None:
        super().__init__("user-preferences")

    async def before_run(
        self,
        *,
        agent: Any,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        if favorite := state.get("favorite_food"):
            context.extend_instructions(self.source_id, f"User's favorite food is {favorite}.")

    async def after_run(
        self,
        *,
        agent: Any,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        for message in context.input_messages:
            text = (message.text or "") if hasattr(message, "text") else ""
            if isinstance(text, str) and "favorite food is" in text.lower():
                state["favorite_food"] = text.split("favorite food is", 1)[1].strip().rstrip(".")


async def main() -> None:
    client = ScriptedBackend(["I'll remember that.", "Pizza, of course!"])
    agent = client.as_agent(
        name="MemoryBot",
        instructions="You are a helpful assistant.",
        context_providers=[UserPreferenceProvider()],
    )
    session = agent.create_session()

    for text in ("My favorite food is pizza.", "What should I have for dinner?"):
        response = await agent.run(text, session=session)
        print(f"user:  {text}\nmodel: {response}")
    print(f"\nThe second request began with:\n{client.requests[1].options.instructions}")


if __name__ == "__main__":
    asyncio.run(main())
