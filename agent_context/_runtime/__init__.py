"""How conversations run on pykka: mailboxes, a shared pool, the I/O loop, event delivery.

It knows nothing of conversations: any `pykka.Actor` can run on it.
"""

from agent_context._runtime._pykka import find_actor
from agent_context._runtime.actor import ErrorBoundary, PoolActor
from agent_context._runtime.async_lock import FairAsyncLock
from agent_context._runtime.delivery import SubscriberQueue
from agent_context._runtime.event_loop import IoTask, IoThread, Timer, io_loop
from agent_context._runtime.executor import finalizer_thread
from agent_context._runtime.future import LONGEST_WAIT, Deferred, Failure, Reply
from agent_context._runtime.mailbox import Mailbox, peek_idle, post
from agent_context._runtime.reentrancy import in_scope, reentrancy_scope

__all__ = [
    "LONGEST_WAIT",
    "Deferred",
    "ErrorBoundary",
    "Failure",
    "FairAsyncLock",
    "IoTask",
    "IoThread",
    "Mailbox",
    "PoolActor",
    "Reply",
    "SubscriberQueue",
    "Timer",
    "finalizer_thread",
    "find_actor",
    "in_scope",
    "io_loop",
    "peek_idle",
    "post",
    "reentrancy_scope",
]
