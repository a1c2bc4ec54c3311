"""The compressions of a conversation that run beside its turns.

They read the zones as they are, work on the I/O loop, and are applied between turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from agent_context._actor.compression_plan import plan_compression
from agent_context._actor.config import ActorConfig
from agent_context._actor.model_client import BoundModel, ModelClient
from agent_context._actor.state import ActorState
from agent_context._context.zones import Zones
from agent_context._runtime import Failure, IoTask, Reply, Timer, io_loop
from agent_context._validation import check_type
from agent_context.compression.executor import CompressionResult
from agent_context.compression.report import CompressionReport, ZoneTokens
from agent_context.compression.strategy import Strategy
from agent_context.errors import CompressionError, TurnTimeout
from agent_context.messages import new_id
from agent_context.options import SendOptions
from agent_context.protocol import Compress

__all__ = ["BackgroundCompressor", "CompressionFinished", "CompressionTimedOut"]

logger = logging.getLogger(__name__)

_TRIES: Final = 3


class CompressionFinished(Struct, frozen=True):
    """The task has ended; no result means that there was nothing to do."""

    job_id: str
    result: CompressionResult | None = None
    report: CompressionReport | None = None
    error: BaseException | None = None


class CompressionTimedOut(Struct, frozen=True):
    """The compression's deadline has passed."""

    job_id: str


@dataclass(slots=True, eq=False)
class _Job:
    ask: object
    """The message that asked for it; None if it runs ahead of need."""
    strategy: Strategy
    options: SendOptions
    client: ModelClient
    id: str = field(default_factory=new_id)
    reply: Reply[CompressionReport] = field(default_factory=Reply[CompressionReport])
    tries: int = 0
    task: IoTask | None = None
    timer: Timer | None = None


class BackgroundCompressor:
    """Running compressions, and the results that wait for the end of a turn."""

    __slots__ = ("_client", "_config", "_held", "_jobs", "_post", "_state")

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
        self._jobs: dict[str, _Job] = {}
        self._held: list[CompressionFinished] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def use_config(self, config: ActorConfig, client: ModelClient) -> None:
        """Use this configuration for every later compression."""
        self._config, self._client = config, client

    def accept(self, asked: Compress) -> Reply[CompressionReport]:
        """Start a compression that a caller asked for."""
        options = check_type("options", asked.options, SendOptions)
        strategy = check_type("strategy", asked.strategy or self._config.strategy, Strategy)
        return self._start(
            _Job(asked, strategy, options.merged_over(self._config.options), self._client)
        )

    def start_ahead(self, options: SendOptions, client: ModelClient) -> None:
        """Start a compression that will be needed soon, unless one is running."""
        if not self._jobs:
            reply = self._start(_Job(None, self._config.strategy, options, client))
            reply.add_done_callback(_log_failure)

    def _start(self, job: _Job) -> Reply[CompressionReport]:
        self._jobs[job.id] = job
        post, job_id = self._post, job.id
        job.timer = io_loop().call_later(
            job.options.timeout, lambda: post(CompressionTimedOut(job_id))
        )
        self._spawn(job)
        return job.reply

    def _spawn(self, job: _Job) -> None:
        post, zones = self._post, self._state.zones
        job.tries += 1

        async def work() -> None:
            try:
                post(await self._compress(job, zones))
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
                post(CompressionFinished(job.id, error=error))

        job.task = io_loop().spawn(work)

    async def _compress(self, job: _Job, zones: Zones) -> CompressionFinished:
        model = job.client.bind(job.options)
        result = await plan_compression(model, job.strategy, self._config.hook, zones)
        if result is not None:
            return CompressionFinished(job.id, result, result.report)
        tokens = await io_loop().offload(_zone_tokens, model, zones)
        report = CompressionReport(strategy="", before=tokens, after=tokens)
        return CompressionFinished(job.id, None, report)

    def finish(self, report: CompressionFinished, *, turn_runs: bool) -> None:
        """Handle the end of a task; while a turn runs, the result waits for the turn to end."""
        job = self._jobs.get(report.job_id)
        if job is None:
            return
        if report.result is not None and turn_runs:
            self._held.append(report)
        else:
            self._finish(job, report)

    def apply_held(self) -> None:
        """Apply the results that waited for a turn to end."""
        held, self._held = self._held, []
        for report in held:
            if (job := self._jobs.get(report.job_id)) is not None:
                self._finish(job, report)

    def _finish(self, job: _Job, report: CompressionFinished) -> None:
        if report.result is not None and not self._state.apply_compression(report.result):
            if job.tries < _TRIES:
                self._spawn(job)
                return
            changing = "the part that was to be compressed kept changing; nothing was compressed"
            report = CompressionFinished(job.id, error=CompressionError(changing))
        self._forget(job)
        done = report.report
        if done is None:
            job.reply.set_error(report.error or CompressionError("the compression was cancelled"))
            return
        self._state.on_committed(lambda error: job.reply.set(Failure(error) if error else done))

    def _forget(self, job: _Job) -> None:
        del self._jobs[job.id]
        if job.timer is not None:
            job.timer.cancel()

    def _abort(self, job: _Job, error: BaseException) -> None:
        if job.task is not None:
            job.task.cancel()
        self._forget(job)
        job.reply.set_error(error)

    def time_out(self, job_id: str) -> None:
        """Fail a compression whose deadline has passed."""
        job = self._jobs.get(job_id)
        if job is not None:
            seconds = job.options.timeout
            self._abort(job, TurnTimeout(f"the compression took longer than {seconds} s"))

    def cancel_request(self, asked: object) -> None:
        """Cancel the compression that this message started."""
        for job in list(self._jobs.values()):
            if job.ask is asked:
                self._abort(job, CompressionError("nobody waits for the compression any more"))

    def close(self, error: BaseException) -> None:
        """Cancel everything: the conversation stops."""
        for job in list(self._jobs.values()):
            self._abort(job, error)


def _zone_tokens(model: BoundModel, zones: Zones) -> ZoneTokens:
    now = model.count_exactly(zones, ())
    return ZoneTokens(
        immutable=now.immutable, compressed=now.compressed, incremental=now.incremental
    )


def _log_failure(reply: Reply[CompressionReport]) -> None:
    if (error := reply.error()) is not None:
        logger.warning("compression ahead of need failed, the next turn tries again: %s", error)
