"""What is asked with an idempotency key: done once, whoever asks again and in whatever process."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from agent_context.checks import checked
from agent_context.conversation.drafts import question_key
from agent_context.conversation.journal import Journal
from agent_context.conversation.log import answer_in, said_in
from agent_context.conversation.state import State
from agent_context.errors import ConversationBusy, TurnCancelled, UsageMistake
from agent_context.messages import Completion
from agent_context.protocol import Append, Extend, Send, SendStream
from agent_context.runtime import Failed, Later, Reply
from agent_context.stores.fence import checked_text
from agent_context.stores.store import Entry, Store
from agent_context.stream import Channel, Stream

__all__ = ["Keyed", "Keys", "LookedUp"]

Keyed = Append | Extend | Send | SendStream


class _Open(Struct, eq=False):
    asked: Keyed
    key: str
    reply: Reply[object]
    shared: bool = False
    """Whether somebody else has asked the same since."""
    begun: Keyed | None = None
    """What is being answered for it."""
    given_up: bool = False
    """Whether nobody waited any more before it was begun."""


class LookedUp(Struct, frozen=True):
    """Whether the log knows the key of what was asked."""

    open: _Open
    entry: Entry | None = None
    question: Entry | None = None
    """What was asked with the key when a crash left it without an answer."""
    error: BaseException | None = None


class Keys:
    """What was asked with a key and has no answer yet."""

    __slots__ = ("_open", "_post", "_streams", "looking")

    def __init__(self, post: Callable[[object], bool]) -> None:
        self._post = post
        self._open: dict[str, _Open] = {}
        self._streams: dict[str, Callable[[], bool]] = {}
        """Tell whether a streamed turn is over."""
        self.looking = 0
        """How many keys are being looked up."""

    def ask(self, asked: Keyed, key: str, journal: Journal | None) -> Reply[object]:
        """The reply to come. Raises `UsageMistake` if there is no store to look into."""
        if journal is None:
            raise UsageMistake("a key needs a conversation with a store: start(…, store=…)")
        checked_text("key", checked("key", key, str))
        if (known := self._known(asked, key)) is not None:
            known.shared, known.given_up = True, False
            return known.reply
        new = self._open[key] = _Open(asked, key, Reply())
        self.looking += 1
        post = self._post

        def found(lookup: Reply[_Found]) -> None:
            error = lookup.error()
            entry, question = (None, None) if error else lookup.get()
            post(LookedUp(new, entry, question, error))

        store, name = journal.access.store, journal.conversation_id
        journal.access.read(_find, store, name, key).add_done_callback(found)
        return new.reply

    def _known(self, asked: Keyed, key: str) -> _Open | None:
        """What was asked with this key and has no answer yet, if `asked` may have its answer."""
        self._streams = {key: over for key, over in self._streams.items() if not over()}
        known = self._open.get(key)
        streamed = isinstance(asked, SendStream) and known is not None
        if streamed or key in self._streams:
            raise ConversationBusy(f"what was asked with the key {key!r} is being answered")
        if known is not None and type(known.asked) is not type(asked):
            raise _misused(key, type(known.asked).__name__)
        return known

    def answer(self, found: LookedUp, anew: Callable[[Keyed], object], state: State) -> None:
        """Give the reply that was given before, or that of asking `anew`."""
        opened = found.open
        if self._open.get(opened.key) is not opened:
            return
        self.looking -= 1
        reply = opened.reply
        reply.add_done_callback(lambda _: self._forget(opened))
        if found.error is not None:
            reply.set(Failed(found.error))
            return
        if opened.given_up and found.entry is None:
            reply.set(Failed(TurnCancelled("nobody waits for the turn any more")))
            return
        try:
            entry = found.entry
            asked = opened.begun = _yet_to_say(opened.asked, found.question, state)
            given = anew(asked) if entry is None else _given(asked, opened.key, entry)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            reply.set(Failed(error))
            return
        if isinstance(given, Reply):
            reply.set(Later(cast("Reply[object]", given)))
        elif isinstance(given, Stream):
            self._streams[opened.key] = given.watched()
            reply.set(given)
        else:
            kept: Reply[object] = Reply()
            state.when_kept(lambda error: kept.set(Failed(error) if error else given))
            reply.set(Later(kept))

    def _forget(self, opened: _Open) -> None:
        if self._open.get(opened.key) is opened:
            del self._open[opened.key]

    def abandoned(self, asked: object) -> object:
        """What may end because nobody waits for `asked` any more; None if others wait for it."""
        for each in list(self._open.values()):
            if each.asked is asked:
                each.given_up = isinstance(asked, Send) and not each.shared
                return None if each.shared else each.begun
        return asked

    def close(self, error: BaseException) -> None:
        """Answer everybody with `error` to whom no other answer is coming."""
        waiting, self._open = self._open, {}
        for each in list(waiting.values()):
            each.reply.set_error(error)


_Found = tuple[Entry | None, Entry | None]


def _find(store: Store, conversation_id: str, key: str) -> _Found:
    entry = store.find(conversation_id, key)
    if entry is not None:
        return entry, None
    return None, store.find(conversation_id, question_key(key))


def _yet_to_say(asked: Keyed, question: Entry | None, state: State) -> Keyed:
    """What was asked, without its messages if they are the last that was said already."""
    if question is None or not isinstance(asked, Send | SendStream):
        return asked
    incremental = state.zones.incremental
    last = incremental[len(incremental) - 1].id if len(incremental) else None
    return replace(asked, messages=()) if said_in(question)[-1].id == last else asked


def _misused(key: str, kind: str) -> UsageMistake:
    return UsageMistake(f"key: {key!r} was given to something else before ({kind})")


def _given(asked: Keyed, key: str, entry: Entry) -> object:
    """The reply that the entry once was. Raises `UsageMistake` if it was none to this."""
    said, answer = said_in(entry), answer_in(entry)
    match asked:
        case Append() if entry.kind == "appended" and not answer:
            return said[-1].id
        case Extend() if entry.kind == "extended":
            return tuple(record.id for record in said)
        case Send() if answer:
            return _completion(entry)
        case SendStream() if answer:
            channel = Channel()
            channel.end(completion=_completion(entry))
            return Stream(f"answered: {key}", channel, lambda: None)
        case _:
            raise _misused(key, entry.kind)


def _completion(entry: Entry) -> Completion:
    message = said_in(entry)[-1].message
    return Completion.model_validate({**answer_in(entry), "message": message})
