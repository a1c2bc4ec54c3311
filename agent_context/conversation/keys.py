"""What is asked with an idempotency key: done once, whoever asks again and in whatever process."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from msgspec import Struct

from agent_context.conversation.journal import Journal
from agent_context.conversation.log import answer_in, said_in
from agent_context.conversation.state import State
from agent_context.errors import ConversationBusy, UsageMistake
from agent_context.messages import Completion
from agent_context.protocol import Append, Extend, Send, SendStream
from agent_context.runtime import Failed, Later, Reply
from agent_context.stores.store import Entry
from agent_context.stream import Channel, Stream

__all__ = ["Keyed", "Keys", "LookedUp"]

Keyed = Append | Extend | Send | SendStream


class LookedUp(Struct, frozen=True):
    """Whether the log knows the key of what was asked."""

    asked: Keyed
    key: str
    entry: Entry | None = None
    error: BaseException | None = None


class Keys:
    """What was asked with a key and has no answer yet."""

    def __init__(self, post: Callable[[object], bool]) -> None:
        self._post = post
        self._open: dict[str, Reply[object]] = {}
        self.looking = 0
        """How many keys are being looked up."""

    def ask(self, asked: Keyed, key: str, journal: Journal | None) -> Reply[object]:
        """The reply to come. Raises `UsageMistake` if there is no store to look into."""
        if journal is None:
            raise UsageMistake("a key needs a conversation with a store: start(…, store=…)")
        if (known := self._open.get(key)) is not None:
            if isinstance(asked, SendStream):
                raise ConversationBusy(f"what was asked with the key {key!r} is being answered")
            return known
        reply = self._open[key] = Reply[object]()
        self.looking += 1
        post = self._post

        def found(lookup: Reply[Entry | None]) -> None:
            error = lookup.error()
            post(LookedUp(asked, key, None if error else lookup.get(), error))

        find = journal.access.store.find
        journal.access.read(find, journal.conversation_id, key).add_done_callback(found)
        return reply

    def answer(self, found: LookedUp, anew: Callable[[Keyed], object], state: State) -> None:
        """Give the reply that was given before, or that of asking `anew`."""
        self.looking -= 1
        reply = self._open.get(found.key)
        if reply is None:
            return
        reply.add_done_callback(lambda _: self._open.pop(found.key, None))
        if found.error is not None:
            reply.set(Failed(found.error))
            return
        try:
            given = anew(found.asked) if found.entry is None else _given(found.asked, found.entry)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            reply.set(Failed(error))
            return
        if isinstance(given, Reply):
            reply.set(Later(cast("Reply[object]", given)))
        elif isinstance(given, Stream):
            reply.set(given)
        else:
            state.when_kept(lambda error: reply.set(Failed(error) if error else given))


def _given(asked: Keyed, entry: Entry) -> object:
    """The reply that the entry once was."""
    said = said_in(entry)
    match asked:
        case Append():
            return said[-1].id
        case Extend():
            return tuple(record.id for record in said)
        case Send():
            return _completion(entry)
        case SendStream():
            channel = Channel()
            channel.end(completion=_completion(entry))
            return Stream(f"answered: {entry.key}", channel, lambda: None)


def _completion(entry: Entry) -> Completion:
    message = said_in(entry)[-1].message
    return Completion.model_validate({**answer_in(entry), "message": message})
