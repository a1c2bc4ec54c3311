"""A tool by which the model finds again what it doesn't see any more."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from agent_context.errors import ToolError, UsageMistake
from agent_context.messages import Message, Role
from agent_context.providers.context import SessionContext
from agent_context.providers.past import DurablePast, HeardPast, Past
from agent_context.providers.provider import ContextProvider
from agent_context.ref import ContextRef
from agent_context.sessions.session import AgentSession
from agent_context.stores.words import words_of
from agent_context.tools import FunctionTool, tool

__all__ = ["RecallProvider"]

_HEADING = "[recalled]"
_SHOWN = 2_000
"""Characters of one message."""
_MOST = 20
"""Messages that one call can ask for."""

_INSTRUCTIONS = (
    "Earlier parts of this conversation may be hidden from you. `recall` searches all of it."
)


_Pasts = weakref.WeakKeyDictionary[AgentSession, tuple[ContextRef | None, Past]]
"""What is searched in each session, and the conversation that it was made for."""


class RecallProvider(ContextProvider):
    """Gives the model a tool to search the conversation's own past.

    What a compression took away is found again, with the words in which it was said. Messages that
    the model sees anyway are left out.
    """

    kind = "memory"

    def __init__(
        self,
        past: Callable[[AgentSession], Past] | None = None,
        *,
        source_id: str = "recall",
    ) -> None:
        """`past` gives what is searched in a session; else it is what the conversation's store has.

        To a conversation without a store the provider listens from its first run on, and remembers
        what it hears while the session lives.
        """
        super().__init__(source_id)
        self._past = past
        self._pasts: _Pasts = weakref.WeakKeyDictionary()

    async def before_run(
        self,
        *,
        agent: Any,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Add the tool, and begin to listen if that is what this one does."""
        del agent, state
        past = await self._past_of(session)
        context.extend_instructions(self, _INSTRUCTIONS)
        context.extend_tools(self, [_recall(past, session)])

    async def _past_of(self, session: AgentSession) -> Past:
        conversation, past = self._pasts.get(session, (None, None))
        if past is None or conversation is not session.conversation:
            past = self._past(session) if self._past else await _own_past(session.conversation)
            self._pasts[session] = session.conversation, past
        return past


async def _own_past(conversation: ContextRef | None) -> Past:
    heard = HeardPast()
    if conversation is None:
        return heard
    durable = DurablePast(conversation)
    try:
        await durable.search("", 1)
    except UsageMistake:  # it has no store
        await heard.listen(conversation)
        return heard
    return durable


def _recall(past: Past, session: AgentSession) -> FunctionTool:
    async def recall(query: str, limit: int = 5) -> str:
        """Search everything that was said in this conversation, also what you don't see any more.

        Args:
            query: Words that should be in what was said.
            limit: How many messages to show.
        """
        if not words_of(query):
            raise ToolError("query: it has no words; what should be found?")
        wanted = min(max(limit, 1), _MOST)
        seen = {(said.id, said.text) for said in await session.get_messages()}
        # Some of what is found is left out.
        found = await past.search(query, wanted + len(seen) + _MOST)
        hidden = [said for said in found if (said.id, said.text) not in seen and not _is_own(said)]
        return _told(hidden[:wanted], query)

    return tool(recall)


def _is_own(message: Message) -> bool:
    return message.role is Role.TOOL and message.text.startswith(_HEADING)


def _told(messages: Iterable[Message], query: str) -> str:
    words = words_of(query)
    told = [f"{message.role}: {_excerpt(message.text, words)}" for message in messages]
    if not told:
        return f"{_HEADING} nothing that you don't see holds {query!r}"
    return "\n\n".join((_HEADING, *told))


def _excerpt(text: str, words: list[str]) -> str:
    """A long text around the first of the words."""
    if len(text) <= _SHOWN:
        return text
    lower = text.lower()
    places = [place for word in words if (place := lower.find(word)) >= 0]
    start = max(0, min(places, default=0) - _SHOWN // 4)
    end = start + _SHOWN
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
