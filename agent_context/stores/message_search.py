"""Finding messages in a conversation's log, whatever keeps it.

Each message is found by itself, however many an entry brought, and by its text alone. The index is
made in memory by the first search of a conversation and goes on with the log from there, so nothing
is paid for writing, and logs of any age are found; what was searched longest ago is let go.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Raw, Struct

from agent_context.stores.store import Entry, Store
from agent_context.stores.text_search import TextIndex

__all__ = [
    "MessageMatch",
    "extract_text",
    "forget_indexes",
    "message_texts",
    "rank_entries",
    "search_entries",
    "search_messages",
]

_PAGE: Final = 500
"""Entries that are read at once."""
_LARGE: Final = 64 << 10
"""Bytes of an entry whose messages stay in memory, as one isn't worth reading it all again."""
_MOST_TERMS: Final = 8_000_000
"""Terms that the indexes of a store hold together: about 100 MB. The newest one stays anyway."""

_NAMES: Final = frozenset({"id", "role", "type", "kind"})
"""Fields that say what something is, where a payload is no message of a conversation."""
_SILENT: Final = frozenset(
    {
        "backend_changed",
        "cache_missed",
        "cancelled",
        "prefix_broken",
        "recalled",
        "turn_failed",
        "turn_lost",
    }
)
"""Kinds of a conversation's entries that bring no message."""


class MessageMatch(Struct, frozen=True):
    """A message that a search found."""

    seq: int
    """The number of the entry that brought it."""
    kind: str
    timestamp: float
    line: bytes
    """The message as its entry has it: a JSON object."""
    score: float


class _Payload(Struct):
    """Where a payload has messages."""

    message: Raw = Raw()
    messages: list[Raw] = []
    immutable: list[Raw] = []
    compressed: list[Raw] = []
    incremental: list[Raw] = []

    def lines(self) -> list[bytes]:
        several = (*self.messages, *self.immutable, *self.compressed, *self.incremental)
        lines = map(bytes, (self.message, *several))
        return [line for line in lines if line.startswith(b"{")]


class _Part(Struct):
    text: Any = ""


class _Line(Struct):
    content: str | list[_Part | str] | None = None


_decode_payload: Final = msgspec.json.Decoder(_Payload).decode
_decode_line: Final = msgspec.json.Decoder(_Line).decode


def search_messages(
    store: Store, conversation_id: str, text: str, *, limit: int, upto: int | None = None
) -> Sequence[MessageMatch]:
    """Messages up to entry `upto` with words of `text`, the best first, of equals the newest.

    Raises `UnknownConversation`.
    """
    index = _indexes_of(store).up_to_date(store, conversation_id)
    found: list[MessageMatch] = []
    for place, score in index.search(text, limit, upto):
        if (match := index.match(store, conversation_id, place, score)) is not None:
            found.append(match)
    return found


def search_entries(store: Store, conversation_id: str, text: str, limit: int) -> Sequence[Entry]:
    """Entries with the messages that `search_messages` finds, each once; as `Store.search` says."""
    index = _indexes_of(store).up_to_date(store, conversation_id)
    return tuple(index.entries(store, conversation_id, text, limit))


def rank_entries(entries: Iterable[Entry], text: str, *, limit: int) -> Sequence[Entry]:
    """The best of these entries: for a store that keeps no index."""
    index = TextIndex()
    found: list[Entry] = []
    for entry in entries:
        for said in message_texts(entry.payload):
            index.add(said)
            found.append(entry)
    ranked = dict.fromkeys(found[number] for number, _ in index.search(text, len(found)))
    return tuple(ranked)[: max(limit, 0)]


def forget_indexes(store: Store, conversation_id: str | None = None) -> None:
    """Let go of what is known of a conversation, or of all: something was removed."""
    _indexes_of(store).forget(conversation_id)


def message_texts(payload: bytes) -> list[str]:
    """The text of each message in a payload; of one that has none all its texts together."""
    if (lines := _lines(payload)) is None:
        return [text] if (text := extract_text(payload)) else []
    return [_text_of(line) for line in lines]


def extract_text(payload: bytes) -> str:
    """All texts in a JSON object, a line each; nothing for what is not JSON."""
    try:
        # Not orjson: this one takes a lone surrogate that somebody escaped.
        value = json.loads(payload)
    except ValueError:
        return ""
    text = "\n".join(_texts(value))
    return text.encode("utf-8", "replace").decode()


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            if name not in _NAMES:
                yield from _texts(item)


