"""The conversation: an actor that owns one context. One mailbox, one state, one `match`.

It never blocks: whatever takes time runs outside and comes back as a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, assert_never, cast

from msgspec.structs import replace

from agent_context import events
from agent_context.backend import ContextBackend
from agent_context.breakdown import Breakdown
from agent_context.checks import checked
from agent_context.compression.editor import Editor
from agent_context.compression.pipeline import tiered
from agent_context.compression.strategy import Strategy
from agent_context.conversation import edits
from agent_context.conversation.compressions import (
    CompressionEnded,
    CompressionOverdue,
    Compressions,
)
from agent_context.conversation.exchange import Exchange, scratch_of
from agent_context.conversation.prefixes import prefix_of
from agent_context.conversation.settings import Settings
from agent_context.conversation.state import State, views
from agent_context.conversation.turn import (
    PrefixLost,
    RoundEnded,
    SwapWanted,
    TurnEnded,
    TurnOverdue,
)
from agent_context.conversation.turns import Turns
from agent_context.errors import ConversationClosed, InvalidOptions, UsageMistake
from agent_context.events import ChangeEvent
from agent_context.jsonl import exported
from agent_context.ledger import LedgerReport
from agent_context.messages import Message, Role, new_id
from agent_context.options import SendOptions
from agent_context.protocol import (
    Append,
    Ask,
    Cancel,
    Clear,
    Compress,
    Compressed,
    EstimateTokens,
    Extend,
    FindByRole,
    Fork,
    FromJsonl,
    Get,
    Immutable,
    Incremental,
    Insert,
    IsEmpty,
    Ledger,
    Len,
    Messages,
    Pop,
    Remove,
    Retain,
    Rewind,
    Said,
    Send,
    SendStream,
    Subscribe,
    ToJsonl,
    Unsubscribe,
    Update,
    UseBackend,
)
from agent_context.ref import Abandoned, Closing, ContextRef
from agent_context.runtime import Guarded, PoolActor, Reply, ThreadActor, io_loop, post
from agent_context.vector import Vector
from agent_context.zones import Zones

__all__ = ["AgentContext", "ThreadedAgentContext"]

Report = (
    TurnEnded
    | TurnOverdue
    | SwapWanted
    | RoundEnded
    | PrefixLost
    | Abandoned
    | CompressionEnded
    | CompressionOverdue
)
"""What the jobs of a conversation tell it."""


# One for all conversations that are started without their own.
_NO_OPTIONS = SendOptions()
_TIERED = tiered()


class _Conversation(Guarded):
    """What a conversation does with each message; on which runtime, its subclasses say."""

    def __init__(self, settings: Settings, state: State) -> None:
        super().__init__()
        self._settings = settings
        self._state = state
        self._closing: Reply[list[Reply[None]]] | None = None
        self._exchange: Exchange | None = None
        self._turns: Turns | None = None
        self._compressions: Compressions | None = None

    @classmethod
    def start(  # type: ignore[override]
        cls,
        backend: ContextBackend,
        *,
        immutable: Iterable[Message] = (),
        options: SendOptions | None = None,
        on_change: Callable[[ChangeEvent], object] | None = None,
        compression: Strategy | None = None,
        on_compressed: Editor | None = None,
        id: str | None = None,
    ) -> ContextRef:
        """Start a conversation.

        `immutable` never changes and is never compressed; `options` hold for every send that
        doesn't say otherwise; `on_change` is a first subscriber (see `Subscribe`);
        `compression` is used when a request doesn't fit (`tiered()` if None); `on_compressed`
        may change what a compression made before it takes effect. Raises `UsageMistake`.
        """
        settings = Settings(
            backend=checked("backend", backend, ContextBackend),
            options=checked("options", options or _NO_OPTIONS, SendOptions),
            strategy=checked("compression", compression or _TIERED, Strategy),
            editor=on_compressed,
        )
        name = new_id() if id is None else checked("id", id, str)
        first = State(name, Zones()).at_rest_all(immutable)
        return cls._launch(name, settings, Zones(immutable=Vector.of(first)), on_change)

    @classmethod
    def _launch(
        cls,
        name: str,
        settings: Settings,
        zones: Zones,
        on_change: Callable[[ChangeEvent], object] | None = None,
    ) -> ContextRef:
        state = State(name, zones)
        if on_change is not None:
            state.subscribe(on_change)
        actor_ref = cast("Any", super()).start(settings, state)
        return ContextRef(actor_ref, name, turn_timeout=settings.options.timeout)

    def on_receive(self, message: Any) -> Any:  # noqa: ANN401 - pykka's signature
        """Answer an `Ask`, or take in what a job reports."""
        if isinstance(message, Ask):
            return self._answer(cast("Said", message))
        if isinstance(message, Report):
            return self._take_in(message)
        if isinstance(message, Closing):
            self._closing = self._closing or Reply()
            self.stop()
            return self._closing
        raise UsageMistake(
            f"a conversation is asked with the messages of agent_context, "
            f"not with {type(message).__name__}"
        )

    def _answer(self, message: Said) -> object:
        match message:
            case (
                Append()
                | Extend()
                | Insert()
                | Update()
                | Remove()
                | Pop()
                | Retain()
                | Clear()
                | Rewind()
                | FromJsonl()
            ):
                return edits.apply(self._state, message)
            case Len() | IsEmpty() | Get() | FindByRole() | ToJsonl():
                return self._read(message)
            case Messages() | Immutable() | Compressed() | Incremental():
                return self._view(message)
            case EstimateTokens():
                return self._estimate(message.options)
            case Ledger():
                return self._ledger(message.options)
            case UseBackend(backend, options):
                return self._use(backend, options)
            case Send() | SendStream():
                return self._turn_keeper().accept(message)
            case Compress():
                return self._compression_keeper().accept(message)
            case Cancel(turn):
                return self._turns is not None and self._turns.cancel(turn)
            case Fork(at):
                return self._fork(at)
            case Subscribe(callback):
                return self._state.subscribe(callback)
            case Unsubscribe(token):
                return self._state.unsubscribe(token)
            case _:
                assert_never(message)

    def _read(self, message: Len | IsEmpty | Get | FindByRole | ToJsonl) -> object:
        zones = self._state.zones
        match message:
            case Len():
                return len(zones)
            case IsEmpty():
                return not len(zones)
            case Get(index):
                return zones.get(edits.index_of(index)).message
            case FindByRole(role):
                wanted = _role(role)
                found = ((i, r) for i, r in enumerate(zones) if r.role is wanted)
                return tuple((index, record.message) for index, record in found)
            case ToJsonl(which):
                return exported(zones, which)

    def _view(self, message: Messages | Immutable | Compressed | Incremental) -> object:
        zones = self._state.zones
        match message:
            case Messages():
                return views(zones)
            case Immutable():
                return views(zones.immutable)
            case Compressed():
                return views(zones.compressed)
            case Incremental():
                return views(zones.incremental)

    def _estimate(self, options: SendOptions) -> Reply[Breakdown]:
        chosen = checked("options", options, SendOptions).over(self._settings.options)
        measure = self._dealings().measure
        return io_loop().offload(measure, self._state.zones, scratch_of(chosen), chosen)

    def _ledger(self, options: SendOptions) -> Reply[LedgerReport]:
        chosen = checked("options", options, SendOptions).over(self._settings.options)
        zones, exchange, scratch = self._state.zones, self._dealings(), scratch_of(chosen)
        books = self._turn_keeper().books
        before, totals = books.before(), books.totals

        def report() -> LedgerReport:
            whole, stored = exchange.instructed(zones, chosen), len(zones.incremental)
            breakdown = exchange.measure(zones, scratch, chosen)
            prefix = prefix_of(exchange, before, whole, stored, scratch, chosen, breakdown)
            return replace(totals, next=prefix.report)

        return io_loop().offload(report)

    def _use(self, backend: ContextBackend, options: SendOptions) -> ContextBackend:
        before = self._settings.backend
        checked("backend", backend, ContextBackend)
        self._settings = self._settings.using(backend, checked("options", options, SendOptions))
        self._exchange = None
        if self._turns is not None:
            self._turns.use(self._settings, self._dealings())
        if self._compressions is not None:
            self._compressions.use(self._settings, self._dealings())
        self._state.announce(lambda: partial(events.BackendChanged, vendor=backend.vendor))
        return before

    def _fork(self, at: int | None) -> ContextRef:
        zones = self._state.zones
        if at is not None:
            zones = zones.rewind(edits.index_of(at))
        return self._launch(new_id(), self._settings, zones)

    def _take_in(self, report: Report) -> None:
        turns = self._turn_keeper()
        match report:
            case TurnEnded():
                self._end_turn(turns, report)
            case TurnOverdue(turn_id):
                turns.overdue(turn_id)
            case SwapWanted():
                turns.swap(report)
            case RoundEnded():
                turns.round(report)
            case PrefixLost():
                turns.books.lost(report.turn_id, report.report)
            case Abandoned(asked):
                turns.abandon(asked)
                self._compression_keeper().abandon(asked)
            case CompressionEnded():
                keeper = self._compression_keeper()
                keeper.ended(report, turn_runs=turns.running is not None)
            case CompressionOverdue(work_id):
                self._compression_keeper().overdue(work_id)
            case _:
                assert_never(report)

    def _end_turn(self, turns: Turns, report: TurnEnded) -> None:
        turn = turns.ended(report)
        if turn is None:
            return
        if self._compressions is not None:
            self._compressions.release()
        if turn.call is not None and turn.filled_past_soft_limit():
            self._compression_keeper().ahead(turn.options, turn.call.exchange)
        turns.go_on()

    def on_stop(self) -> None:
        """End what runs and answer everybody who waits."""
        self._end_everything()
        if self._closing is not None:
            self._closing.set(self._state.deliveries())

    def _end_everything(self) -> None:
        closed = ConversationClosed(f"conversation {self._state.conversation_id} was stopped")
        if self._turns is not None:
            self._turns.close(closed)
        if self._compressions is not None:
            self._compressions.close(closed)

    # An idle conversation has none of these three: most conversations are idle.

    def _dealings(self) -> Exchange:
        if self._exchange is None:
            self._exchange = Exchange(self._settings.backend, self._state.conversation_id)
        return self._exchange

    def _turn_keeper(self) -> Turns:
        if self._turns is None:
            self._turns = Turns(self._state, self._settings, self._dealings(), self._post)
        return self._turns

    def _compression_keeper(self) -> Compressions:
        if self._compressions is None:
            self._compressions = Compressions(
                self._state, self._settings, self._dealings(), self._post
            )
        return self._compressions

    def _post(self, report: object) -> bool:
        return post(self.actor_ref, report)


class AgentContext(_Conversation, PoolActor):  # pyright: ignore[reportIncompatibleMethodOverride] - start
    """A conversation. `AgentContext.start(backend, …)` returns its `ContextRef`."""


class ThreadedAgentContext(_Conversation, ThreadActor):  # pyright: ignore[reportIncompatibleMethodOverride] - start
    """The same conversation with a thread of its own: slower, and easier to debug."""


def _role(value: object) -> Role:
    try:
        return Role(cast("str", value))
    except ValueError as error:
        raise InvalidOptions(f"role: one of {', '.join(Role)}, not {value!r}") from error
