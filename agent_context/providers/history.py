"""Providers that load what was said before, store what is said now, or both."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, TypedDict, Unpack, cast

from agent_context.errors import UsageError
from agent_context.messages import Message, Role
from agent_context.providers.context import SessionContext
from agent_context.providers.provider import AgentLike, ContextProvider
from agent_context.providers.response import AgentResponse
from agent_context.sessions.session import AgentSession

__all__ = [
    "BaseHistoryProvider",
    "HistoryFlags",
    "HistoryProvider",
    "InMemoryHistoryProvider",
    "select_messages_to_persist",
    "without_open_calls",
]

_MOST_IDS: Final = 4_096
_AUDITED: Final = "stored_ids"


class HistoryFlags(TypedDict, total=False):
    """What a history loads and stores, as `HistoryProvider` takes it."""

    load_messages: bool
    store_inputs: bool
    store_context_messages: bool
    store_context_from: Iterable[str] | None
    store_outputs: bool


class HistoryProvider(ContextProvider):
    """Base of those that keep messages elsewhere: write `get_messages` and `save_messages`.

    Of the providers of an agent only one may load. What one run said is saved in one call, the
    caller's messages and the answers together, whatever their text: messages are told apart by
    their ids alone. A run that failed is saved only if something of an answer was kept.
    """

    kind = "memory"

    def __init__(
        self,
        source_id: str | None = None,
        *,
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: Iterable[str] | None = None,
        store_outputs: bool = True,
    ) -> None:
        """`load_messages`: whether the model is sent what is kept here, of one history alone.

        `store_inputs` is what the caller says, `store_outputs` what model and tools say.
        `store_context_messages` also stores what other providers gave, if it was never stored.
        `store_context_from` limits that to some sources; what the loading provider gave belongs to
        it only if it is named there.
        """
        super().__init__(source_id)
        self.load_messages = load_messages
        self.store_inputs = store_inputs
        self.store_context_messages = store_context_messages
        self.store_context_from = None if store_context_from is None else set(store_context_from)
        self.store_outputs = store_outputs

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """What was said before, oldest first."""
        raise NotImplementedError

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep these behind what is there."""
        raise NotImplementedError

    async def replace_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep these in the place of all that is there, all of them or nothing.

        For compressions; a history that doesn't write this raises `UsageError`.
        """
        del session_id, messages, state, kwargs
        raise UsageError(
            f"{self.name}: this history can't be made smaller: give {type(self).__name__} a "
            "replace_messages"
        )

    async def count(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> int:
        """How many messages there are; here by getting all of them."""
        return len(await self.get_messages(session_id, state=state, **kwargs))

    @property
    def can_replace(self) -> bool:
        """Whether it has a `replace_messages` of its own."""
        return type(self).replace_messages is not HistoryProvider.replace_messages

    async def before_run(
        self,
        *,
        agent: AgentLike,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Load what was said before, if this is the one that loads."""
        del agent, session
        if self.load_messages:
            messages = await self.get_messages(context.session_id, state=state)
            context.set_history(self, messages)

    async def after_run(
        self,
        *,
        agent: AgentLike,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Store what was said in this run."""
        del agent, session
        if messages := self.messages_to_save(context, state):
            await self.save_messages(context.session_id, messages, state=state)

    def messages_to_save(self, context: SessionContext, state: dict[str, Any]) -> list[Message]:
        """What of a run is to be stored: the context, what the caller said, and the answers."""
        response = context.response or context.partial_response
        if response is None:
            return []
        said = list(context.input_messages) if self.store_inputs else []
        if self.store_outputs:
            said += select_messages_to_persist(response)
        if not self.store_context_messages:
            return said
        return [
            *_record_stored_ids(self._messages_of_others(context), state, [m.id for m in said]),
            *said,
        ]

    def _messages_of_others(self, context: SessionContext) -> list[Message]:
        wanted = self.store_context_from
        if wanted is None:
            wanted = context.context_messages.keys() - {context.history_source}
        return context.get_messages(sources=wanted, exclude_sources=(self.source_id,))


BaseHistoryProvider = HistoryProvider


class InMemoryHistoryProvider(HistoryProvider):
    """A history in memory.

    The one that loads is the conversation itself. One that doesn't keeps its messages in the
    session's state, in the order in which they were stored: `get_messages` tells them.
    """

    DEFAULT_SOURCE_ID = "in_memory"

    def __init__(
        self,
        source_id: str | None = None,
        **flags: Unpack[HistoryFlags],
    ) -> None:
        super().__init__(source_id or self.DEFAULT_SOURCE_ID, **flags)

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """What this provider keeps in `state`, the dict of its `source_id`."""
        del session_id, kwargs
        return list(cast("list[Message]", (state or {}).get("messages", ())))

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep messages in `state`; without one there is nowhere to keep them."""
        del session_id, kwargs
        if state is not None:
            state.setdefault("messages", []).extend(messages)

    async def replace_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep messages in the place of those in `state`, unless the conversation has them."""
        if self.load_messages:
            await super().replace_messages(session_id, messages, state=state, **kwargs)
        elif state is not None:
            state["messages"] = list(messages)

    @property
    def can_replace(self) -> bool:
        """Not of the one that loads: the conversation compresses itself."""
        return not self.load_messages

    async def before_run(
        self,
        *,
        agent: AgentLike,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Let the conversation send what it holds."""
        del agent, state
        if self.load_messages:
            said = context.prior_messages
            said = await session.load_prior_messages() if said is None else said
            context.set_history(self, said, stored=True)

    def messages_to_save(self, context: SessionContext, state: dict[str, Any]) -> list[Message]:
        """What of a run is to be stored here; nothing if the conversation has it."""
        return [] if self.load_messages else super().messages_to_save(context, state)


def select_messages_to_persist(response: AgentResponse) -> list[Message]:
    """What of a response is to be stored: all that model and tools said, without open calls.

    Without a transcript it is the last answer, if that says anything.
    """
    said = response.messages
    if not said and response.completion is not None:
        answer = response.completion.message
        said = (answer,) if answer.tool_calls or answer.text else ()
    return without_open_calls([message for message in said if message.role is not Role.USER])


def without_open_calls(messages: Sequence[Message]) -> list[Message]:
    """The messages up to the first whose tool calls were not all answered.

    A call without its result is refused by every vendor. Those that wait for approval are stored
    with their results, when the run goes on.
    """
    for index, message in enumerate(messages):
        if message.tool_calls and not _is_answered(message, messages[index + 1 :]):
            return list(messages[:index])
    return list(messages)


def _is_answered(message: Message, later: Sequence[Message]) -> bool:
    results = {said.tool_call_id for said in later if said.role is Role.TOOL}
    return results.issuperset(call.id for call in message.tool_calls)


def _record_stored_ids(
    messages: Collection[Message], state: dict[str, Any], said: Sequence[str]
) -> list[Message]:
    """Those that were not stored by an earlier run, by their ids, each once; notes all ids."""
    known: list[str] = state.get(_AUDITED, [])
    once = {message.id: message for message in messages}
    new = {id_: message for id_, message in once.items() if id_ not in {*known, *said}}
    state[_AUDITED] = [*known, *new, *said][-_MOST_IDS:]
    return list(new.values())
