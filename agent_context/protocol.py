"""The messages that a conversation takes: frozen values, each of which names its reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, cast, overload

from msgspec import Struct, StructMeta, field

from agent_context._context.token_breakdown import TokenBreakdown
from agent_context._context.zones import Zone
from agent_context.backend import ContextBackend
from agent_context.compression.report import CompressionReport
from agent_context.compression.strategy import Strategy
from agent_context.errors import UsageError
from agent_context.events import ChangeEvent
from agent_context.messages import Completion, Message, MessageId, Role
from agent_context.model_call import ModelMiddleware
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
    "Conditional",
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
    "Version",
    "Zone",
]

R_co = TypeVar("R_co", covariant=True)


def _deadline(options: object, usual: float) -> float:
    own = isinstance(options, SendOptions) and "timeout" in options.model_fields_set
    return cast("SendOptions", options).timeout if own else usual


class Append(Command[MessageId], frozen=True):
    """Add a message at the end of the incremental zone. The reply is its id.

    A message keeps its id, unless the conversation already holds a message with that id: the same
    object appended twice becomes two messages, and the second one gets a new id.

    Raises `InvalidMessage` for what can't be stored, and `StoreError` if the store can't keep it.
    """

    message: Message
    key: str | None = None
    """An idempotency key; needs a store. A second command with the same key changes nothing and
    gets the first one's reply, in whatever process. Raises `UsageError` if the key was used for
    something else."""


class Extend(Command[tuple[MessageId, ...]], frozen=True):
    """Add messages at the end, all or none. The reply is their ids. Raises as `Append` does."""

    messages: Sequence[Message]
    key: str | None = None
    """As with `Append`."""


class Insert(Command[MessageId], frozen=True):
    """Put a message before the one at `index` of the incremental zone. The reply is its id.

    An `index` equal to the zone's length appends. Raises `IndexOutOfRange`.
    """

    index: int
    message: Message


class Update(Command[Message], frozen=True):
    """Replace the message at `index` of the incremental zone. The reply is the old message.

    The new message takes over the old one's id. Raises `IndexOutOfRange`.
    """

    index: int
    message: Message


class Remove(Command[Message], frozen=True):
    """Remove the message at `index` of the incremental zone, and reply with it.

    Raises `IndexOutOfRange`.
    """

    index: int


class Pop(Command[Message | None], frozen=True):
    """Remove the last message of the incremental zone, and reply with it; None if it is empty."""


class Retain(Command[tuple[Message, ...]], frozen=True):
    """Keep only the incremental messages of one role, or those for which a predicate is true.

    The reply is the removed messages. The predicate runs in the actor: it must be quick. If it
    raises, nothing changes.
    """

    keep: Role | Callable[[Message], bool]


class Clear(Command[tuple[Message, ...]], frozen=True):
    """Empty the incremental zone. The reply is the removed messages."""


class Rewind(Command[tuple[Message, ...]], frozen=True):
    """Cut the incremental zone back to its first `to` messages, and reply with the removed ones.

    Raises `IndexOutOfRange`.
    """

    to: int


class Restore(Command[tuple[Message, ...]], frozen=True):
    """Undo the last `Rewind`: the zones are what they were before it.

    The reply is the messages that came back. Messages added since the rewind are lost from the
    zones. Raises `UsageError` if there is no rewind to undo.
    """


class Fork(Command[ContextRef], frozen=True):
    """Start a new conversation with the same zones and settings, and without subscribers.

    Costs the same whatever the length. With a store the fork is stored too, under a new id, and
    shares its parent's log. Raises `IndexOutOfRange`, `StoreError` if the fork can't be stored,
    and `ConversationClosed` while the host drains.
    """

    at: int | None = None
    """How many incremental messages the fork starts with; None for all."""
    id: str | None = None
    """What the fork is called; None makes an id up. Raises `UsageError` if it is taken."""


class HistoryEntry(Struct, frozen=True):
    """A message in a conversation's history."""

    conversation_id: str
    """The conversation it was added to: a fork's history begins in its parent."""
    seq: int
    """The number of the change that added it, as in `ChangeEvent.seq`; 0 for what it began with."""
    timestamp: float
    """When: Unix seconds."""
    kind: str
    """The kind of that change, such as `appended`. `compressed` adds summaries and stubs."""
    message: Message


class HistoryPage(Struct, frozen=True):
    """One page of the history."""

    entries: tuple[HistoryEntry, ...]
    cursor: str | None
    """Where the next page starts, for `History.after`; None on the last page."""


class History(Query[HistoryPage], frozen=True):
    """Every message that was ever added, oldest first, compressed and removed ones included.

    Needs a store, as the log is read; raises `UsageError` without one.
    """

    default_timeout: ClassVar[float] = 60.0
    after: str = ""
    """The `cursor` of the page before."""
    limit: int = 100
    """Messages in a page."""


