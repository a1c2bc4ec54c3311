"""Providers in a row: a history, skills of one's own, and what makes both smaller."""

import asyncio
from collections.abc import Sequence
from typing import Any

from agent_context import AgentSession, ContextProvider, Message, SendOptions, Summarize
from agent_context.providers import CompressionProvider, ContextResult, InMemoryHistoryProvider
from agent_context.tools import tool
from agent_context_backends.scripted import ScriptedBackend


@tool
def read_file(path: str) -> str:
    """Read a file of the workspace."""
    return f"(what {path} says)"


class WorkspaceProvider(ContextProvider):
    """Gives instructions and a tool; told of every end, good or bad."""

    kind = "workspace"

    async def on_invoking(
        self,
        agent: Any,
        session: AgentSession,
        messages: Sequence[Message],
        options: SendOptions,
        /,
    ) -> ContextResult:
        return ContextResult(
            instructions="## Workspace\nFiles are below /srv/work.", tools=[read_file]
        )

    async def on_invoked(
        self,
        agent: Any,
        session: AgentSession,
        request_messages: Sequence[Message],
        response: Any,
        error: BaseException | None,
        /,
    ) -> None:
        print(f"  [{self.name}: {len(request_messages)} messages went out, error: {error}]")


async def main() -> None:
    client = ScriptedBackend(
        [f"Answer {n}. " + "And more of it. " * 10 for n in (1, 2, 3)]
        + ["They spoke of three things.", "Answer 4."]
    )
    agent = client.as_agent(
        instructions="Be helpful.",
        context_providers=[
            InMemoryHistoryProvider("memory"),
            WorkspaceProvider(),
            CompressionProvider(Summarize(keep=2), budget=150),
        ],
    )
    session = agent.create_session()

    for text in ("One?", "Two?", "Three?", "Four?"):
        response = await agent.run(text, session=session, wait_for_persistence=True)
        print(f"user:  {text}\nmodel: {response.text[:9]}")
    print("\nThe last request:")
    for record in client.requests[-1].records:
        print(f"  {record.message.role}: {record.message.text[:60]!r}")
    print(f"The session keeps all {len(await session.get_messages())} messages.")


if __name__ == "__main__":
    asyncio.run(main())
