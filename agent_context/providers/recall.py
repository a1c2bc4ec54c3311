"""A tool by which the model finds again what it doesn't see any more."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from agent_context.errors import ToolError, UsageError
from agent_context.messages import Message, Role
from agent_context.providers.context import SessionContext
from agent_context.providers.conversation_search import (
    DatedHistorySearch,
    FoundMessage,
    HistorySearch,
    ObservedHistorySearch,
    StoreHistorySearch,
)
from agent_context.providers.provider import AgentLike, ContextProvider
from agent_context.ref import ContextRef
from agent_context.sessions.session import AgentSession
from agent_context.stores.text_search import find_excerpt, query_words
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


_Pasts = weakref.WeakKeyDictionary[AgentSession, tuple[ContextRef | None, HistorySearch]]
"""What is searched in each session, and the conversation that it was made for."""


class RecallProvider(ContextProvider):
    """Gives the model a tool to search the conversation's own past.

    What a compression took away is found again, with the words in which it was said. Messages that
    the model sees anyway are left out.
    """

    kind = "memory"

    def __init__(
        self,
        past: Callable[[AgentSession], HistorySearch] | None = None,
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
        agent: AgentLike,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Add the tool, and begin to listen if that is what this one does."""
        del agent, state
        past = await self._search_for(session)
        context.extend_instructions(self, _INSTRUCTIONS)
        context.extend_tools(self, [_recall_tool()(past, session)])

    async def _search_for(self, session: AgentSession) -> HistorySearch:
        conversation, past = self._pasts.get(session, (None, None))
        if past is None or conversation is not session.conversation:
            past = (
                self._past(session)
                if self._past
                else await _search_of_conversation(session.conversation)
            )
            self._pasts[session] = session.conversation, past
        return past


async def _search_of_conversation(conversation: ContextRef | None) -> HistorySearch:
    heard = ObservedHistorySearch()
    if conversation is None:
        return heard
    durable = StoreHistorySearch(conversation)
    try:
        await durable.search("", 1)
    except UsageError:  # it has no store
        await heard.listen(conversation)
        return heard
    return durable


@cache
def _recall_tool() -> Callable[[HistorySearch, AgentSession], FunctionTool]:
    """Makes the tool for a session. Its schema is made once, and not in each run."""

    class Recall:
        def __init__(self, past: HistorySearch, session: AgentSession) -> None:
            self._past = past
            self._session = session

        @tool
        async def recall(self, query: str, limit: int = 5) -> str:
            """Search everything that was said in this conversation, also what you can't see now.

            Args:
                query: Words that should be in what was said.
                limit: How many messages to show.
            """
            return await _search(self._past, self._session, query, limit)

    return lambda past, session: Recall(past, session).recall


async def _search(past: HistorySearch, session: AgentSession, query: str, limit: int) -> str:
    if not query_words(query):
        raise ToolError("query: it has no words; what should be found?")
    wanted = min(max(limit, 1), _MOST)
    seen = {(said.id, said.text) for said in await session.get_messages()}
    # Some of what is found is left out.
    found = await _find(past, query, wanted + len(seen) + _MOST)
    hidden = [
        each
        for each in found
        if (each.message.id, each.message.text) not in seen and not _is_own(each.message)
    ]
    return _format(hidden[:wanted], query)


def _is_own(message: Message) -> bool:
    return message.role is Role.TOOL and message.text.startswith(_HEADING)


async def _find(past: HistorySearch, query: str, limit: int) -> Sequence[FoundMessage]:
    if isinstance(past, DatedHistorySearch):
        return await past.find(query, limit)
    return [FoundMessage(message, None) for message in await past.search(query, limit)]


def _format(found: Sequence[FoundMessage], query: str) -> str:
    if not found:
        return f"{_HEADING} nothing that you don't see holds {query!r}"
    return "\n\n".join((_HEADING, *(_tell(each, query) for each in found)))


def _tell(found: FoundMessage, query: str) -> str:
    """Who said it, when, and what; of a long text where it holds most of the query."""
    text = found.message.text
    start, end = find_excerpt(text, query, _SHOWN)
    shown = f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
    return f"{found.message.role}{_date(found.timestamp)}: {shown}"


def _date(timestamp: float | None) -> str:
    if timestamp is None:
        return ""
    return f", {datetime.fromtimestamp(timestamp, UTC):%Y-%m-%d %H:%M} UTC"
