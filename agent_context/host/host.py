"""`Host`: the conversations of one process."""

from __future__ import annotations

import asyncio
import signal
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Self

import pykka

from agent_context._actor.config import ConversationConfig
from agent_context._installed_backends import resolve_backend
from agent_context._runtime import Reply, SubscriberQueue, io_loop
from agent_context._runtime.fork_safety import ProcessToken
from agent_context._validation import check_callback, check_type
from agent_context.backend import ContextBackend
from agent_context.compression.hook import CompressionHook
from agent_context.compression.strategy import Strategy
from agent_context.errors import AskTimeout, InvalidOptions, UsageError
from agent_context.events import ChangeEvent
from agent_context.host.activation import ActivationRegistry, ActivationRequest
from agent_context.host.change_feed import FeedChange, read_changes, to_feed_change
from agent_context.host.health import check_process
from agent_context.host.search import search_conversations
from agent_context.host.signals import SignalDrain
from agent_context.host.usage import UsageBy, UsageTotals, sum_usage
from agent_context.messages import Message, new_id
from agent_context.options import SendOptions
from agent_context.protocol import Fork, HistoryEntry
from agent_context.ref import ContextRef
from agent_context.stores.store import ConversationInfo, HealthCheck, Store

__all__ = ["Host"]

_ACTIVATION: Final = 60.0
"""Seconds that `get` waits for the store, besides its patience."""
_GRACE: Final = 5.0
"""Seconds for storing and releasing what a drain cuts short."""
_LEAST: Final = 0.5
"""Seconds that each step of an end has, however long those before it took."""
_SWEEP: Final = 30.0
_BEHIND: Final = 100_000
"""How many events a subscriber to all conversations may lag behind."""