class SearchHistory(Query[tuple[HistoryEntry, ...]], frozen=True):
    """Messages of the history that match the words of `text`, the best first.

    Needs a store; raises `UsageError` without one.
    """

    default_timeout: ClassVar[float] = 60.0
    text: str
    limit: int = 10


class Len(Query[int], frozen=True):
    """How many messages the three zones hold together."""


class IsEmpty(Query[bool], frozen=True):
    """Whether the three zones are empty."""


class Get(Query[Message], frozen=True):
    """The message at `index` of the three zones, concatenated. Raises `IndexOutOfRange`."""

    index: int


class Messages(Query[tuple[Message, ...]], frozen=True):
    """The messages of the three zones, concatenated."""


class Immutable(Query[tuple[Message, ...]], frozen=True):
    """The messages of the immutable zone."""


class Compressed(Query[tuple[Message, ...]], frozen=True):
    """The messages of the compressed zone."""


class Incremental(Query[tuple[Message, ...]], frozen=True):
    """The messages of the incremental zone."""


class FindByRole(Query[tuple[tuple[int, Message], ...]], frozen=True):
    """The messages of one role, each with its index in the three zones, concatenated."""

    role: Role


class EstimateTokens(Query[TokenBreakdown], frozen=True):
    """What a request would take of the window, part by part, in tokens."""

    default_timeout: ClassVar[float] = 60.0
    options: SendOptions = field(default_factory=SendOptions)


class CacheReport(Query[CacheUsageReport], frozen=True):
    """What the turns so far took from their vendors' prompt caches, and what the next one would."""

    default_timeout: ClassVar[float] = 60.0
    options: SendOptions = field(default_factory=SendOptions)
    """Of the turn that `next` in the reply is about; it sends no new message."""


class UseBackend(Command[ContextBackend], frozen=True):
    """Use another backend from the next turn on. The reply is the old backend.

    A running turn finishes with the backend that it began with; waiting turns use the new one. The
    conversation's own `model`, `context_window` and `extra` are dropped, as they were meant for
    the old model, and so is the `model` of a waiting turn.
    """

    backend: ContextBackend
    options: SendOptions = field(default_factory=SendOptions)
    """Laid over the conversation's own options."""


class _FromText(StructMeta):
    """Takes what is said first: `Send("Hi")` is `Send(messages=[Message.user("Hi")])`."""

    if not TYPE_CHECKING:  # checkers read the overloads of `__init__`

        def __call__(cls, *given: Any, **fields: Any) -> Any:  # noqa: ANN401, N805 - of the class
            if not given or not isinstance(given[0], str | Message):
                return super().__call__(*given, **fields)
            if "messages" in fields:
                raise UsageError(f"{cls.__name__}: say it first or as messages, not both")
            said, *options = given
            message = Message.user(said) if isinstance(said, str) else said
            return super().__call__(*options, messages=(message,), **fields)


class TurnCommand(Command[R_co], frozen=True, metaclass=_FromText):
    """What `Send` and `SendStream` say of a turn."""

    options: SendOptions = field(default_factory=SendOptions)
    """Laid over the conversation's own options."""
    messages: Sequence[Message] = ()
    """What is said in this turn; it may be nothing."""
    context: Sequence[Message] = ()
    """Sent in front of `messages`, and never stored."""
    history: Sequence[Message] | None = None
    """Sent in the place of the compressed and incremental zones, which stay as they are."""
    outgoing: Sequence[Message] | None = None
    """With a `history`: sent in the place of `messages`, which are stored as they are."""
    loop: ToolLoop | None = None
    """What answers the model's tool calls; None leaves them to the caller."""
    key: str | None = None
    """An idempotency key as with `Append`: the answer is paid for once."""
    around: ModelMiddleware | None = None
    """Stands around each call of the model. It runs on the library's I/O loop: don't block it."""


class Send(TurnCommand[Completion], frozen=True):
    """One turn: send the zones and `messages`, store both `messages` and the answer.

    `Send("Hi")` says one thing as the user. With a `loop` the turn goes on while the model calls
    tools: the results of each round are stored with the answer that called for them, and the reply
    is the last answer. A failed call stores nothing of its round.

    With a store, a turn that a crash cuts short is closed by its `on_abort` when the conversation
    is opened again (`events.TurnLost`). Turns that were still waiting are gone.

    Raises `ContextFull` before anything is sent if the request can't be made to fit;
    `BackendError` for what the vendor refuses; `TurnCancelled` and `TurnTimeout`;
    `ConversationBusy` if `on_busy` is `reject` or too many turns wait; `CompressionError`,
    `StoreError`, `InvalidMessage` and `InvalidOptions`.
    """

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            said: str | Message,
            /,
            options: SendOptions = ...,
            *,
            loop: ToolLoop | None = ...,
            key: str | None = ...,
            around: ModelMiddleware | None = ...,
        ) -> None: ...

        @overload
        def __init__(
            self,
            options: SendOptions = ...,
            messages: Sequence[Message] = ...,
            context: Sequence[Message] = ...,
            history: Sequence[Message] | None = ...,
            outgoing: Sequence[Message] | None = ...,
            loop: ToolLoop | None = ...,
            key: str | None = ...,
            around: ModelMiddleware | None = ...,
        ) -> None: ...

        def __init__(self, *given: Any, **fields: Any) -> None: ...

    def timeout_for(self, turn_timeout: float) -> float:
        """The turn's deadline and some slack; see `SendOptions.timeout`."""
        return _deadline(self.options, turn_timeout) + self.default_timeout


