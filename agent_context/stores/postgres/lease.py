"""The sign of life of one store: while it is renewed, nobody takes over what the store owns."""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Final
from uuid import uuid4

from agent_context.errors import StoreError, StoreUnavailable
from agent_context.stores.postgres.connection_pool import ConnectionPool

__all__ = ["Lease"]

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE: Final = 5
"""Renewals within the time of one lease."""

_PATIENCE: Final = 2.0
"""Seconds that an end waits for the server; without it, the lease runs out by itself."""

# Only the server's clock counts. What dead processes left is no use to anybody.
_BEAT: Final = """
with gone as (
    delete from {s}.node
    where id <> %(id)s and lease_until < clock_timestamp() - interval '1 day'
)
insert into {s}.node as n (id, lease_until)
values (%(id)s, clock_timestamp() + make_interval(secs => %(lease)s))
on conflict (id) do update set lease_until = excluded.lease_until
"""
_END: Final = """
with freed as (update {s}.conversation set owner = null where owner = %(id)s)
delete from {s}.node where id = %(id)s
"""


class Lease:
    """Renewed by a thread of its own, from the first `hold` on."""

    def __init__(self, database: ConnectionPool, *, seconds: float, node: str | None) -> None:
        self.seconds = seconds
        # No two are ever the same: a process that starts again is not the one that it was.
        self.owner = f"{node or f'{socket.gethostname()}:{os.getpid()}'}:{uuid4().hex}"
        self._database = database
        self._ended = Event()
        self._lock = Lock()
        self._thread: Thread | None = None
        self._renewed = float("-inf")

    @property
    def held(self) -> bool:
        """Whether it was ever needed."""
        return self._renewed > float("-inf")

    def ensure(self) -> None:
        """Make sure that it runs, as far as this process can know. Raises `StoreUnavailable`."""
        if self.age() < self.seconds / 2:
            return
        with self._lock:
            if self.age() < self.seconds / 2:
                return  # others waited for the same
            self._renew_once()
            if self._thread is None and not self._ended.is_set():
                self._thread = self._start()

    def _start(self) -> Thread:
        """Raises `StoreUnavailable` if no thread can be had: what is claimed would be lost soon."""
        thread = Thread(target=self._run, name="agent-context-lease", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._renewed = float("-inf")
            raise StoreUnavailable(
                f"no thread could be started to keep the lease: {error}"
            ) from None
        return thread

    def age(self) -> float:
        """Seconds since it was renewed."""
        return time.monotonic() - self._renewed

    def stop(self) -> None:
        """Have its thread end it soon. A finalizer may call it anywhere."""
        self._ended.set()

    def end(self) -> None:
        """Let others take at once what the store owns."""
        self.stop()
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_PATIENCE)  # it closes the connection itself
        else:
            self._database.close()

    def _run(self) -> None:
        self._renew()
        with suppress(StoreError):
            self._database.run(
                lambda connection: connection.execute(self._database.sql(_END), {"id": self.owner})
            )
        self._database.close()

    def _renew(self) -> None:
        failing = False
        while not self._ended.wait(self.seconds / RENEWALS_PER_LEASE):
            try:
                self._renew_once()
            except StoreError as error:
                if not failing:
                    logger.warning("The lease of %s can't be renewed: %s", self.owner, error)
                failing = True
            else:
                if failing:
                    logger.warning("The lease of %s is renewed again", self.owner)
                failing = False

    def _renew_once(self) -> None:
        begun = time.monotonic()  # the lease begins later than this, never earlier
        self._database.run(
            lambda connection: connection.execute(
                self._database.sql(_BEAT), {"id": self.owner, "lease": self.seconds}
            )
        )
        self._renewed = begun
