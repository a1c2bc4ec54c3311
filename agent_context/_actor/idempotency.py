"""Idempotency keys: a request is carried out once, however often and wherever it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from agent_context._actor.checkpoint import check_key, make_question_key
from agent_context._actor.journal import Journal
from agent_context._actor.replay import decode_completion, messages_in_entry
from agent_context._actor.state import ActorState
from agent_context._runtime import Deferred, Failure, Reply
from agent_context._validation import check_type
from agent_context.errors import ConversationBusy, TurnCancelled, UsageError
from agent_context.messages import Completion, Message
from agent_context.protocol import Append, Extend, Remove, Send, SendStream
from agent_context.stores.store import Entry, Store
from agent_context.stream import Channel, Stream

__all__ = ["IdempotencyTable", "IdempotentRequest", "KeyLookedUp"]

IdempotentRequest = Append | Extend | Send | SendStream


class _Pending(Struct, eq=False):
    asked: IdempotentRequest
    key: str
    reply: Reply[object]
    shared: bool = False
    """Whether somebody else has asked the same since."""
    begun: IdempotentRequest | None = None
    """What is being answered for it."""
    given_up: bool = False
    """Whether nobody waits for it any more."""

    @property
    def is_being_cancelled(self) -> bool:
        """Whether its turn was started, and is ending because no caller waits for it."""
        return self.given_up and self.begun is not None


class KeyLookedUp(Struct, frozen=True):
    """The result of looking up a key in the log."""

    open: _Pending
    entry: Entry | None = None
    question: Entry | None = None
    """What was asked with the key when a crash left it without an answer."""
    error: BaseException | None = None


class IdempotencyTable:
    """Requests with a key that have no answer yet."""

    __slots__ = ("_open", "_post", "_streams", "lookups")

    def __init__(self, post: Callable[[object], bool]) -> None:
        self._post = post
        self._open: dict[str, _Pending] = {}
        self._streams: dict[str, Callable[[], bool]] = {}
        """Tell whether a streamed turn is over."""
        self.lookups = 0
        """How many keys are being looked up."""

    def ask(self, asked: IdempotentRequest, key: str, journal: Journal | None) -> Reply[object]:
        """Look the key up; the reply follows. Raises `UsageError` if there is no store."""
        if journal is None:
            raise UsageError("a key needs a conversation with a store: start(…, store=…)")
        check_key(check_type("key", key, str))
        known = self._pending(asked, key)
        if known is not None and not known.is_being_cancelled:
            known.shared, known.given_up = True, False
            return known.reply
        new = self._open[key] = _Pending(asked, key, Reply())
        self.lookups += 1
        if known is None:
            self._look_up(new, journal)
        else:
            # What it leaves in the log decides: it may have been answered all the same.
            known.reply.add_done_callback(lambda _: self._look_up(new, journal))
        return new.reply

    def _look_up(self, new: _Pending, journal: Journal) -> None:
        post = self._post

        def post_lookup(lookup: Reply[_Found]) -> None:
            error = lookup.error()
            entry, question = (None, None) if error else lookup.get()
            post(KeyLookedUp(new, entry, question, error))

        store, name = journal.access.store, journal.conversation_id
        journal.access.read(_find, store, name, new.key).add_done_callback(post_lookup)

    def _pending(self, asked: IdempotentRequest, key: str) -> _Pending | None:
        """The unanswered request with this key, if `asked` may share its answer."""
        self._streams = {key: over for key, over in self._streams.items() if not over()}
        known = self._open.get(key)
        streamed = isinstance(asked, SendStream) and known is not None
        if streamed or key in self._streams:
            raise ConversationBusy(f"what was asked with the key {key!r} is being answered")
        if known is not None and type(known.asked) is not type(asked):
            raise _misuse_error(key, type(known.asked).__name__)
        return known

    def answer(
        self, found: KeyLookedUp, anew: Callable[[IdempotentRequest], object], state: ActorState
    ) -> None:
        """Reply with the earlier answer, or with that of asking `anew`."""
        opened = found.open
        if self._open.get(opened.key) is not opened:
            return
        self.lookups -= 1
        reply = opened.reply
        reply.add_done_callback(lambda _: self._forget(opened))
        if found.error is not None:
            reply.set(Failure(found.error))
            return
        if opened.given_up and found.entry is None:
            reply.set(Failure(TurnCancelled("nobody waits for the turn any more")))
            return
        try:
            entry = found.entry
            asked = opened.begun = _omit_stored_question(opened.asked, found.question, state)
            given = anew(asked) if entry is None else _earlier_reply(asked, opened.key, entry)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            reply.set(Failure(error))
            return
        if isinstance(given, Reply):
            reply.set(Deferred(cast("Reply[object]", given)))
        elif isinstance(given, Stream):
            self._streams[opened.key] = given.is_done_probe()
            reply.set(given)
        else:
            kept: Reply[object] = Reply()
            state.on_committed(lambda error: kept.set(Failure(error) if error else given))
            reply.set(Deferred(kept))

    def _forget(self, opened: _Pending) -> None:
        if self._open.get(opened.key) is opened:
            del self._open[opened.key]

    def cancel_target(self, asked: object) -> object:
        """What to cancel when the caller of `asked` has gone; None if others wait for it."""
        for each in list(self._open.values()):
            if each.asked is asked:
                each.given_up = isinstance(asked, Send) and not each.shared
                return None if each.shared else each.begun
        return asked

    def close(self, error: BaseException) -> None:
        """Fail every pending request with `error`."""
        waiting, self._open = self._open, {}
        for each in list(waiting.values()):
            each.reply.set_error(error)


_Found = tuple[Entry | None, Entry | None]


def _find(store: Store, conversation_id: str, key: str) -> _Found:
    entry = store.find_by_key(conversation_id, key)
    if entry is not None:
        return entry, None
    question = store.find_by_key(conversation_id, make_question_key(key))
    return None, question or _find_older(store, conversation_id, key)


def _find_older(store: Store, conversation_id: str, key: str) -> Entry | None:
    """Find a question as version 0.1 stored it, under a key that others could have used as well.

    Its next entry tells the one from the other.
    """
    entry = store.find_by_key(conversation_id, f"question of {key}")
    if entry is None:
        return None
    following = store.entries(conversation_id, after=entry.seq, upto=entry.seq + 1)
    return entry if following and following[0].kind == "turn_lost" else None


def _omit_stored_question(
    asked: IdempotentRequest, question: Entry | None, state: ActorState
) -> IdempotentRequest:
    """The request without the question that a crash left unanswered in the zones.

    If it is the last thing said, it is not said again. If more was said since, it moves to the end
    under the ids that it has: the model answers what is said last.
    """
    if question is None or not isinstance(asked, Send | SendStream):
        return asked
    stored = messages_in_entry(question)[-1].id
    incremental = state.zones.incremental
    last = next((i for i in reversed(range(len(incremental))) if incremental[i].id == stored), None)
    if last is None:
        return asked
    if last == len(incremental) - 1:
        return replace(asked, messages=())
    first = last
    for message in reversed(asked.messages[:-1]):
        if first == 0 or not _says_the_same(incremental[first - 1].message, message):
            break
        first -= 1
    moved = tuple(incremental[i].message for i in range(first, last + 1))
    for _ in moved:
        state.edit(Remove(first))
    return replace(asked, messages=moved)


def _says_the_same(stored: Message, asked: Message) -> bool:
    return (stored.role, stored.parts) == (asked.role, asked.parts)


def _misuse_error(key: str, kind: str) -> UsageError:
    return UsageError(f"key: {key!r} was given to something else before ({kind})")


def _earlier_reply(asked: IdempotentRequest, key: str, entry: Entry) -> object:
    """The reply given when the entry was written. Raises `UsageError` if it answered otherwise."""
    said, answer = messages_in_entry(entry), decode_completion(entry)
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
            raise _misuse_error(key, entry.kind)


def _completion(entry: Entry) -> Completion:
    message = messages_in_entry(entry)[-1].message
    return Completion.model_validate({**decode_completion(entry), "message": message})
