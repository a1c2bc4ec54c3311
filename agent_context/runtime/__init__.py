"""How conversations run on pykka: mailboxes, a shared pool, the I/O loop, event delivery.

It knows nothing of conversations: any `pykka.Actor` can run on it.
"""

from agent_context.runtime.delivery import Delivery
from agent_context.runtime.fifo import Fifo
from agent_context.runtime.finalizer import finalizer
from agent_context.runtime.future import Failed, Later, Reply
from agent_context.runtime.guard import inside, is_inside
from agent_context.runtime.guarded import Guarded
from agent_context.runtime.io import IoLoop, Timer, io_loop
from agent_context.runtime.jobs import Job
from agent_context.runtime.mailbox import Mailbox, post
from agent_context.runtime.pool import PoolActor
from agent_context.runtime.registry import find_actor
from agent_context.runtime.thread import ThreadActor

__all__ = [
    "Delivery",
    "Failed",
    "Fifo",
    "Guarded",
    "IoLoop",
    "Job",
    "Later",
    "Mailbox",
    "PoolActor",
    "Reply",
    "ThreadActor",
    "Timer",
    "finalizer",
    "find_actor",
    "inside",
    "io_loop",
    "is_inside",
    "post",
]