class SendStream(TurnCommand[Stream], frozen=True):
    """One turn, streamed. The reply comes when the turn is accepted; iterating it waits.

    The conversation stores `messages` and the answer when the stream ends, and a
    `ToolRoundFinished` stands between the rounds of a `loop`.

    Asking raises `ConversationBusy`, `InvalidMessage` and `InvalidOptions`; iterating the stream
    raises the rest of what `Send` raises, after what had arrived.
    """

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            said: str | Message,
            /,
            options: SendOptions = ...,
            *,
            loop: ToolLoop | None = ...,
            key: str | None = ...,
            around: ModelMiddleware | None = ...,
        ) -> None: ...

        @overload
        def __init__(
            self,
            options: SendOptions = ...,
            messages: Sequence[Message] = ...,
            context: Sequence[Message] = ...,
            history: Sequence[Message] | None = ...,
            outgoing: Sequence[Message] | None = ...,
            loop: ToolLoop | None = ...,
            key: str | None = ...,
            around: ModelMiddleware | None = ...,
        ) -> None: ...

        def __init__(self, *given: Any, **fields: Any) -> None: ...


ContextRef.turn_commands = (Send, SendStream)


class Compress(Command[CompressionReport], frozen=True):
    """Compress the history now, to about half of what it takes.

    Runs beside the turns and is applied between them. The reply's `changed` is False if there was
    nothing to do. Raises `CompressionError`, after which the zones are as they were; `TurnTimeout`;
    `StoreError`.
    """

    strategy: Strategy | None = None
    """None uses the conversation's own."""
    options: SendOptions = field(default_factory=SendOptions)
    """For the call that asks the model for a summary."""

    def timeout_for(self, turn_timeout: float) -> float:
        """The compression's deadline and some slack; see `SendOptions.timeout`."""
        return _deadline(self.options, turn_timeout) + self.default_timeout


class Version(Query[int], frozen=True):
    """How many changes made the zones what they are: `ChangeEvent.version_after` of the last."""


class Conditional(Command[R_co], Generic[R_co], frozen=True):
    """Do this if the zones are what they were at `version`. The reply is the command's.

    Raises `VersionConflict`, and does nothing, if they have changed since; else as the command.
    """

    command: Command[R_co]
    version: int

    def timeout_for(self, turn_timeout: float) -> float:
        """As the command waits."""
        return self.command.timeout_for(turn_timeout)

    def cancel_target(self) -> object:
        """The command."""
        return self.command


class ToJsonl(Query[str], frozen=True):
    """The zones as JSON lines: a header, then a message on each line. `FromJsonl` reads it."""

    zones: Sequence[Zone] = tuple(Zone)


class FromJsonl(Command[int], frozen=True):
    """Load what `ToJsonl` wrote, or lines in chat-completions form. The reply counts messages.

    The immutable zone is loaded only into a new conversation that has none; any other keeps its
    own. Raises `ImportFailed` with the number of the line at fault; nothing is changed then.
    """

    default_timeout: ClassVar[float] = 60.0
    text: str
    mode: Literal["replace", "append"] = "replace"
    """`replace` the compressed and incremental zones, or `append` to the incremental zone."""


class Cancel(Command[bool], frozen=True):
    """Cancel the turn with this id, or the running one for None. False if there is no such turn."""

    turn: str | None = None


class Subscribe(Command[str], frozen=True):
    """Call `callback` with every later change, in order, on a thread of its own.

    The reply is a token for `Unsubscribe`. A callback that raises is logged, and one that falls
    10,000 events behind is dropped. It may `tell` the conversation; an `ask` from inside it raises
    `DeadlockError`. Raises `InvalidOptions` for a coroutine function.
    """

    callback: Callable[[ChangeEvent], object]


class Unsubscribe(Command[bool], frozen=True):
    """End a subscription; False if the token names none."""

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
    | Version
    | Conditional[Any]
    | ToJsonl
    | FromJsonl
    | Cancel
    | Subscribe
    | Unsubscribe
)
"""Every message that a conversation takes."""
