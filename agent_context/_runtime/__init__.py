"""How conversations run on pykka: mailboxes, a shared pool, the I/O loop, event delivery.

It knows nothing of conversations: any `pykka.Actor` can run on it.
"""

from agent_context._runtime.async_lock import FairAsyncLock
from agent_context._runtime.delivery import SubscriberQueue
from agent_context._runtime.finalizer import finalizer_thread
from agent_context._runtime.future import Deferred, Failure, Reply
from agent_context._runtime.guarded import ErrorBoundary
from agent_context._runtime.io import IoThread, Timer, io_loop
from agent_context._runtime.jobs import IoTask
from agent_context._runtime.mailbox import Mailbox, post
from agent_context._runtime.pool import PoolActor
from agent_context._runtime.reentrancy import in_scope, reentrancy_scope
from agent_context._runtime.registry import find_actor
from agent_context._runtime.thread import ThreadActor

__all__ = [
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
    "ThreadActor",
    "Timer",
    "finalizer_thread",
    "find_actor",
    "in_scope",
    "io_loop",
    "post",
    "reentrancy_scope",
]