def _lines(payload: bytes) -> list[bytes] | None:
    """The messages in a payload of a conversation's; None if it is another one."""
    try:
        fields = _decode_payload(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return fields.lines() or None


def _text_of(line: bytes) -> str:
    try:
        content = _decode_line(line).content
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""
    if isinstance(content, list):
        texts = (part.text if isinstance(part, _Part) else part for part in content)
        return "\n".join(text for text in texts if isinstance(text, str))
    return content or ""


class _Place(Struct, frozen=True, gc=False):
    """Where a text of an index comes from."""

    seq: int
    number: int
    """Which message of its entry; -1 if that is none of a conversation's."""
    kind: str
    timestamp: float
    line: bytes | None
    """The message, if its entry is large."""


class _ConversationIndex:
    """The messages of one conversation, as far as its log was read."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seq = 0
        self._places: list[_Place] = []
        self._texts = TextIndex()

    @property
    def size(self) -> int:
        return self._texts.size

    def catch_up(self, store: Store, conversation_id: str) -> None:
        """Read what the log has had since."""
        with self._lock:
            while found := store.entries(conversation_id, after=self._seq, limit=_PAGE):
                for entry in found:
                    self._add(entry)
                self._seq = found[-1].seq

    def search(self, text: str, limit: int, upto: int | None) -> list[tuple[_Place, float]]:
        places = self._places

        def accept(number: int) -> bool:
            place = places[number]
            return place.number >= 0 and (upto is None or place.seq <= upto)

        return [(places[n], score) for n, score in self._texts.search(text, limit, accept)]

    def match(
        self, store: Store, conversation_id: str, place: _Place, score: float
    ) -> MessageMatch | None:
        """What was found; None if a vacuum has removed it."""
        line = place.line
        if line is None:
            entry = _entry(store, conversation_id, place.seq)
            lines = _lines(entry.payload) if entry is not None else None
            if lines is None or place.number >= len(lines):
                return None
            line = lines[place.number]
        return MessageMatch(place.seq, place.kind, place.timestamp, line, score)

    def entries(self, store: Store, conversation_id: str, text: str, limit: int) -> Iterator[Entry]:
        found = self._texts.search(text, len(self._places) if limit > 0 else 0)
        seqs = list(dict.fromkeys(self._places[number].seq for number, _ in found))
        left = limit
        for seq in seqs:
            if left > 0 and (entry := _entry(store, conversation_id, seq)) is not None:
                left -= 1
                yield entry

    def _add(self, entry: Entry) -> None:
        lines = _lines(entry.payload)
        if lines is None:
            if entry.kind not in _SILENT and (text := extract_text(entry.payload)):
                self._places.append(_Place(entry.seq, -1, entry.kind, entry.timestamp, None))
                self._texts.add(text)
            return
        is_large = len(entry.payload) > _LARGE
        for number, line in enumerate(lines):
            self._places.append(
                _Place(entry.seq, number, entry.kind, entry.timestamp, line if is_large else None)
            )
            self._texts.add(_text_of(line))


def _entry(store: Store, conversation_id: str, seq: int) -> Entry | None:
    found = store.entries(conversation_id, after=seq - 1, upto=seq, limit=1)
    return found[0] if found else None


class _Indexes:
    """The indexes of a store's conversations, those that were searched last."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._indexes: OrderedDict[str, _ConversationIndex] = OrderedDict()

    def up_to_date(self, store: Store, conversation_id: str) -> _ConversationIndex:
        with self._lock:
            index = self._indexes.pop(conversation_id, None) or _ConversationIndex()
            self._indexes[conversation_id] = index
        try:
            index.catch_up(store, conversation_id)
        except BaseException:
            self.forget(conversation_id)
            raise
        self._let_go()
        return index

    def forget(self, conversation_id: str | None) -> None:
        with self._lock:
            if conversation_id is None:
                self._indexes.clear()
            with suppress(KeyError):
                del self._indexes[conversation_id or ""]

    def _let_go(self) -> None:
        with self._lock:
            size = sum(index.size for index in self._indexes.values())
            while size > _MOST_TERMS and len(self._indexes) > 1:
                size -= self._indexes.popitem(last=False)[1].size


_all: Final = WeakKeyDictionary[Store, _Indexes]()
_all_lock: Final = Lock()


def _indexes_of(store: Store) -> _Indexes:
    with _all_lock:
        return _all.setdefault(store, _Indexes())
