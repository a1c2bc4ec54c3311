"""The messages that a conversation takes: frozen values, each of which names its reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, cast

from msgspec import Struct, field

from agent_context._context.token_breakdown import TokenBreakdown
from agent_context._context.zones import Zone
from agent_context.backend import ContextBackend
from agent_context.compression.report import CompressionReport
from agent_context.compression.strategy import Strategy
from agent_context.events import ChangeEvent
from agent_context.messages import Completion, Message, MessageId, Role
from agent_context.options import SendOptions
from agent_context.prompt_cache import CacheUsageReport
from agent_context.ref import Ask, Command, ContextRef, Query
from agent_context.stream import Stream
from agent_context.tools.loop import ToolLoop

__all__ = [
    "AnyAsk",
    "Append",
    "Ask",
    "CacheReport",
    "Cancel",
    "Clear",
    "Command",
    "Compress",
    "Compressed",
    "EstimateTokens",
    "Extend",
    "FindByRole",
    "Fork",
    "FromJsonl",
    "Get",
    "History",
    "HistoryEntry",
    "HistoryPage",
    "Immutable",
    "Incremental",
    "Insert",
    "IsEmpty",
    "Len",
    "Messages",
    "Pop",
    "Query",
    "Remove",
    "Restore",
    "Retain",
    "Rewind",
    "SearchHistory",
    "Send",
    "SendStream",
    "Subscribe",
    "ToJsonl",
    "TokenBreakdown",
    "Unsubscribe",
    "Update",
    "UseBackend",
    "Zone",
]


def _deadline(options: object, usual: float) -> float:
    own = isinstance(options, SendOptions) and "timeout" in options.model_fields_set
    return cast("SendOptions", options).timeout if own else usual


class Append(Command[MessageId], frozen=True):
    """Add a message at the end. The reply is its id.

    A message keeps the id it has, unless the conversation already holds a message with it: the
    same object said twice is two messages, and the second one gets an id of its own.

    `key`, for a conversation with a store: what was asked before with the same key, in whatever
    process, is not done again and gets the same reply.
    """

    message: Message
    key: str | None = None


class Extend(Command[tuple[MessageId, ...]], frozen=True):
    """Add messages at the end, all or none; `key` as with `Append`."""

    messages: Sequence[Message]
    key: str | None = None


class Insert(Command[MessageId], frozen=True):
    """Put a message before the one at `index` of the incremental zone; its length appends."""

    index: int
    message: Message


class Update(Command[Message], frozen=True):
    """Replace the message at `index` of the incremental zone. The reply is the old one.

    The place keeps its id, whatever id `message` has.
    """

    index: int
    message: Message


class Remove(Command[Message], frozen=True):
    """Take out the message at `index` of the incremental zone."""

    index: int


class Pop(Command[Message | None], frozen=True):
    """Take out the last message of the incremental zone; None if there is none."""


class Retain(Command[tuple[Message, ...]], frozen=True):
    """Keep only the incremental messages with this role, or for which this is true.

    The reply is what was taken out. A predicate must be quick; if it raises, nothing changes.
    """

    keep: Role | Callable[[Message], bool]


class Clear(Command[tuple[Message, ...]], frozen=True):
    """Empty the incremental zone. The reply is what was in it."""


class Rewind(Command[tuple[Message, ...]], frozen=True):
    """Cut the incremental zone back to its first `to` messages. The reply is what went."""

    to: int


class Restore(Command[tuple[Message, ...]], frozen=True):
    """Take the last `Rewind` back: the zones are what they were before it.

    The reply is what came back. What was said since the rewind goes. Raises `UsageError` if
    there was no rewind, or if it was taken back already.
    """


class Fork(Command[ContextRef], frozen=True):
    """Start a new conversation with the same history and settings, and without subscribers.

    With `at`, only the first `at` incremental messages. Takes no time that grows with length.
    """

    at: int | None = None


class HistoryEntry(Struct, frozen=True):
    """Something that was said once."""

    conversation_id: str
    """Where it was said: a fork's past begins in the conversation that it branched off."""
    seq: int
    """The number of the change that brought it."""
    timestamp: float
    """When: Unix seconds."""
    kind: str
    """The kind of that change, as `appended`; what `compressed` brought is a summary or a stub."""
    message: Message


class HistoryPage(Struct, frozen=True):
    """A part of what was said."""

    entries: tuple[HistoryEntry, ...]
    cursor: str | None
    """What the next page comes after; None on the last one."""


class History(Query[HistoryPage], frozen=True):
    """What was ever said, oldest first, compressed and removed messages included.

    For a conversation with a store; `after` is the `next` of the page before.
    """

    default_timeout: ClassVar[float] = 60.0
    after: str = ""
    limit: int = 100


class SearchHistory(Query[tuple[HistoryEntry, ...]], frozen=True):
    """What was ever said with words of `text`, the best first. Needs a store, as `History`."""

    default_timeout: ClassVar[float] = 60.0
    text: str
    limit: int = 10


class Len(Query[int], frozen=True):
    """How many messages the three zones hold."""


class IsEmpty(Query[bool], frozen=True):
    """Whether the three zones hold nothing."""


class Get(Query[Message], frozen=True):
    """The message at `index` of the three zones, concatenated."""

    index: int


class Messages(Query[tuple[Message, ...]], frozen=True):
    """The three zones, concatenated."""


class Immutable(Query[tuple[Message, ...]], frozen=True):
    """The immutable zone."""


