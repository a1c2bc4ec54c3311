"""A session: what one user's runs share beside the conversation itself."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self, cast

import orjson

from agent_context import stateful
from agent_context.errors import InvalidOptions
from agent_context.messages import Message, new_id
from agent_context.protocol import Messages
from agent_context.records import record_of
from agent_context.ref import ContextRef
from agent_context.tools import Tool

__all__ = ["AgentSession", "request_chain"]

_MOST_LINKS: Final = 4_096
_UNSENT: Final = ("finish_reason", "interrupted", "leaked_markup", "origin")
_REMEMBERED: Final = 32


class AgentSession:
    """What the runs of one conversation share: its id, and a state that providers may keep.

    Made by `Agent.create_session`. `state` holds a dict for each provider under its `source_id`;
    other keys are for whoever wants to share across providers.
    """

    def __init__(
        self, session_id: str | None = None, *, state: Mapping[str, Any] | None = None
    ) -> None:
        self.session_id = new_id() if session_id is None else session_id
        self.state: dict[str, Any] = dict(state or {})
        self.conversation: ContextRef | None = None
        """The conversation behind it, once a run has begun."""
        self._chain: tuple[str, ...] = ()
        self._trace: deque[str] = deque(maxlen=_REMEMBERED)

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
        """All that was said in the conversation, as it would be sent now."""
        return [] if self.conversation is None else [*await self.conversation.aask(Messages())]

    def touch_request_hash(
        self,
        messages: Iterable[Message],
        *,
        tools: Sequence[Tool] = (),
        fields: Mapping[str, object] | None = None,
    ) -> str:
        """Note what is sent, and return its hash; `fields` is what else a prompt cache looks at."""
        self._chain = request_chain(messages, tools=tools, fields=fields)
        self._trace.append(self._chain[-1])
        return self._chain[-1]

    def get_last_request_hash(self) -> str | None:
        """The hash of the last request; None before the first."""
        return self._chain[-1] if self._chain else None

    @property
    def request_trace(self) -> tuple[str, ...]:
        """The hashes of the last requests, oldest first."""
        return tuple(self._trace)

    @property
    def request_chain(self) -> tuple[str, ...]:
        """The last request's hash after each link: head, tools, and every message in order."""
        return self._chain

    def to_dict(self) -> dict[str, Any]:
        """The session as JSON values, without the conversation, which its store keeps.

        Raises `InvalidOptions` that names the place of a value which can't be written.
        """
        return {
            "type": "session",
            "session_id": self.session_id,
            "state": stateful.written(self.state),
            "request_chain": list(self._chain[-_MOST_LINKS:]),
            "request_trace": list(self._trace),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The session that `to_dict` wrote. Raises `InvalidOptions`."""
        match data:
            case {"type": "session", "session_id": str(session_id), "state": state}:
                session = cls(session_id, state=stateful.read(state))
            case _:
                raise InvalidOptions(
                    "not a session: type, session_id and state are expected, as to_dict writes them"
                )
        session._chain = tuple(map(str, data.get("request_chain", ())))
        session._trace.extend(map(str, data.get("request_trace", ())))
        return session


def request_chain(
    messages: Iterable[Message],
    *,
    tools: Sequence[Tool] = (),
    fields: Mapping[str, object] | None = None,
) -> tuple[str, ...]:
    """SHA-256 after each link of a request: what stands beside it, its tools, each message.

    Two requests share as many first links as a prompt cache could find of one in the other. Ids
    and what is never sent don't count. The same in every process.
    """
    links = [_link("", fields or {})]
    links.append(_link(links[-1], [tool.model_dump(exclude_none=True) for tool in tools]))
    for message in messages:
        said = record_of(message).fields()
        links.append(_link(links[-1], {k: v for k, v in said.items() if k not in _UNSENT}))
    return tuple(links)


def _link(before: str, value: object) -> str:
    canonical = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return hashlib.sha256(before.encode() + canonical).hexdigest()
