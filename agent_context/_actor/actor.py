"""The conversation: an actor that owns one context. One mailbox, one state, one `match`.

It never blocks: whatever takes time runs outside and comes back as a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, assert_never, cast

from agent_context import events
from agent_context._actor import commands, queries
from agent_context._actor.background_compression import (
    BackgroundCompressor,
    CompressionEnded,
    CompressionOverdue,
)
from agent_context._actor.config import ActorConfig
from agent_context._actor.idempotency import IdempotencyTable, IdempotentRequest, KeyLookedUp
from agent_context._actor.journal import WriteFailed, after_commit
from agent_context._actor.lifecycle import ActivityStats, GetActivity, HostPort, Passivate
from agent_context._actor.model_client import ModelClient
from agent_context._actor.queries import build_cache_report, estimate_tokens
from agent_context._actor.recovery import (
    OWNERSHIP_LOST,
    close_lost_turn,
    fork,
    open_conversation,
    open_with_timeout,
)
from agent_context._actor.replay import ConversationState
from agent_context._actor.reports import Report
from agent_context._actor.state import ActorState
from agent_context._actor.turn import (
    CompressionReady,
    PrefixChanged,
    RoundFinished,
    TurnEnded,
    TurnTimedOut,
)
from agent_context._actor.turn_queue import TurnQueue
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.zones import Zones
from agent_context._runtime import (
    ErrorBoundary,
    Failure,
    Mailbox,
    PoolActor,
    Reply,
    ThreadActor,
    post,
)
from agent_context._validation import check_type
from agent_context.backend import ContextBackend
from agent_context.compression.hook import CompressionHook
from agent_context.compression.strategy import Strategy
from agent_context.errors import (
    ConversationClosed,
    StoreError,
    UsageError,
)
from agent_context.events import ChangeEvent
from agent_context.messages import Message, new_id
from agent_context.options import SendOptions
from agent_context.protocol import (
    AnyAsk,
    Ask,
    CacheReport,
    Cancel,
    Compress,
    EstimateTokens,
    Fork,
    History,
    SearchHistory,
    Send,
    SendStream,
    Subscribe,
    Unsubscribe,
    UseBackend,
)
from agent_context.ref import AskCancelled, ContextRef, LocalChannel, ReadZones, Shutdown
from agent_context.stores.store import Store
from agent_context.stores.writer import StoreExecutor

__all__ = ["AgentContext", "ThreadedAgentContext"]


class _Conversation(ErrorBoundary):
    """What a conversation does with each message; on which runtime, its subclasses say."""

    def __init__(
        self, config: ActorConfig, state: ActorState, host: HostPort | None = None
    ) -> None:
        super().__init__()
        self._host = host
        self._config = config
        self._state = state
        self._closing: Reply[list[Reply[None]]] | None = None
        self._client: ModelClient | None = None
        self._turns: TurnQueue | None = None
        self._compressions: BackgroundCompressor | None = None
        self._known_keys: IdempotencyTable | None = None
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
        on_compressed: CompressionHook | None = None,
        store: Store | None = None,
        id: str | None = None,
    ) -> ContextRef:
        """Start a conversation.

        With a `store` it outlives the process: what the store knows under `id` goes on, with the
        `immutable` that it began with, and everything is kept there before it is answered. That
        takes the calling thread a few milliseconds; a `Host` does it beside an event loop.

        `immutable` never changes and is never compressed; `options` hold for every send that
        doesn't say otherwise; `on_change` is a first subscriber (see `Subscribe`);
        `compression` is used when a request doesn't fit (`default_strategy()` if None);
        `on_compressed` may change what a compression made before it takes effect. Raises
        `UsageError`, and `StoreError` if the store can't give the conversation.
        """
        config = ActorConfig.of(backend, options, compression, on_compressed)
        name = new_id() if id is None else check_type("id", id, str)
        first = Zones(
            immutable=PersistentVector.of(
                ActorState(name, ConversationState(Zones())).to_records(immutable)
            )
        )
        if store is None:
            return cls.launch(config, ActorState(name, ConversationState(first)), on_change)
        access = StoreExecutor.for_store(check_type("store", store, Store))
        return cls.launch(config, open_with_timeout(access, name, first), on_change)

    @classmethod
    def launch(
        cls,
        config: ActorConfig,
        state: ActorState,
        on_change: Callable[[ChangeEvent], object] | None = None,
        host: HostPort | None = None,
    ) -> ContextRef:
        """Start it with what is known of it already; with a `host`, for a host."""
        if on_change is not None:
            state.subscribe(on_change)
        if host is not None:
            state.host_subscribers = host.subscribers
            host.last_used = time.monotonic()
        close_lost_turn(state)
        state.commit_now()
        actor_ref = cast("Any", super()).start(config, state, host)
        return ContextRef(
            LocalChannel(actor_ref), state.conversation_id, turn_timeout=config.options.timeout
        )

    def on_receive(self, message: Any) -> Any:  # noqa: ANN401 - pykka's signature
        """Answer an `Ask`, or take in what a job reports; once all that changed is kept."""
        try:
            self._recover_if_failed(message)
        except OWNERSHIP_LOST:
            if self._host is None or not isinstance(message, Ask | ReadZones):
                raise
            # Behind the stop, so that the host has it asked of the one that follows.
            return self.actor_ref.ask(message, block=False)
        try:
            answer = self._dispatch(message)
        except Exception as error:
            if (
                self._state.commit() is None
                or not cast("Mailbox", self.actor_inbox).is_reply_expected()
            ):
                raise
            # It was wrong in the light of changes that may be lost yet.
            answer = Failure(error)
        kept = self._state.commit()
        return answer if kept is None else after_commit(kept, answer)

    def _dispatch(self, message: object) -> object:
        if isinstance(message, Passivate):
            self._passivate(message)
            return None
        if isinstance(message, Ask):
            self._mark_used()
            return self._answer(cast("AnyAsk", message))
        if isinstance(message, Report):
            self._handle_report(message)
            if self._host is not None and self._host.draining:
                self._passivate(Passivate())
            return None
        if isinstance(message, GetActivity):
            return self._activity()
        if isinstance(message, ReadZones):
            return self._state.zones
        if isinstance(message, Shutdown):
            self._closing = self._closing or Reply()
            self.stop()
            return self._closing
        raise UsageError(
            f"a conversation is asked with the messages of agent_context, "
            f"not with {type(message).__name__}"
        )

    def _recover_if_failed(self, message: object) -> None:
        """Read the conversation anew if it could not be kept as it was here.

        Raises `StoreError` for who asks if the store still can't be had, or if somebody else has
        the conversation now: then this one ends.
        """
        journal = self._state.journal
        if journal is None or journal.error is None:
            return
        self._drop_everything(journal.error)
        if isinstance(message, Shutdown):
            return
        try:
            if isinstance(journal.error, OWNERSHIP_LOST):
                raise journal.error
            access = StoreExecutor.for_store(journal.access.store)
            self._state.replace_with(
                open_conversation(access, self._state.conversation_id, Zones())
            )
        except StoreError as error:
            if isinstance(error, OWNERSHIP_LOST):
                self.stop()
            if isinstance(message, Ask | ReadZones):
                raise
            return  # nobody asked
        self._watch()
        close_lost_turn(self._state)

    def _watch(self) -> None:
        if self._state.journal is not None:
            self._state.journal.on_loss = lambda: self._post(WriteFailed())

    def _drop_everything(self, error: BaseException) -> None:
        if self._turns is not None:
            self._turns.drop(error)
        self._turns = None
        self._end_everything(error)
        self._compressions = self._known_keys = None

    def _answer(self, message: AnyAsk) -> object:
        if isinstance(message, IdempotentRequest) and message.key is not None:
            return self._keys.ask(message, message.key, self._state.journal)
        return self._answer_now(message)

    def _answer_now(self, message: AnyAsk) -> object:
        if isinstance(message, commands.Edit):
            return commands.apply(self._state, message)
        if isinstance(message, queries.ZoneQuery):
            return queries.answer_query(self._state.zones, message)
        match message:
            case EstimateTokens():
                chosen = self._merge_options(message.options)
                return estimate_tokens(self._model_client(), self._state.zones, chosen)
            case CacheReport():
                cache_tracker, chosen = (
                    self._turn_queue().cache_tracker,
                    self._merge_options(message.options),
                )
                return build_cache_report(
                    self._model_client(), cache_tracker, self._state.zones, chosen
                )
            case UseBackend(backend, options):
                return self._use_backend(backend, options)
            case Send() | SendStream():
                return self._turn_queue().accept(message)
            case Compress():
                return self._compressor().accept(message)
            case Cancel(turn):
                return self._turns is not None and self._turns.cancel(turn)
            case Fork(at):
                return fork(self._state, at, self._config, self._host, self.launch)
            case History() | SearchHistory():
                return queries.query_history(self._state, message)
            case Subscribe(callback):
                return self._state.subscribe(callback)
            case Unsubscribe(token):
                return self._state.unsubscribe(token)
            case _:
                assert_never(message)

    def _merge_options(self, options: SendOptions) -> SendOptions:
        return check_type("options", options, SendOptions).merged_over(self._config.options)

    def _use_backend(self, backend: ContextBackend, options: SendOptions) -> ContextBackend:
        before = self._config.backend
        check_type("backend", backend, ContextBackend)
        self._config = self._config.using(backend, check_type("options", options, SendOptions))
        self._client = None
        if self._turns is not None:
            self._turns.use_config(self._config, self._model_client())
        if self._compressions is not None:
            self._compressions.use_config(self._config, self._model_client())
        self._state.announce(lambda: partial(events.BackendChanged, vendor=backend.vendor))
        return before

    def _handle_report(self, report: Report) -> None:
        if isinstance(report, KeyLookedUp):
            self._keys.answer(report, self._answer_now, self._state)
            return
        turns = self._turn_queue()
        match report:
            case TurnEnded():
                self._end_turn(turns, report)
            case TurnTimedOut(turn_id):
                turns.time_out(turn_id)
            case CompressionReady():
                turns.apply_compression(report)
            case RoundFinished():
                turns.store_round(report)
            case PrefixChanged():
                turns.cache_tracker.announce_changed_prefix(report.turn_id, report.report)
            case AskCancelled(asked):
                keys = self._known_keys
                turns.cancel_asked(asked if keys is None else keys.cancel_target(asked))
                self._compressor().cancel(asked)
            case CompressionEnded():
                keeper = self._compressor()
                keeper.finish(report, turn_runs=turns.running is not None)
            case CompressionOverdue(work_id):
                self._compressor().time_out(work_id)
            case WriteFailed():
                pass  # what there is to do has been done
            case _:
                assert_never(report)

    def _end_turn(self, turns: TurnQueue, report: TurnEnded) -> None:
        turn = turns.finish(report)
        if turn is None:
            return
        self._mark_used()
        if self._compressions is not None:
            self._compressions.apply_held()
        if turn.call is not None and turn.is_past_soft_limit():
            self._compressor().start_ahead(turn.options, turn.call.client)
        turns.start_next()

    def _mark_used(self) -> None:
        if self._host is not None:
            self._host.last_used = time.monotonic()

    def _activity(self) -> ActivityStats:
        turns = (0, 0) if self._turns is None else self._turns.count()
        lookups = 0 if self._known_keys is None else self._known_keys.lookups
        works = len(self._compressions or ())
        return ActivityStats(*turns, works, lookups, self._state.count_subscribers())

    def _passivate(self, asked: Passivate) -> None:
        if (host := self._host) is None:
            return
        activity = self._activity()
        wanted = host.draining or (
            host.last_used <= asked.unused_since and not activity.subscribers
        )
        if activity.busy or not wanted:
            host.on_passivation_refused()
        elif not cast("Mailbox", self.actor_inbox).stop_unless_pending(Ask, ReadZones, Shutdown):
            self._post(asked)  # again, behind what waits

    def on_stop(self) -> None:
        """End what runs and answer everybody who waits."""
        closed = ConversationClosed(f"conversation {self._state.conversation_id} was stopped")
        self._end_everything(closed)
        released = self._state.release()
        if self._host is not None:
            unread = cast("Mailbox", self.actor_inbox).drain(Ask, ReadZones)
            self._host.on_stopped(self._config, unread, released)
        if self._closing is not None:
            closing, state = self._closing, self._state
            released.add_done_callback(lambda _: closing.set(state.flush_marks()))
        self._state.commit()

    def _end_everything(self, error: BaseException) -> None:
        for each in (self._turns, self._compressions, self._known_keys):
            if each is not None:
                each.close(error)

    # An idle conversation has none of these: most conversations are idle.

    @property
    def _keys(self) -> IdempotencyTable:
        if self._known_keys is None:
            self._known_keys = IdempotencyTable(self._post)
        return self._known_keys

    def _model_client(self) -> ModelClient:
        if self._client is None:
            self._client = ModelClient(self._config.backend, self._state.conversation_id)
        return self._client

    def _turn_queue(self) -> TurnQueue:
        if self._turns is None:
            self._turns = TurnQueue(self._state, self._config, self._model_client(), self._post)
        return self._turns

    def _compressor(self) -> BackgroundCompressor:
        if self._compressions is None:
            self._compressions = BackgroundCompressor(
                self._state, self._config, self._model_client(), self._post
            )
        return self._compressions

    def _post(self, report: object) -> bool:
        return post(self.actor_ref, report)


class AgentContext(_Conversation, PoolActor):  # pyright: ignore[reportIncompatibleMethodOverride] - start
    """A conversation. `AgentContext.start(backend, …)` returns its `ContextRef`."""


class ThreadedAgentContext(_Conversation, ThreadActor):  # pyright: ignore[reportIncompatibleMethodOverride] - start
    """The same conversation with a thread of its own: slower, and easier to debug."""
