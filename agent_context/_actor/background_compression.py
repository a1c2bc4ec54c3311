"""The compressions of a conversation that run beside its turns.

They read a snapshot, work on the I/O loop, and are swapped in between turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

from agent_context._actor import commands
from agent_context._actor.config import ActorConfig
from agent_context._actor.model_client import ModelClient
from agent_context._actor.state import ActorState
from agent_context._actor.turn_task import plan_compression
from agent_context._context.zones import Zones
from agent_context._runtime import Failure, IoTask, Reply, Timer, io_loop
from agent_context._validation import check_type
from agent_context.compression.executor import CompressionResult
from agent_context.compression.report import CompressionReport, ZoneTokens
from agent_context.compression.strategy import Strategy
from agent_context.errors import (
    CompressionError,
    TurnTimeout,
)
from agent_context.messages import new_id
from agent_context.options import SendOptions
from agent_context.protocol import Compress

__all__ = ["BackgroundCompressor", "CompressionEnded", "CompressionOverdue"]

logger = logging.getLogger(__name__)

_TRIES = 3


class CompressionEnded(Struct, frozen=True):
    """The job is over. Without a compaction there was nothing to do."""

    work_id: str
    compaction: CompressionResult | None = None
    report: CompressionReport | None = None
    error: BaseException | None = None


class CompressionOverdue(Struct, frozen=True):
    """The compression's deadline has passed."""

    work_id: str


@dataclass(slots=True, eq=False)
class _Job:
    asked: object
    strategy: Strategy
    options: SendOptions
    client: ModelClient
    id: str = field(default_factory=new_id)
    reply: Reply[CompressionReport] = field(default_factory=Reply[CompressionReport])
    tries: int = 0
    job: IoTask | None = None
    timer: Timer | None = None


class BackgroundCompressor:
    """What is being compressed, and what waits for the end of a turn to be swapped in."""

    __slots__ = ("_client", "_config", "_held", "_post", "_state", "_works")

    def __init__(
        self,
        state: ActorState,
        config: ActorConfig,
        client: ModelClient,
        post: Callable[[object], bool],
    ) -> None:
        self._state = state
        self._config = config
        self._client = client
        self._post = post
        self._works: dict[str, _Job] = {}
        self._held: list[CompressionEnded] = []

    def __len__(self) -> int:
        return len(self._works)

    def use_config(self, config: ActorConfig, client: ModelClient) -> None:
        """Begin every later compression by these."""
        self._config, self._client = config, client

    def accept(self, asked: Compress) -> Reply[CompressionReport]:
        """Begin a compression that somebody asked for."""
        options = check_type("options", asked.options, SendOptions).merged_over(
            self._config.options
        )
        strategy = check_type("strategy", asked.strategy or self._config.strategy, Strategy)
        return self._start(_Job(asked, strategy, options, self._client))

    def start_ahead(self, options: SendOptions, client: ModelClient) -> None:
        """Begin a compression that will be needed soon, unless one is under way."""
        if not self._works:
            reply = self._start(_Job(None, self._config.strategy, options, client))
            reply.add_done_callback(_log_failure)

    def _start(self, work: _Job) -> Reply[CompressionReport]:
        self._works[work.id] = work
        post, work_id = self._post, work.id
        work.timer = io_loop().call_later(
            work.options.timeout, lambda: post(CompressionOverdue(work_id))
        )
        self._spawn(work)
        return work.reply

    def _spawn(self, work: _Job) -> None:
        post, work_id, zones = self._post, work.id, self._state.zones
        work.tries += 1

        async def run() -> None:
            try:
                post(await self._run(work, zones))
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
                post(CompressionEnded(work_id, error=error))

        work.job = io_loop().spawn(run)

    async def _run(self, work: _Job, zones: Zones) -> CompressionEnded:
        client, options = work.client, work.options
        editor = self._config.editor
        compaction = await plan_compression(client, options, work.strategy, editor, zones)
        if compaction is not None:
            return CompressionEnded(work.id, compaction, compaction.report)
        now = await io_loop().offload(client.count_tokens, zones, (), options)
        tokens = ZoneTokens(
            immutable=now.immutable, compressed=now.compressed, incremental=now.incremental
        )
        report = CompressionReport(strategy="", before=tokens, after=tokens)
        return CompressionEnded(work.id, None, report)

    def finish(self, report: CompressionEnded, *, turn_runs: bool) -> None:
        """Take in a job's end; while a turn runs, what it made waits for the turn's end."""
        work = self._works.get(report.work_id)
        if work is None:
            return
        if report.compaction is not None and turn_runs:
            self._held.append(report)
        else:
            self._finish(work, report)

    def apply_held(self) -> None:
        """A turn has ended: swap in what waited for it."""
        held, self._held = self._held, []
        for report in held:
            if (work := self._works.get(report.work_id)) is not None:
                self._finish(work, report)

    def _finish(self, work: _Job, done: CompressionEnded) -> None:
        if (
            done.compaction is not None
            and commands.apply_compression(self._state, done.compaction) is None
        ):
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
        self._state.on_committed(
            lambda error: work.reply.set(Failure(error) if error else done.report)
        )

    def _forget(self, work: _Job) -> None:
        del self._works[work.id]
        if work.timer is not None:
            work.timer.cancel()

    def _abort(self, work: _Job, error: BaseException) -> None:
        if work.job is not None:
            work.job.cancel()
        self._forget(work)
        work.reply.set_error(error)

    def time_out(self, work_id: str) -> None:
        """The deadline of this compression has passed."""
        work = self._works.get(work_id)
        if work is not None:
            seconds = work.options.timeout
            self._abort(work, TurnTimeout(f"the compression took longer than {seconds} s"))

    def cancel(self, asked: object) -> None:
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
