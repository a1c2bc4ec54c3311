"""The conversation: an actor that owns one context. One mailbox, one state, one `match`.

It never blocks: whatever takes time runs outside and comes back as a message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, assert_never, cast

from msgspec import Struct

from agent_context import events
from agent_context._actor import queries
from agent_context._actor.background_compression import (
    BackgroundCompressor,
    CompressionFinished,
    CompressionTimedOut,
)
from agent_context._actor.changes import ConversationState, EditCommand
from agent_context._actor.config import ActorConfig
from agent_context._actor.idempotency import IdempotencyTable, IdempotentRequest, KeyLookedUp
from agent_context._actor.journal import WriteFailed, after_commit
from agent_context._actor.lifecycle import ActivityStats, GetActivity, HostPort, Passivate
from agent_context._actor.model_client import BoundModel, ModelClient
from agent_context._actor.recovery import (
    OWNERSHIP_LOST,
    Reopened,
    close_lost_turn,
    fork,
    open_with_timeout,
    reopen,
)
from agent_context._actor.state import ActorState
from agent_context._actor.turn import (
    CompressionReady,
    MessagesRecalled,
    PrefixChanged,
    RoundFinished,
    TurnFinished,
    TurnTimedOut,
)
from agent_context._actor.turn_queue import TurnQueue
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.zones import Zones
from agent_context._installed_backends import resolve_backend
from agent_context._runtime import Deferred, ErrorBoundary, Failure, Mailbox, PoolActor, Reply, post
from agent_context._validation import check_callback, check_type
from agent_context.backend import ContextBackend
from agent_context.compression.hook import CompressionHook
from agent_context.compression.strategy import Strategy
from agent_context.errors import (
    ConversationClosed,
    MailboxFull,
    StoreError,
    UsageError,
    VersionConflict,
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
    Conditional,
    EstimateTokens,
    Fork,
    History,
    SearchHistory,
    Send,
    SendStream,
    Subscribe,
    Unsubscribe,
    UseBackend,
    Version,
)
from agent_context.ref import AskCancelled, ContextRef, LocalChannel, ReadZones, Shutdown
from agent_context.stores.store import Store
from agent_context.stores.writer import StoreExecutor

__all__ = ["AgentContext"]

logger = logging.getLogger(__name__)

_MAX_HELD: Final = 10_000
"""Messages that may wait while a conversation is read from its store anew."""

Report = (
    TurnFinished
    | TurnTimedOut
    | CompressionReady
    | RoundFinished
    | PrefixChanged
    | MessagesRecalled
    | AskCancelled
    | CompressionFinished
    | CompressionTimedOut
    | KeyLookedUp
    | WriteFailed
    | Reopened
)
"""What tasks and stores tell the actor."""


class _Held(Struct, frozen=True):
    """A message that waits until the conversation has been reloaded."""

    message: object
    reply: Reply[object] | None
    """None after a `tell`."""


class AgentContext(ErrorBoundary, PoolActor):
    """A conversation. `AgentContext.start(backend, …)` returns its `ContextRef`."""

    def __init__(
        self,
        config: ActorConfig | None = None,
        state: ActorState | None = None,
        host: HostPort | None = None,
    ) -> None:
        """Internal: `start` makes the arguments."""
        if not isinstance(config, ActorConfig) or state is None:
            raise UsageError("a conversation is started: AgentContext.start(backend, ...)")
        super().__init__()
        self._host = host
        self._config = config
        self._state = state
        state.remember_hidden(config.recall is not None)
        self._closing: Reply[list[Reply[None]]] | None = None
        self._client: ModelClient | None = None
        self._turns: TurnQueue | None = None
        self._compressions: BackgroundCompressor | None = None
        self._keys: IdempotencyTable | None = None
        self._held: list[_Held] | None = None
        """What waits while the conversation is read anew; None if it isn't."""
        self._watch_journal()

    @classmethod
    def start(  # type: ignore[override]
        cls,
        backend: ContextBackend | str,
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

        `backend` is one, or the name of an installed one, such as `openai:gpt-5.4`, with the key of
        the environment.

        With a `store` it outlives the process: what the store knows under `id` goes on, with the
        `immutable` that it began with, and everything is kept there before it is answered. That
        takes the calling thread a few milliseconds; a `Host` does it beside an event loop.

        `immutable` never changes and is never compressed; `options` hold for every send that
        doesn't say otherwise; `on_change` is a first subscriber (see `Subscribe`);
        `compression` is used when a request doesn't fit (`default_strategy()` if None);
        `on_compressed` may change what a compression made before it takes effect. Raises
        `UsageError`, and `StoreError` if the store can't give the conversation.
        """
        if on_change is not None:
            check_callback("on_change", on_change)
        chosen, options = resolve_backend(backend, options)
        config = ActorConfig.of(chosen, options, compression, on_compressed)
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
    async def astart(
        cls,
        backend: ContextBackend | str,
        *,
        immutable: Iterable[Message] = (),
        options: SendOptions | None = None,
        on_change: Callable[[ChangeEvent], object] | None = None,
        compression: Strategy | None = None,
        on_compressed: CompressionHook | None = None,
        store: Store | None = None,
        id: str | None = None,
    ) -> ContextRef:
        """`start` for event loops: a store is waited for on a thread of its own."""
        return await asyncio.to_thread(
            cls.start,
            backend,
            immutable=immutable,
            options=options,
            on_change=on_change,
            compression=compression,
            on_compressed=on_compressed,
            store=store,
            id=id,
        )

    @classmethod
    def launch(
        cls,
        config: ActorConfig,
        state: ActorState,
        on_change: Callable[[ChangeEvent], object] | None = None,
        host: HostPort | None = None,
    ) -> ContextRef:
        """Start it from a state that is already loaded; `host` says for which host."""
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
        """Handle a command, query or report; replies are sent once every change is committed."""
        if isinstance(message, Reopened):
            self._finish_reopening(message)
            return None
        journal = self._state.journal
        if journal is not None and journal.error is not None:
            return self._hold(message, journal.error)
        return self._process(message, is_asked=self._is_reply_expected())

    def peek(self) -> object:
        """The zones, while nothing is being committed or read anew."""
        journal = self._state.journal
        settled = journal is None or (journal.error is None and journal.settled)
        return self._state.zones if settled and self._held is None else None

    def _process(self, message: object, *, is_asked: bool) -> object:
        try:
            answer = self._dispatch(message)
        except Exception as error:
            if self._state.commit() is None or not is_asked:
                raise
            # It was wrong in the light of changes that may be lost yet.
            answer = Failure(error)
        committed = self._state.commit()
        return answer if committed is None else after_commit(committed, answer)

    def _dispatch(self, message: object) -> object:
        if isinstance(message, Passivate):
            self._passivate(message)
            return None
        if isinstance(message, Ask):
            self._mark_use()
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
            return self._shut_down()
        raise UsageError(
            f"a conversation is asked with the messages of agent_context.protocol, "
            f"not with {type(message).__name__}"
        )

    def _shut_down(self) -> Reply[list[Reply[None]]]:
        self._closing = self._closing or Reply()
        self.stop()
        return self._closing

    def _is_reply_expected(self) -> bool:
        return cast("Mailbox", self.actor_inbox).is_reply_expected()

    # Answering.

    def _answer(self, message: AnyAsk) -> object:
        if isinstance(message, IdempotentRequest) and message.key is not None:
            return self._key_table().ask(message, message.key, self._state.journal)
        return self._answer_now(message)

    def _answer_now(self, message: AnyAsk) -> object:
        if isinstance(message, EditCommand):
            return self._state.edit(message, getattr(message, "key", None))
        if isinstance(message, queries.ZoneQuery):
            return queries.answer_query(self._state.zones, message)
        match message:
            case EstimateTokens(options):
                return queries.estimate_tokens(self._bind(options), self._state.zones)
            case CacheReport(options):
                tracker, zones = self._turn_queue().cache_tracker, self._state.zones
                return queries.build_cache_report(self._bind(options), tracker, zones)
            case UseBackend(backend, options):
                return self._use_backend(backend, options)
            case Send() | SendStream():
                return self._turn_queue().accept(message)
            case Compress():
                return self._compressor().accept(message)
            case Cancel(turn):
                return self._turns is not None and self._turns.cancel(turn)
            case Fork():
                return fork(self._state, message, self._config, self._host, self.launch)
            case Version():
                return self._state.current.version
            case Conditional(command, version):
                self._check_version(version)
                return self._answer(cast("AnyAsk", command))
            case History() | SearchHistory():
                return queries.query_history(self._state, message)
            case Subscribe(callback):
                return self._state.subscribe(callback)
            case Unsubscribe(token):
                return self._state.unsubscribe(token)
            case _:
                assert_never(message)

    def _check_version(self, expected: int) -> None:
        if (version := self._state.current.version) != expected:
            raise VersionConflict(expected, version)

    def _bind(self, options: SendOptions) -> BoundModel:
        chosen = check_type("options", options, SendOptions).merged_over(self._config.options)
        return self._model_client().bind(chosen)

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

    # What tasks report.

    def _handle_report(self, report: Report) -> None:
        if isinstance(report, KeyLookedUp):
            self._key_table().answer(report, self._answer_now, self._state)
            return
        turns = self._turn_queue()
        match report:
            case TurnFinished():
                self._end_turn(turns, report)
            case TurnTimedOut(turn_id):
                turns.time_out(turn_id)
            case CompressionReady():
                turns.apply_compression(report)
            case RoundFinished():
                turns.store_round(report)
            case PrefixChanged():
                turns.cache_tracker.announce_changed_prefix(report.turn_id, report.report)
            case MessagesRecalled(turn_id, found):
                turns.announce_recalled(turn_id, found)
            case AskCancelled(asked):
                keys = self._keys
                turns.cancel_request(asked if keys is None else keys.cancel_target(asked))
                self._compressor().cancel_request(asked)
            case CompressionFinished():
                turn_runs = turns.running is not None
                self._compressor().finish(report, turn_runs=turn_runs)
            case CompressionTimedOut(job_id):
                self._compressor().time_out(job_id)
            case WriteFailed() | Reopened():
                pass  # `on_receive` has seen to it
            case _:
                assert_never(report)

    def _end_turn(self, turns: TurnQueue, report: TurnFinished) -> None:
        self._mark_use()  # before the answer is out: whoever has it may park the conversation
        turn = turns.finish(report)
        if turn is None:
            return
        if self._compressions is not None:
            self._compressions.apply_held()
        limit = turn.options.soft_limit
        if limit is not None and report.window_share > limit and turn.task is not None:
            self._compressor().start_ahead(turn.options, turn.task.client)
        turns.start_next()

    # Reading the conversation anew, when a change could not be kept.

    def _hold(self, message: object, error: BaseException) -> object:
        """Reload the conversation first: memory and store differ.

        Raises `StoreError` if somebody else has the conversation now: then this one ends.
        """
        if self._held is None:
            self._drop_everything(error)
            if isinstance(message, Shutdown):
                return self._shut_down()
            if isinstance(error, OWNERSHIP_LOST):
                return self._lose_ownership(message, error)
            self._held = []
            self._reopen()
        elif isinstance(message, Shutdown):
            return self._shut_down()
        if isinstance(message, GetActivity):
            return ActivityStats(running=1)
        if isinstance(message, Report):
            return None  # of a turn that was dropped
        if len(self._held) >= _MAX_HELD:
            raise MailboxFull(f"{_MAX_HELD} messages wait for the store")
        reply: Reply[object] | None = Reply() if self._is_reply_expected() else None
        self._held.append(_Held(message, reply))
        return reply

    def _reopen(self) -> None:
        journal = self._state.journal
        if journal is not None:
            reopen(journal, self._post)

    def _finish_reopening(self, report: Reopened) -> None:
        held, self._held = self._held or [], None
        if report.state is None:
            self._fail_held(held, report.error or StoreError("the store gave no reason"))
            return
        self._state.replace_with(report.state)
        self._watch_journal()
        close_lost_turn(self._state)
        self._state.commit()
        for each in held:
            self._process_held(each)

    def _fail_held(self, held: list[_Held], error: BaseException) -> None:
        lost = isinstance(error, OWNERSHIP_LOST)
        if lost:
            self.stop()
        for each in held:
            if lost and self._host is not None and _is_ask(each.message):
                # Behind the stop, so that the host has it asked of the one that follows.
                answer: object = self.actor_ref.ask(each.message, block=False)
            else:
                answer = Failure(error)
            _answer_held(each, answer)

    def _process_held(self, held: _Held) -> None:
        try:
            answer = self._process(held.message, is_asked=held.reply is not None)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            answer = Failure(error)
        _answer_held(held, answer)

    def _lose_ownership(self, message: object, error: BaseException) -> object:
        self.stop()
        if _is_ask(message):
            if self._host is None:
                raise error
            # Behind the stop, so that the host has it asked of the one that follows.
            return self.actor_ref.ask(message, block=False)
        return None

    def _watch_journal(self) -> None:
        if self._state.journal is not None:
            self._state.journal.on_loss = lambda: self._post(WriteFailed())

    def _drop_everything(self, error: BaseException) -> None:
        if self._turns is not None:
            self._turns.drop(error)
        self._turns = None
        self._end_everything(error)
        self._compressions = self._keys = None

    # The end.

    def _mark_use(self) -> None:
        if self._host is not None:
            self._host.last_used = time.monotonic()

    def _activity(self) -> ActivityStats:
        turns = (0, 0) if self._turns is None else self._turns.count()
        lookups = 0 if self._keys is None else self._keys.lookups
        compressions = len(self._compressions or ())
        return ActivityStats(*turns, compressions, lookups, self._state.count_subscribers())

    def _passivate(self, asked: Passivate) -> None:
        if (host := self._host) is None:
            return
        activity = self._activity()
        unused = host.last_used <= asked.unused_since and not activity.subscribers
        if activity.busy or not (host.draining or unused):
            host.on_passivation_refused()
        elif not cast("Mailbox", self.actor_inbox).stop_unless_pending(Ask, ReadZones, Shutdown):
            self._post(asked)  # again, behind what waits

    def on_stop(self) -> None:
        """Cancel whatever runs and answer every waiting caller."""
        closed = ConversationClosed(f"conversation {self._state.conversation_id} was stopped")
        held, self._held = self._held or [], None
        for each in held:
            _answer_held(each, Failure(closed))
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
        for each in (self._turns, self._compressions, self._keys):
            if each is not None:
                each.close(error)

    # An idle conversation has none of these: most conversations are idle.

    def _key_table(self) -> IdempotencyTable:
        if self._keys is None:
            self._keys = IdempotencyTable(self._post)
        return self._keys

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


def _is_ask(message: object) -> bool:
    return isinstance(message, Ask | ReadZones)


def _answer_held(held: _Held, answer: object) -> None:
    if held.reply is not None:
        held.reply.set(
            Deferred(answer) if isinstance(answer, Reply) else answer  # pyright: ignore[reportUnknownArgumentType] - of anything
        )
    elif isinstance(answer, Failure):
        name = type(held.message).__name__
        logger.error("%s was told and failed", name, exc_info=answer.error)
