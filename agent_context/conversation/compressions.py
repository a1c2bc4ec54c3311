"""The compressions of a conversation that run beside its turns.

They read a snapshot, work on the I/O loop, and are swapped in between turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

from agent_context.checks import checked
from agent_context.compression.report import CompressionReport, ZoneTokens
from agent_context.compression.run import Compaction
from agent_context.compression.strategy import Strategy
from agent_context.conversation import edits
from agent_context.conversation.calls import compaction_of
from agent_context.conversation.exchange import Exchange
from agent_context.conversation.settings import Settings
from agent_context.conversation.state import State
from agent_context.errors import (
    CompressionError,
    TurnTimeout,
)
from agent_context.messages import new_id
from agent_context.options import SendOptions
from agent_context.protocol import Compress
from agent_context.runtime import Failed, Job, Reply, Timer, io_loop
from agent_context.zones import Zones

__all__ = ["CompressionEnded", "CompressionOverdue", "Compressions"]

logger = logging.getLogger(__name__)

_TRIES = 3


class CompressionEnded(Struct, frozen=True):
    """The job is over. Without a compaction there was nothing to do."""

    work_id: str
    compaction: Compaction | None = None
    report: CompressionReport | None = None
    error: BaseException | None = None


class CompressionOverdue(Struct, frozen=True):
    """The compression's deadline has passed."""

    work_id: str


@dataclass(slots=True, eq=False)
class _Work:
    asked: object
    strategy: Strategy
    options: SendOptions
    exchange: Exchange
    id: str = field(default_factory=new_id)
    reply: Reply[CompressionReport] = field(default_factory=Reply[CompressionReport])
    tries: int = 0
    job: Job | None = None
    timer: Timer | None = None


class Compressions:
    """What is being compressed, and what waits for the end of a turn to be swapped in."""

    __slots__ = ("_exchange", "_held", "_post", "_settings", "_state", "_works")

    def __init__(
        self,
        state: State,
        settings: Settings,
        exchange: Exchange,
        post: Callable[[object], bool],
    ) -> None:
        self._state = state
        self._settings = settings
        self._exchange = exchange
        self._post = post
        self._works: dict[str, _Work] = {}
        self._held: list[CompressionEnded] = []

    def __len__(self) -> int:
        return len(self._works)

    def use(self, settings: Settings, exchange: Exchange) -> None:
        """Begin every later compression by these."""
        self._settings, self._exchange = settings, exchange

    def accept(self, asked: Compress) -> Reply[CompressionReport]:
        """Begin a compression that somebody asked for."""
        options = checked("options", asked.options, SendOptions).over(self._settings.options)
        strategy = checked("strategy", asked.strategy or self._settings.strategy, Strategy)
        return self._start(_Work(asked, strategy, options, self._exchange))

    def ahead(self, options: SendOptions, exchange: Exchange) -> None:
        """Begin a compression that will be needed soon, unless one is under way."""
        if not self._works:
            reply = self._start(_Work(None, self._settings.strategy, options, exchange))
            reply.add_done_callback(_log_failure)

    def _start(self, work: _Work) -> Reply[CompressionReport]:
        self._works[work.id] = work
        post, work_id = self._post, work.id
        work.timer = io_loop().call_later(
            work.options.timeout, lambda: post(CompressionOverdue(work_id))
        )
        self._spawn(work)
        return work.reply

    def _spawn(self, work: _Work) -> None:
        post, work_id, zones = self._post, work.id, self._state.zones
        work.tries += 1

        async def run() -> None:
            try:
                post(await self._compressed(work, zones))
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
                post(CompressionEnded(work_id, error=error))

        work.job = io_loop().spawn(run)

    async def _compressed(self, work: _Work, zones: Zones) -> CompressionEnded:
        exchange, options = work.exchange, work.options
        editor = self._settings.editor
        compaction = await compaction_of(exchange, options, work.strategy, editor, zones)
        if compaction is not None:
            return CompressionEnded(work.id, compaction, compaction.report)
        now = await io_loop().offload(exchange.weigh, zones, (), options)
        tokens = ZoneTokens(
            immutable=now.immutable, compressed=now.compressed, incremental=now.incremental
        )
        report = CompressionReport(strategy="", before=tokens, after=tokens)
        return CompressionEnded(work.id, None, report)

    def ended(self, report: CompressionEnded, *, turn_runs: bool) -> None:
        """Take in a job's end; while a turn runs, what it made waits for the turn's end."""
        work = self._works.get(report.work_id)
        if work is None:
            return
        if report.compaction is not None and turn_runs:
            self._held.append(report)
        else:
            self._finish(work, report)

    def release(self) -> None:
        """A turn has ended: swap in what waited for it."""
        held, self._held = self._held, []
        for report in held:
            if (work := self._works.get(report.work_id)) is not None:
                self._finish(work, report)

    def _finish(self, work: _Work, done: CompressionEnded) -> None:
        if done.compaction is not None and edits.swap(self._state, done.compaction) is None:
            if work.tries < _TRIES:
                self._spawn(work)
                return
            done = CompressionEnded(
                work.id,
                error=CompressionError(
                    "the part that was to be compressed kept changing; nothing was compressed"
                ),
            )
        self._forget(work)
        if done.report is None:
            work.reply.set_error(done.error or CompressionError("the compression was cancelled"))
            return
        self._state.when_kept(lambda error: work.reply.set(Failed(error) if error else done.report))

    def _forget(self, work: _Work) -> None:
        del self._works[work.id]
        if work.timer is not None:
            work.timer.cancel()

    def _abort(self, work: _Work, error: BaseException) -> None:
        if work.job is not None:
            work.job.cancel()
        self._forget(work)
        work.reply.set_error(error)

    def overdue(self, work_id: str) -> None:
        """The deadline of this compression has passed."""
        work = self._works.get(work_id)
        if work is not None:
            seconds = work.options.timeout
            self._abort(work, TurnTimeout(f"the compression took longer than {seconds} s"))

    def abandon(self, asked: object) -> None:
        """Cancel the compression that this message began."""
        for work in list(self._works.values()):
            if work.asked is asked:
                self._abort(work, CompressionError("nobody waits for the compression any more"))

    def close(self, error: BaseException) -> None:
        """End everything now: the conversation stops."""
        for work in list(self._works.values()):
            self._abort(work, error)


def _log_failure(reply: Reply[CompressionReport]) -> None:
    try:
        reply.get(timeout=0)
    except Exception as error:  # noqa: BLE001 - nobody asked: the next turn tries again
        logger.warning("compression ahead of need failed: %s", error)
