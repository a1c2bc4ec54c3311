"""A session: what the runs of one conversation share beside the conversation itself."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import takewhile
from typing import Any, Final, Self, cast

import orjson

from agent_context._context.jsonl import load_zones
from agent_context._context.zones import Zone, Zones
from agent_context._runtime import FairAsyncLock
from agent_context.backend import ContextBackend
from agent_context.errors import InvalidOptions, UsageError
from agent_context.messages import Message, Part, TextPart, ToolCall, new_id
from agent_context.protocol import ToJsonl
from agent_context.ref import ContextRef, read_zones
from agent_context.sessions import state_codec
from agent_context.sessions.lazy_messages import ChainedMessages, ConversationMessages
from agent_context.sessions.pending_calls import pending_calls
from agent_context.tools import InMemoryToolResults, Tool

__all__ = ["AgentSession", "count_shared_links", "request_chain"]

_SAID: Final = ToJsonl((Zone.COMPRESSED, Zone.INCREMENTAL))

SessionOpener = Callable[["AgentSession"], Awaitable[ContextRef | None]]

_inside: ContextVar[frozenset[int]] = ContextVar("_inside", default=frozenset())
"""The sessions in whose runs this code is called."""


class AgentSession:
    """What the runs of one conversation share: its id, and a state that providers may keep.

    Made by `Agent.create_session`. `state` holds a dict for each provider under its `source_id`;
    other keys are for whoever wants to share across providers. Unless it lives in a store, the
    conversation ends with its session.
    """

    def __init__(
        self, session_id: str | None = None, *, state: Mapping[str, Any] | None = None
    ) -> None:
        self.session_id = new_id() if session_id is None else session_id
        self.state: dict[str, Any] = dict(state or {})
        self.conversation: ContextRef | None = None
        """The conversation behind it, once a run has begun."""
        self.sent_history: Sequence[Message] | None = None
        """What the last run sent in the place of the history, if it did."""
        self.backend: ContextBackend | None = None
        """What the conversation talks to."""
        self.opener: SessionOpener | None = None
        """Opens the conversation of a session that a store may know, to read it before any run."""
        self.open_lock = FairAsyncLock()
        """Who opens the conversation: it is done once."""
        self.run_lock = FairAsyncLock()
        """Which run goes next: they never overlap."""
        self.imported_jsonl: str | None = None
        """What was said before, as lines of JSON, for the conversation that will be started."""
        self.stored_state: bytes | None = None
        """The state as a store has it."""
        self.tool_results = InMemoryToolResults()
        """The full texts of results that were shortened, unless a store keeps them."""
        self._chain: tuple[str, ...] = ()
        self._sent: Callable[[], tuple[str, ...]] | None = None
        """Makes the chain of the last request."""

    def __repr__(self) -> str:
        return f"<session {self.session_id}>"

    def provider_state(self, source_id: str) -> dict[str, Any]:
        """The dict of one provider, which lives as long as the session."""
        state = self.state.setdefault(source_id, {})
        if isinstance(state, dict):
            return cast("dict[str, Any]", state)
        raise InvalidOptions(
            f"state[{source_id!r}] belongs to the provider of that name, which keeps a dict there; "
            f"it holds a {type(state).__name__}: use another key"
        )

    async def get_messages(self) -> list[Message]:
        """What was said so far, as it would be sent now, without what is immutable.

        A summary made of what was said earlier comes as words of the assistant.
        """
        return list(await self.load_prior_messages())

    async def load_prior_messages(self) -> ConversationMessages:
        """The same, as a sequence whose messages are built when they are read.

        Raises `StoreError`, and `ImportFailed` for what another program wrote into `from_dict`.
        """
        conversation = await self._opened()
        if conversation is not None:
            return ConversationMessages(await read_zones(conversation))
        imported = self.imported_jsonl or ""
        return ConversationMessages(load_zones(imported, "replace", Zones(), is_new=True).zones)

    async def get_pending_calls(self) -> tuple[ToolCall, ...]:
        """The calls that wait for a decision, as the last run's `AgentResponse.pending` named them.

        A run with `approvals` goes on with them, in whatever process.
        """
        said = await self.load_prior_messages()
        return pending_calls(self.state, said)

    async def _opened(self) -> ContextRef | None:
        """The conversation, if there is one."""
        if self.opener is None or self.is_inside:
            return self.conversation
        return await self.opener(self)

    async def get_visible(self) -> list[Message]:
        """What the model sees of what was said, in the run that goes on.

        Of a run that sends another history than the conversation's, that history alone: what the
        run itself has said so far may be missing.
        """
        return await self.get_messages() if self.sent_history is None else list(self.sent_history)

    def touch_request_hash(
        self,
        messages: Iterable[Message],
        *,
        tools: Sequence[Tool] = (),
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """Note what is sent; `fields` is what else a prompt cache looks at.

        The hash is made when somebody asks for it.
        """
        kept = (
            messages
            if isinstance(messages, ChainedMessages | ConversationMessages)
            else tuple(messages)
        )
        self._sent = partial(request_chain, kept, tools=tuple(tools), fields=fields)

    def get_last_request_hash(self) -> str | None:
        """The hash of the last request; None before the first."""
        return self.request_trace[-1] if self.request_trace else None

    @property
    def request_trace(self) -> tuple[str, ...]:
        """The last request's hash after each of its links; see `request_chain`."""
        if self._sent is not None:
            self._chain, self._sent = self._sent(), None
        return self._chain

    @property
    def is_inside(self) -> bool:
        """Whether this code is called in a run of the session, which it must not wait for."""
        return id(self) in _inside.get()

    @contextmanager
    def inside(self) -> Generator[None]:
        """What is called in here, and whatever that starts, is called in a run of the session."""
        token = _inside.set(_inside.get() | {id(self)})
        try:
            yield
        finally:
            _inside.reset(token)

    def to_dict(self) -> dict[str, Any]:
        """The session as JSON values, with what was said so far.

        Raises `InvalidOptions` that names the place of a value which can't be written, and
        `UsageError` for a session of a store before its first run: that takes a `snapshot`.
        """
        conversation = self.conversation
        if conversation is None and self.opener is not None:
            raise UsageError(f"{self!r} was not read from its store yet: await its snapshot()")
        return self._as_dict(
            self.imported_jsonl if conversation is None else conversation.ask(_SAID)
        )

    async def snapshot(self) -> dict[str, Any]:
        """`to_dict` for event loops."""
        conversation = await self._opened()
        said = self.imported_jsonl if conversation is None else await conversation.aask(_SAID)
        return self._as_dict(said)

    def _as_dict(self, said: str | None) -> dict[str, Any]:
        results = self.tool_results.texts
        return {
            "type": "session",
            "session_id": self.session_id,
            "state": state_codec.encode_state(self.state),
            "messages": said or "",
            "request_trace": list(self.request_trace),
            **({"tool_results": results} if results else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The session that `to_dict` wrote. Raises `InvalidOptions`."""
        match data:
            case {"type": "session", "session_id": str(session_id), "state": state}:
                session = cls(session_id, state=state_codec.decode_state(state))
            case _:
                raise InvalidOptions(
                    "not a session: type, session_id and state are expected, as to_dict writes them"
                )
        session.imported_jsonl = str(data.get("messages", "")) or None
        session._chain = tuple(map(str, data.get("request_trace", ())))
        kept = cast("Mapping[object, object]", data.get("tool_results") or {})
        session.tool_results = InMemoryToolResults({str(k): str(v) for k, v in kept.items()})
        return session


def request_chain(
    messages: Iterable[Message],
    *,
    tools: Sequence[Tool] = (),
    fields: Mapping[str, object] | None = None,
) -> tuple[str, ...]:
    """SHA-256 after each link of a request: what stands beside it, its tools, each message.

    Two requests have as many first links in common as a prompt cache could find again. Ids and
    whatever else isn't sent don't count. The same in every process.
    """
    links = [_link("", fields or {})]
    links.append(_link(links[-1], [tool.model_dump(exclude_none=True) for tool in tools]))
    for message in messages:
        links.append(_link(links[-1], _sent(message)))
    return tuple(links)


def count_shared_links(one: Sequence[str], other: Sequence[str]) -> int:
    """How many first links two chains have in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _sent(message: Message) -> list[object]:
    return [
        message.role,
        [_hash_message(part) for part in message.parts],
        message.reasoning,
        [(call.id, call.name, call.arguments) for call in message.tool_calls],
        message.tool_call_id,
        message.name,
    ]


def _hash_message(part: Part) -> object:
    if isinstance(part, TextPart) and not part.model_extra:
        return part.text  # the usual part, without pydantic's detour
    return part.model_dump(exclude_none=True)


def _link(before: str, value: object) -> str:
    canonical = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return hashlib.sha256(before.encode() + canonical).hexdigest()