class Host:
    """Manages the conversations of a store: exactly one actor for each, however many ask for it.

    A conversation is activated when it is wanted, and parked when it was not used for a while or
    when too many are awake. A ref goes on working: what is said to a parked conversation wakes it.
    What is busy or has subscribers of its own is never parked.

        with Host(SqliteStore("talks.db"), backend) as host:
            answer = host.get("ann").ask(Send(messages=[Message.user("hi")]))

    Methods without an async twin (`aget`, `adrain`) block for a few milliseconds.
    """

    def __init__(
        self,
        store: Store,
        backend: ContextBackend | str | Callable[[str], ConversationConfig],
        *,
        immutable: Iterable[Message] = (),
        options: SendOptions | None = None,
        on_change: Callable[[ChangeEvent], object] | None = None,
        compression: Strategy | None = None,
        on_compressed: CompressionHook | None = None,
        idle: float | None = 300.0,
        live: int = 5_000,
        close_store: bool = True,
    ) -> None:
        """Conversations are started with these arguments, as by `AgentContext.start`.

        A function instead of the backend returns a `ConversationConfig` for each id.
        `idle` is how long, in seconds, an unused one stays awake (None: for ever); past `live`
        conversations the longest unused are parked. A drain closes the store unless `close_store`
        is False. Raises `UsageError`.
        """
        self.store = check_type("store", store, Store)
        if isinstance(backend, str):
            backend, options = resolve_backend(backend, options)
        self.backend = backend if isinstance(backend, ContextBackend) else None
        """What its conversations talk to; None if a function says that for each."""
        if live < 1 or (idle is not None and idle <= 0):
            raise InvalidOptions("live: a number from 1 on; idle: seconds, or None")
        if isinstance(backend, ContextBackend) or not callable(backend):
            said = tuple(immutable)
            same = ConversationConfig(backend, options, said, compression, on_compressed, on_change)
            same.actor_config()  # whether they are good
            self._registry = ActivationRegistry(store, lambda _: same, limit=live)
        else:
            self._registry = ActivationRegistry(store, backend, limit=live)
        self._home = ProcessToken.current
        self._limit, self._idle = live, idle
        self._close_store = close_store
        self._subscribers: dict[str, SubscriberQueue[ChangeEvent]] = {}
        self._signals: SignalDrain | None = None
        self._sweep_later()

    def get(
        self, conversation_id: str, *, create: bool = True, patience: float = 0.0
    ) -> ContextRef:
        """The conversation with this id; it is created if there is none, unless `create` is False.

        Waits at most `patience` seconds for another process to give it up.

        Raises:
            OwnedByAnotherProcess: a live process has it, still after `patience`.
            UnknownConversation: there is none, and `create` is False.
            ConversationDeleted: it was deleted; its id is not used again.
            StoreError: the store can't give it (`retryable` says whether to try again).
            AskTimeout: the store has not answered in 60 seconds beside `patience`.
            ConversationClosed: the host drains or is closed.
        """
        try:
            return self._activate(conversation_id, create, patience).get(
                timeout=patience + _ACTIVATION
            )
        except pykka.Timeout:
            raise self._timeout_error(conversation_id) from None

    async def aget(
        self, conversation_id: str, *, create: bool = True, patience: float = 0.0
    ) -> ContextRef:
        """`get` for event loops."""
        search = self._activate(conversation_id, create, patience)
        try:
            async with asyncio.timeout(patience + _ACTIVATION):
                return await search
        except TimeoutError:
            if search.done():
                raise
            raise self._timeout_error(conversation_id) from None

    def fork(self, conversation_id: str, *, at: int | None = None) -> ContextRef:
        """Branch a conversation off; the same as asking it to `Fork`."""
        return self.get(conversation_id, create=False).ask(Fork(at))

    def passivate(self, unused_for: float = 0.0, *, timeout: float = 10.0) -> bool:
        """Park conversations that were unused for this many seconds, to free their memory.

        False if that took longer than `timeout`. Busy conversations and those with subscribers
        stay active.
        """
        return self._registry.passivate_idle(time.monotonic() - unused_for, timeout)

    def active_ids(self) -> tuple[str, ...]:
        """The ids of the conversations that are awake, without those that are being parked."""
        return tuple(
            slot.id for slot in self._registry.active_slots() if not slot.passivation_requested
        )

    def conversations(self, *, after: str = "", limit: int = 100) -> Sequence[ConversationInfo]:
        """Information on all conversations of the store, active or not, ordered by id."""
        return self.store.conversations(after=after, limit=limit)

    def info(self, conversation_id: str) -> ConversationInfo | None:
        """Information on one conversation; None if it is unknown or deleted."""
        return self.store.info(conversation_id)

    def set_metadata(self, conversation_id: str, metadata: Mapping[str, Any]) -> None:
        """Replace its metadata, a JSON object. Raises `UnknownConversation`."""
        self.store.set_metadata(conversation_id, metadata)

    def delete(self, conversation_id: str) -> bool:
        """Delete a conversation; its id is never reused. False if there is none.

        Its data is removed by the store's next `vacuum`.
        """
        self._stop(conversation_id)
        deleted = self.store.delete(conversation_id)
        # Whoever woke it meanwhile is fenced: it can't keep anything, and has to end.
        self._stop(conversation_id)
        self._registry.discard(conversation_id)
        return deleted

    def feed(self, *, after: int = 0, limit: int = 1000) -> Sequence[FeedChange]:
        """Changes in all conversations of the store after a position, in order."""
        return tuple(map(to_feed_change, self.store.feed(after=after, limit=limit)))

    def changes(
        self, conversation_id: str, *, after: int = 0, limit: int = 1000
    ) -> Sequence[FeedChange]:
        """What happened in one conversation behind change `after`, by `ChangeEvent.seq`, in order.

        Its parent's changes are not among them. Raises `UnknownConversation`.
        """
        return read_changes(self.store, conversation_id, after=after, limit=limit)

    def search(self, text: str, *, limit: int = 10, prefix: str = "") -> Sequence[HistoryEntry]:
        """Messages of all conversations whose ids begin with `prefix`, the best first.

        Removed ones and those of parents are among them. The first search reads the logs of the
        conversations; their indexes stay in memory, about 100 MB at most. Raises `InvalidOptions`.
        """
        return search_conversations(self.store, text, limit, prefix)

    def usage(
        self, since: datetime | None = None, by: UsageBy = "model"
    ) -> Mapping[str, UsageTotals]:
        """What the turns of all conversations used and cost since then: their totals, `by` what.

        Of turns that ended well; of a deleted conversation nothing is left. It reads the log, which
        takes about a second for 100,000 changes. Raises `InvalidOptions`.
        """
        return sum_usage(self.store, since, by)

    def subscribe(self, callback: Callable[[ChangeEvent], object]) -> str:
        """Call `callback` with every later change of every conversation here, in the order of each.

        Returns the token for `unsubscribe`. As with `Subscribe`; who falls 100,000 events behind
        is dropped.
        """
        check_callback("callback", callback)
        token = new_id()
        self._subscribers[token] = SubscriberQueue(callback, capacity=_BEHIND)
        self._registry.subscribers = tuple(self._subscribers.values())
        return token

    def unsubscribe(self, token: str) -> bool:
        """End a subscription. False if there was none."""
        delivery = self._subscribers.pop(token, None)
        if delivery is None:
            return False
        self._registry.subscribers = tuple(self._subscribers.values())
        delivery.close()
        return True

    def health(self) -> Sequence[HealthCheck]:
        """Check the store and this process."""
        return (*self.store.health(), *check_process(self._registry, self._limit))

    def drain(self, timeout: float = 30.0) -> bool:
        """Shut down: accept no more turns, let running ones finish, release conversations, close.

        After `timeout` seconds, turns that still run or wait are aborted by their abort policy;
        False if any was. A store that says nothing holds it up for a few seconds more, no longer:
        what it had not acknowledged by then is lost. May be called again.
        """
        if self._home is not ProcessToken.current:
            return True  # in a forked child: all of it is the parent's
        registry = self._registry
        registry.start_draining()
        for slot in registry.active_slots():
            registry.drain(slot)
        finished = registry.wait_until_empty(timeout)
        end = time.monotonic() + _GRACE
        if not finished:
            for slot in registry.active_slots():
                registry.stop(slot)
            registry.wait_until_empty(_GRACE)
        self._close(end)
        return finished

    async def adrain(self, timeout: float = 30.0) -> bool:
        """`drain` for event loops."""
        return await asyncio.to_thread(self.drain, timeout)

    def install_signal_handlers(
        self,
        signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT),
        *,
        timeout: float = 30.0,
    ) -> None:
        """Drain when the process is told to end, and then let it end as the signal says.

        A second signal ends it at once. Call this on the main thread.
        """
        if self._signals is not None:
            raise UsageError("the signal handlers are installed already")
        self._signals = SignalDrain(signals, lambda: self.drain(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drain()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.adrain()

    def _activate(self, conversation_id: str, create: bool, patience: float) -> Reply[ContextRef]:  # noqa: FBT001
        self._registry.check_home()
        search = ActivationRequest(self._registry, check_type("id", conversation_id, str), patience)
        if create:
            search.begin()
        else:
            search.begin_if_known()
        return search.result

    def _timeout_error(self, conversation_id: str) -> AskTimeout:
        return AskTimeout(f"conversation {conversation_id} could not be activated in time")

    def _stop(self, conversation_id: str) -> None:
        ref = self._registry.get_active(conversation_id, _ACTIVATION)
        if ref is not None:
            ref.stop()

    def _close(self, end: float) -> None:
        if self._signals is not None:
            self._signals.remove()
        for delivery in self._subscribers.values():
            delivery.flush(max(_LEAST, end - time.monotonic()))
        if self._close_store:
            self._registry.access.close(max(_LEAST, end - time.monotonic()))
            self.store.close()

    def _sweep_later(self) -> None:
        """Look for unused conversations from time to time, as long as the host is there."""
        me = weakref.ref(self)
        pause = _SWEEP if self._idle is None else min(self._idle / 4, _SWEEP)

        def sweep() -> None:
            host = me()
            if host is not None:
                host._sweep()  # noqa: SLF001

        io_loop().call_later(pause, lambda: io_loop().offload(sweep))

    def _sweep(self) -> None:
        if self._registry.draining:
            return
        if self._idle is not None:
            self._registry.passivate_idle(time.monotonic() - self._idle, 0)
        self._registry.evict_idle()
        self._sweep_later()
