"""An agent with tools: calls as they happen, one that needs approval, an answer of a type."""

import asyncio
from dataclasses import dataclass

from agent_context import Agent, AgentSession, Message, ToolCall, tool
from agent_context_backends.scripted import ScriptedBackend


@tool
async def flights(origin: str, destination: str) -> list[str]:
    """Find flights.

    Args:
        origin: Where the journey begins.
        destination: Where it ends.
    """
    return [f"{origin}-{destination} at {hour}:00" for hour in (9, 17)]


@tool(approval="require")
def book(flight: str) -> str:
    """Book a seat."""
    return f"Booked: {flight}, seat 12A"


@dataclass
class Booking:
    flight: str
    seat: str


def calls(name: str, arguments: str) -> Message:
    return Message.assistant(tool_calls=[ToolCall(id=f"c-{name}", name=name, arguments=arguments)])


# What a model might answer; any other backend does in its place.
MODEL = ScriptedBackend(
    [
        calls("flights", '{"origin": "OSL", "destination": "KIX"}'),
        "There is one at 9:00 and one at 17:00.",
        calls("book", '{"flight": "OSL-KIX at 9:00"}'),
        "It is booked: seat 12A.",
        '{"flight": "OSL-KIX at 9:00", "seat": "12A"}',
    ]
)


async def search(agent: Agent, session: AgentSession) -> None:
    print("user:  How do I get from Oslo to Osaka?")
    async for update in agent.run("How do I get from Oslo to Osaka?", session=session, stream=True):
        for call in update.tool_calls:  # before they are carried out
            print(f"       {call.name}{call.arguments}")
        for result in update.results:
            print(f"       -> {result.text}")
        if update.text:
            print(f"model: {update.text!r}")


async def decide(agent: Agent, session: AgentSession) -> None:
    print("user:  The early one, please.")
    response = await agent.run("The early one, please.", session=session)
    for call in response.pending:
        print(f"       {call.name}{call.arguments} waits for a decision: yes")
    # The decision may come much later, and with a store from another process.
    response = await agent.run(
        session=session, approvals={call.id: True for call in response.pending}
    )
    print(f"model: {response.text}")


async def main() -> None:
    agent = Agent(MODEL, "You are a travel agent.", tools=[flights, book])
    session = agent.create_session()
    await search(agent, session)
    await decide(agent, session)

    response = await agent.run("Sum it up.", session=session, output_type=Booking)
    print(f"value: {response.value}")


if __name__ == "__main__":
    asyncio.run(main())
