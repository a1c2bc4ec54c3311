"""The conversations of an agent's sessions: opened when they are needed, ended with them."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from asyncio import to_thread
from functools import partial
from threading import Lock
from typing import Any, Protocol, cast

import pykka

from agent_context._actor.actor import AgentContext
from agent_context._runtime import Reply, finalizer_thread
from agent_context._validation import check_type
from agent_context.agent.records import SessionRecords, get_or_create_session
from agent_context.backend import ContextBackend
from agent_context.compression.strategy import Strategy
from agent_context.errors import InvalidOptions, UsageError
from agent_context.messages import new_id
from agent_context.options import SendOptions
from agent_context.protocol import FromJsonl, IsEmpty, UseBackend
from agent_context.ref import ContextRef, Shutdown
from agent_context.sessions.session import AgentSession
from agent_context.stores.store import Store
from agent_context.stores.writer import StoreExecutor

__all__ = ["ConversationSource", "SessionConversations"]


class ConversationSource(Protocol):
    """What gives out the conversations of a store; a `Host` does."""

    @property
    def store(self) -> Store: ...

    @property
    def backend(self) -> ContextBackend | None: ...

    async def aget(self, conversation_id: str, /) -> ContextRef: ...


class SessionConversations:
    """Where the conversations of an agent's sessions come from: a store, a host, or nowhere."""

    def __init__(
        self,
        client: ContextBackend,
        options: SendOptions,
        *,
        compression: Strategy | None = None,
        store: Store | None = None,
        host: ConversationSource | None = None,
    ) -> None:
        """Raises `InvalidOptions` for what a host has already."""
        self.client = client
        """Whom conversations that are opened from now on talk to."""
        self._options = options
        self._compression = compression
        self._store = _resolve_store(client, store, host, compression)
        self._host = host
        self._lock = Lock()
        self._started: set[ContextRef] = set()
        """What was started here and not asked to stop yet."""
        self._ending: set[Reply[Any]] = set()
        """What was, and has not ended yet."""
        self._closed = False

    def create_session(self, session_id: str | None) -> AgentSession:
        """A session, or the one with this id that somebody holds if there is a store."""
        if self._store is None:
            return AgentSession(session_id)
        session = get_or_create_session(self._store, new_id() if session_id is None else session_id)
        session.opener = self._open_if_known
        return session

    def records_of(self, session: AgentSession, *, alone: bool) -> SessionRecords | None:
        """What is kept beside a session's conversation; None if nothing is."""
        return None if self._store is None or alone else SessionRecords(self._store, session)

    async def open(self, session: AgentSession, *, alone: bool = False) -> ContextRef:
        """The conversation of a session, which is started if need be.

        `alone`: nobody holds the session but its one run, so it is not kept. Raises `UsageError`
        after `close`, and `StoreError`.
        """
        if self._closed:
            raise UsageError("the agent was closed: make another one")
        leave = await session.open_lock.acquire()
        try:
            return await self._open(session, self.records_of(session, alone=alone))
        finally:
            leave()

    async def _open_if_known(self, session: AgentSession) -> ContextRef | None:
        """The same, unless the store doesn't know it: then there is nothing to read."""
        if self._store is None or self._closed:
            return session.conversation
        fresh = session.conversation is None and session.imported_jsonl is None
        about = StoreExecutor.for_store(self._store).read(self._store.info, session.session_id)
        return None if fresh and await about is None else await self.open(session)

    async def _open(self, session: AgentSession, records: SessionRecords | None) -> ContextRef:
        conversation = session.conversation
        if conversation is None or (records is not None and not conversation.actor_ref.is_alive()):
            conversation = await self._begin(session, records)
        elif session.backend is not self.client:
            await conversation.aask(UseBackend(self.client, self._options))
        session.conversation, session.backend = conversation, self.client
        return conversation

    async def _begin(self, session: AgentSession, records: SessionRecords | None) -> ContextRef:
        """What the store knows, with what providers remember of it, or a new conversation."""
        if records is None:
            conversation = self._start(session, None)
        elif self._host is not None:
            conversation = await self._host.aget(session.session_id)
        else:
            conversation = await to_thread(self._start, session, self._store)
        if records is not None:
            await records.load_state()
        empty = await conversation.aask(IsEmpty())
        if session.imported_jsonl and empty:  # what it was told in another life
            await conversation.aask(FromJsonl(session.imported_jsonl))
        return conversation

    def _start(self, session: AgentSession, store: Store | None) -> ContextRef:
        conversation = AgentContext.start(
            self.client,
            options=self._options,
            compression=self._compression,
            id=session.session_id,
            store=store,
        )
        with self._lock:
            self._started.add(conversation)
        # It ends with its session, in no hurry: a finalizer must not wait.
        ends = weakref.finalize(
            session, finalizer_thread().call_soon, partial(self._end, conversation)
        )
        ends.atexit = False
        return conversation

    def _end(self, conversation: ContextRef) -> None:
        """Ask it to stop."""
        with self._lock:
            if conversation not in self._started:
                return
            self._started.discard(conversation)
            with contextlib.suppress(pykka.ActorDeadError):
                ended = cast("Reply[Any]", conversation.actor_ref.ask(Shutdown(), block=False))
                self._ending.add(ended)
                ended.add_done_callback(self._ending.discard)

    async def close(self, timeout: float) -> None:
        """End what was started here, and wait until all of it is kept, at most `timeout` seconds.

        Raises `TimeoutError`. What a host gave out is the host's.
        """
        self._closed = True
        with self._lock:
            started = tuple(self._started)
        for conversation in started:
            self._end(conversation)
        with self._lock:
            ending = tuple(self._ending)
        async with asyncio.timeout(timeout):
            for ended in ending:
                with contextlib.suppress(pykka.ActorDeadError):
                    await ended


def _resolve_store(
    client: ContextBackend,
    store: Store | None,
    host: ConversationSource | None,
    compression: Strategy | None,
) -> Store | None:
    if host is None:
        return None if store is None else check_type("store", store, Store)
    if store is not None:
        raise InvalidOptions("store: the host has one, which keeps its conversations: drop this")
    if compression is not None:
        raise InvalidOptions("compression: the host's conversations have the host's: give it there")
    if host.backend is not None and host.backend is not client:
        raise InvalidOptions(
            f"host: its conversations talk to another {host.backend.vendor} backend than client: "
            "make the host and the agent with the same one"
        )
    return host.store
