"""One request of a client that speaks somebody else's API, on its way to a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import Request
from msgspec import Struct

from agent_context.messages import Message, Role
from agent_context.options import SendOptions
from agent_context.service.auth import Principal
from agent_context.service.conversations import is_id, make_id
from agent_context.service.service import Service
from agent_context.service.turns import LiveTurn

__all__ = ["Exchange", "ask_once", "begin_exchange", "find_name", "keeps_unstored", "split_system"]

_CHOSEN: Final = "x-conversation-id"
_HEADERS: Final = (
    "session-id",  # codex 0.171
    "session_id",
    "x-session-id",  # opencode 1.18
    "x-openwebui-chat-id",  # Open WebUI 0.12
    "x-claude-code-session-id",  # Claude Code 2.1
)
"""What clients send unasked, and names their conversation: the first that is there."""


class Exchange(Struct, frozen=True):
    """A turn, and where it goes on."""

    turn: LiveTurn
    kind: str
    """How the request was placed: `append`, `new`, `fork`, `rewind`, `branch` or `aside`."""
    conversation_id: str | None
    """None if nothing is kept."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What a client may look at, to know what became of its request."""
        named = {"X-Conversation-Id": self.conversation_id} if self.conversation_id else {}
        return {"X-Conversation-Placement": self.kind, **named}


def find_name(request: Request, body: Mapping[str, Any]) -> str | None:
    """What names the conversation of a request: a header, its path, or a field of its body."""
    chosen = request.headers.get(_CHOSEN) or request.path_params.get("conversation_id")
    if chosen:
        return str(chosen)
    sent = [request.headers.get(header) for header in _HEADERS]
    named = next(filter(None, (*sent, body.get("prompt_cache_key"))), None)
    return named if not isinstance(named, str) or is_id(named) else make_id("named", named)


def keeps_unstored(service: Service, who: Principal) -> bool:
    """Whether a named conversation is kept although its client doesn't ask for that."""
    chosen = who.keep_unstored
    return service.config.keep_unstored if chosen is None else chosen


def split_system(messages: Sequence[Message]) -> tuple[str | None, Sequence[Message]]:
    """The system messages at the beginning as one text, and what follows.

    They belong to the request: agents change them from turn to turn.
    """
    count = 0
    while count < len(messages) and messages[count].role is Role.SYSTEM:
        count += 1
    text = "\n\n".join(message.text for message in messages[:count])
    return text or None, messages[count:]


async def begin_exchange(
    service: Service,
    who: Principal,
    name: str | None,
    sent: Sequence[Message],
    options: SendOptions,
    *,
    key: str | None = None,
) -> Exchange:
    """Begin a turn with the whole history that a client has sent; None names no conversation."""
    service.options(options)
    if name is None:
        return await ask_once(service, sent, options)
    # Before anything is waited for, as a lock is shared by those who hold it.
    lock = service.transcripts.lock(who, name)
    async with lock:
        placed = await service.transcripts.place(who, name, sent, has_tools=bool(options.tools))
        if placed.kind == "aside":
            return await ask_once(service, sent, options)
        turn = await service.begin_turn(
            placed.ref, messages=placed.messages, options=options, key=key
        )
    return Exchange(turn, placed.kind, service.conversations.id_of(placed.ref.id))


async def ask_once(service: Service, sent: Sequence[Message], options: SendOptions) -> Exchange:
    """A turn of a conversation that nothing keeps; it ends when its client goes away."""
    placed = service.transcripts.aside(sent)
    try:
        turn = await service.begin_turn(placed.ref, messages=sent, options=options)
    except BaseException:
        service.transcripts.drop(placed.ref)
        raise
    turn.ends_when_left = True
    service.transcripts.watch_aside(turn, sent)
    return Exchange(turn, "aside", None)