class Compressed(Query[tuple[Message, ...]], frozen=True):
    """The compressed zone."""


class Incremental(Query[tuple[Message, ...]], frozen=True):
    """The incremental zone."""


class FindByRole(Query[tuple[tuple[int, Message], ...]], frozen=True):
    """The messages of one role, each with its index in the three zones, concatenated."""

    role: Role


class EstimateTokens(Query[TokenBreakdown], frozen=True):
    """What fills the window: tokens per zone, tools, scratch, reserve, total, window."""

    default_timeout: ClassVar[float] = 60.0
    options: SendOptions = field(default_factory=SendOptions)


class CacheReport(Query[CacheUsageReport], frozen=True):
    """What the turns had from their vendors' prompt caches, and what a turn now would have.

    `next` in the reply is for a turn without messages and with these options.
    """

    default_timeout: ClassVar[float] = 60.0
    options: SendOptions = field(default_factory=SendOptions)


class UseBackend(Command[ContextBackend], frozen=True):
    """From the next turn on talk to another backend. The reply is the one so far.

    A turn in progress ends with the backend that it began with; turns that wait take the new one.
    `options` go over the conversation's own, of which `model`, `context_window` and `extra` are
    forgotten, as they were meant for the model so far; so is `model` of a turn that waits.
    """

    backend: ContextBackend
    options: SendOptions = field(default_factory=SendOptions)


class Send(Command[Completion], frozen=True):
    """One turn: send the conversation with `messages` at its end, and store them and the answer.

    With a `loop` the turn goes on while the model calls tools. Each round is stored as it ends,
    together; the reply is the last answer. If a call fails, nothing of it is stored, nor
    `messages` if it was the first. With a `key`, as with `Append`, an answer is paid for once.

    With a store, a turn that a crash cuts short ends by `on_abort` when the conversation is found
    again (`TurnLost`); one that still waited for another is as if it had not been asked.
    """

    options: SendOptions = field(default_factory=SendOptions)
    messages: Sequence[Message] = ()
    context: Sequence[Message] = ()
    """Sent in front of `messages`, never stored."""
    history: Sequence[Message] | None = None
    """Sent in the place of the compressed and incremental zones, which stay as they are."""
    loop: ToolLoop | None = None
    key: str | None = None

    def timeout_for(self, turn_timeout: float) -> float:
        """The turn's deadline and some slack; see `SendOptions.timeout`."""
        return _deadline(self.options, turn_timeout) + self.default_timeout


class SendStream(Command[Stream], frozen=True):
    """One turn, streamed. The reply comes as soon as the turn is accepted; iterating waits.

    `messages` and the answer are stored together when the stream ends, by the conversation. The
    fields are those of `Send`; between the rounds of a `loop` stands a `RoundFinished`.
    """

    options: SendOptions = field(default_factory=SendOptions)
    messages: Sequence[Message] = ()
    context: Sequence[Message] = ()
    history: Sequence[Message] | None = None
    loop: ToolLoop | None = None
    key: str | None = None


class Compress(Command[CompressionReport], frozen=True):
    """Make the history smaller, by `strategy` or else the conversation's own."""

    strategy: Strategy | None = None
    options: SendOptions = field(default_factory=SendOptions)

    def timeout_for(self, turn_timeout: float) -> float:
        """The compression's deadline and some slack; see `SendOptions.timeout`."""
        return _deadline(self.options, turn_timeout) + self.default_timeout


class ToJsonl(Query[str], frozen=True):
    """The zones as lines of JSON that `FromJsonl` reads."""

    zones: Sequence[Zone] = tuple(Zone)


class FromJsonl(Command[int], frozen=True):
    """Read what `ToJsonl` wrote, or lines in chat-completions form. The reply counts messages.

    `replace` puts them in the place of the compressed and incremental zones, `append` adds all
    of them to the incremental zone. The immutable zone is read only into a conversation that is
    new and has none; otherwise the conversation keeps its own. Raises `ImportFailed`.
    """

    default_timeout: ClassVar[float] = 60.0
    text: str
    mode: Literal["replace", "append"] = "replace"


class Cancel(Command[bool], frozen=True):
    """End a turn, or the running one for None. False if there is no such turn."""

    turn: str | None = None


class Subscribe(Command[str], frozen=True):
    """Have `callback` called with every change, in order, outside the conversation.

    The reply is a token for `Unsubscribe`. A callback that raises is logged; one that falls too
    far behind is dropped. It may `tell` the conversation; an `ask` raises `DeadlockError`. What a
    failing store kept and did not confirm is in the log alone: `seq` skips it.
    """

    callback: Callable[[ChangeEvent], object]


class Unsubscribe(Command[bool], frozen=True):
    """Stop the calls; False if the token names no subscriber."""

    token: str


AnyAsk = (
    Append
    | Extend
    | Insert
    | Update
    | Remove
    | Pop
    | Retain
    | Clear
    | Rewind
    | Restore
    | Fork
    | History
    | SearchHistory
    | Len
    | IsEmpty
    | Get
    | Messages
    | Immutable
    | Compressed
    | Incremental
    | FindByRole
    | EstimateTokens
    | CacheReport
    | UseBackend
    | Send
    | SendStream
    | Compress
    | ToJsonl
    | FromJsonl
    | Cancel
    | Subscribe
    | Unsubscribe
)
"""Everything that a conversation understands."""
