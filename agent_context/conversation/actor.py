"""The conversation: an actor that owns one context. One mailbox, one state, one `match`.

It never blocks: whatever takes time runs outside and comes back as a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, assert_never, cast

from agent_context import events
from agent_context.backend import ContextBackend
from agent_context.checks import checked
from agent_context.compression.editor import Editor
from agent_context.compression.strategy import Strategy
from agent_context.conversation import edits, reads
from agent_context.conversation.compressions import (
    CompressionEnded,
    CompressionOverdue,
    Compressions,
)
from agent_context.conversation.exchange import Exchange
from agent_context.conversation.forks import forked
from agent_context.conversation.journal import Lost, once_kept
from agent_context.conversation.keys import Keyed, Keys, LookedUp
from agent_context.conversation.log import Moment
from agent_context.conversation.measures import accounted, estimated
from agent_context.conversation.opening import ELSEWHERE, close_turn, opened, opened_in_time
from agent_context.conversation.reports import Report
from agent_context.conversation.seat import Activity, HowBusy, Passivate, Seat
from agent_context.conversation.settings import Settings
from agent_context.conversation.state import State
from agent_context.conversation.turn import (
    PrefixLost,
    RoundEnded,
    SwapWanted,
    TurnEnded,
    TurnOverdue,
)
from agent_context.conversation.turns import Turns
from agent_context.errors import (
    ConversationClosed,
    StoreError,
    UsageMistake,
)
from agent_context.events import ChangeEvent
from agent_context.messages import Message, new_id
from agent_context.options import SendOptions
from agent_context.protocol import (
    Ask,
    Cancel,
    Compress,
    EstimateTokens,
    Fork,
    History,
    Ledger,
    Recall,
    Said,
    Send,
    SendStream,
    Subscribe,
    Unsubscribe,
    UseBackend,
)
from agent_context.ref import Abandoned, Closing, ContextRef, Glance
from agent_context.runtime import (
    Failed,
    Guarded,
    Mailbox,
    PoolActor,
    Reply,
    ThreadActor,
    post,
)
from agent_context.stores.access import Access
from agent_context.stores.store import Store
from agent_context.vector import Vector
from agent_context.zones import Zones

__all__ = ["AgentContext", "ThreadedAgentContext"]


class _Conversation(Guarded):
    """What a conversation does with each message; on which runtime, its subclasses say."""

    def __init__(self, settings: Settings, state: State, seat: Seat | None = None) -> None:
        super().__init__()
        self._seat = seat
        self._settings = settings
        self._state = state
        self._closing: Reply[list[Reply[None]]] | None = None
        self._exchange: Exchange | None = None
        self._turns: Turns | None = None
        self._compressions: Compressions | None = None
        self._known_keys: Keys | None = None
        self._watch()

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
        store: Store | None = None,
        id: str | None = None,
    ) -> ContextRef:
        """Start a conversation.

        With a `store` it outlives the process: what the store knows under `id` goes on, with the
        `immutable` that it began with, and everything is kept there before it is answered. That
        takes the calling thread a few milliseconds; a `Host` does it beside an event loop.

        `immutable` never changes and is never compressed; `options` hold for every send that
        doesn't say otherwise; `on_change` is a first subscriber (see `Subscribe`);
        `compression` is used when a request doesn't fit (`tiered()` if None); `on_compressed`
        may change what a compression made before it takes effect. Raises `UsageMistake`, and
        `StoreError` if the store can't give the conversation.
        """
        settings = Settings.of(backend, options, compression, on_compressed)
        name = new_id() if id is None else checked("id", id, str)
        first = Zones(immutable=Vector.of(State(name, Moment(Zones())).at_rest_all(immutable)))
        if store is None:
            return cls.launch(settings, State(name, Moment(first)), on_change)
        access = Access.of(checked("store", store, Store))
        return cls.launch(settings, opened_in_time(access, name, first), on_change)

    @classmethod
    def launch(
        cls,
        settings: Settings,
        state: State,
        on_change: Callable[[ChangeEvent], object] | None = None,
        seat: Seat | None = None,
    ) -> ContextRef:
        """Start it with what is known of it already; with a `seat`, for a host."""
        if on_change is not None:
            state.subscribe(on_change)
        if seat is not None:
            state.audience = seat.listeners
            seat.used = time.monotonic()
        close_turn(state)
        state.commit_now()
        actor_ref = cast("Any", super()).start(settings, state, seat)
        return ContextRef(actor_ref, state.conversation_id, turn_timeout=settings.options.timeout)

    def on_receive(self, message: Any) -> Any:  # noqa: ANN401 - pykka's signature
        """Answer an `Ask`, or take in what a job reports; once all that changed is kept."""
        try:
            self._find_again(message)
        except ELSEWHERE:
            if self._seat is None or not isinstance(message, Ask | Glance):
                raise
            # Behind the stop, so that the host has it asked of the one that follows.
            return self.actor_ref.ask(message, block=False)
        try:
            answer = self._received(message)
        except Exception as error:
            if self._state.commit() is None or not cast("Mailbox", self.actor_inbox).asked():
                raise
            # It was wrong in the light of changes that may be lost yet.
            answer = Failed(error)
        kept = self._state.commit()
        return answer if kept is None else once_kept(kept, answer)

    def _received(self, message: object) -> object:
        if isinstance(message, Passivate):
            self._passivate(message)
            return None
        if isinstance(message, Ask):
            self._touch()
            return self._answer(cast("Said", message))
        if isinstance(message, Report):
            self._take_in(message)
            if self._seat is not None and self._seat.retiring:
                self._passivate(Passivate())
            return None
        if isinstance(message, HowBusy):
            return self._activity()
        if isinstance(message, Glance):
            return self._state.zones
        if isinstance(message, Closing):
            self._closing = self._closing or Reply()
            self.stop()
            return self._closing
        raise UsageMistake(
            f"a conversation is asked with the messages of agent_context, "
            f"not with {type(message).__name__}"
        )

    def _find_again(self, message: object) -> None:
        """Read the conversation anew if it could not be kept as it was here.

        Raises `StoreError` for who asks if the store still can't be had, or if somebody else has
        the conversation now: then this one ends.
        """
        journal = self._state.journal
        if journal is None or journal.error is None:
            return
        self._drop_everything(journal.error)
        if isinstance(message, Closing):
            return
        try:
            if isinstance(journal.error, ELSEWHERE):
                raise journal.error
            access = Access.of(journal.access.store)
            self._state.become(opened(access, self._state.conversation_id, Zones()))
        except StoreError as error:
            if isinstance(error, ELSEWHERE):
                self.stop()
            if isinstance(message, Ask | Glance):
                raise
            return  # nobody asked
        self._watch()
        close_turn(self._state)

    def _watch(self) -> None:
        if self._state.journal is not None:
            self._state.journal.on_loss = lambda: self._post(Lost())

    def _drop_everything(self, error: BaseException) -> None:
        if self._turns is not None:
            self._turns.drop(error)
        self._turns = None
        self._end_everything(error)
        self._compressions = self._known_keys = None

    def _answer(self, message: Said) -> object:
        if isinstance(message, Keyed) and message.key is not None:
            return self._keys.ask(message, message.key, self._state.journal)
        return self._answer_now(message)

    def _answer_now(self, message: Said) -> object:
        if isinstance(message, edits.Edit):
            return edits.apply(self._state, message)
        if isinstance(message, reads.Read):
            return reads.read(self._state.zones, message)
        match message:
            case EstimateTokens():
                chosen = self._chosen(message.options)
                return estimated(self._dealings(), self._state.zones, chosen)
            case Ledger():
                books, chosen = self._turn_keeper().books, self._chosen(message.options)
                return accounted(self._dealings(), books, self._state.zones, chosen)
            case UseBackend(backend, options):
                return self._use(backend, options)
            case Send() | SendStream():
                return self._turn_keeper().accept(message)
            case Compress():
                return self._compression_keeper().accept(message)
            case Cancel(turn):
                return self._turns is not None and self._turns.cancel(turn)
            case Fork(at):
                return forked(self._state, at, self._settings, self._seat, self.launch)
            case History() | Recall():
                return reads.look_back(self._state, message)
            case Subscribe(callback):
                return self._state.subscribe(callback)
            case Unsubscribe(token):
                return self._state.unsubscribe(token)
            case _:
                assert_never(message)

    def _chosen(self, options: SendOptions) -> SendOptions:
        return checked("options", options, SendOptions).over(self._settings.options)

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

    def _take_in(self, report: Report) -> None:
        if isinstance(report, LookedUp):
            self._keys.answer(report, self._answer_now, self._state)
            return
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
                keys = self._known_keys
                turns.abandon(asked if keys is None else keys.abandoned(asked))
                self._compression_keeper().abandon(asked)
            case CompressionEnded():
                keeper = self._compression_keeper()
                keeper.ended(report, turn_runs=turns.running is not None)
            case CompressionOverdue(work_id):
                self._compression_keeper().overdue(work_id)
            case Lost():
                pass  # what there is to do has been done
            case _:
                assert_never(report)

    def _end_turn(self, turns: Turns, report: TurnEnded) -> None:
        turn = turns.ended(report)
        if turn is None:
            return
        self._touch()
        if self._compressions is not None:
            self._compressions.release()
        if turn.call is not None and turn.filled_past_soft_limit():
            self._compression_keeper().ahead(turn.options, turn.call.exchange)
        turns.go_on()

    def _touch(self) -> None:
        if self._seat is not None:
            self._seat.used = time.monotonic()

    def _activity(self) -> Activity:
        turns = (0, 0) if self._turns is None else self._turns.count()
        lookups = 0 if self._known_keys is None else self._known_keys.looking
        works = len(self._compressions or ())
        return Activity(*turns, works, lookups, self._state.subscribers())

    def _passivate(self, asked: Passivate) -> None:
        if (seat := self._seat) is None:
            return
        activity = self._activity()
        wanted = seat.retiring or (seat.used <= asked.unused_since and not activity.subscribers)
        if activity.busy or not wanted:
            seat.stayed()
        elif not cast("Mailbox", self.actor_inbox).end_unless(Ask, Glance, Closing):
            self._post(asked)  # again, behind what waits

    def on_stop(self) -> None:
        """End what runs and answer everybody who waits."""
        closed = ConversationClosed(f"conversation {self._state.conversation_id} was stopped")
        self._end_everything(closed)
        released = self._state.release()
        if self._seat is not None:
            unread = cast("Mailbox", self.actor_inbox).hand_over(Ask, Glance)
            self._seat.ended(self._settings, unread, released)
        if self._closing is not None:
            closing, state = self._closing, self._state
            released.add_done_callback(lambda _: closing.set(state.deliveries()))
        self._state.commit()

    def _end_everything(self, error: BaseException) -> None:
        for each in (self._turns, self._compressions, self._known_keys):
            if each is not None:
                each.close(error)

    # An idle conversation has none of these: most conversations are idle.

    @property
    def _keys(self) -> Keys:
        if self._known_keys is None:
            self._known_keys = Keys(self._post)
        return self._known_keys

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
