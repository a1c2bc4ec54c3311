"""Carrying out a compression: plan, ask the model if needed, validate, and return the replacement.

Nothing here changes a conversation. The result is a `CompressionResult`, which applies to the zones
that it was made from, and to any that only had messages added since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.tool_call_groups import legal_cuts
from agent_context._context.zones import Zones
from agent_context._runtime import io_loop
from agent_context._runtime.executor import ElasticExecutor
from agent_context._runtime.fork_safety import ForkLocal
from agent_context.compression.hook import CompressionHook, apply_hook
from agent_context.compression.recall import Recall
from agent_context.compression.report import CompressionReport, ZoneTokens
from agent_context.compression.strategy import CompressionPlan, PlanningView, Strategy
from agent_context.compression.summarizer import Summarizer, SummaryRejected
from agent_context.errors import CompressionError
from agent_context.messages import MessageId, Usage
from agent_context.tools.offload import in_thread

__all__ = ["CompressionExecutor", "CompressionResult", "plan_step"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompressionResult:
    """A smaller form of some zones."""

    base: Zones
    """The zones that it was made from."""
    upto: int
    """How many of the oldest incremental messages of `base` it read."""
    compressed: PersistentVector
    kept: tuple[StoredMessage, ...]
    """What replaces those messages."""
    summary: StoredMessage | None
    report: CompressionReport

    def apply_to(self, zones: Zones) -> Zones | None:
        """`zones` with this applied; None if the messages that it was made from have changed."""
        base = self.base
        unchanged = zones.compressed is base.compressed and zones.immutable is base.immutable
        if not unchanged or not zones.incremental.shares_prefix(base.incremental, self.upto):
            return None
        rest = zones.incremental.tail(self.upto)
        return zones.compress(self.compressed, PersistentVector.of((*self.kept, *rest)))


@dataclass(slots=True)
class _StepState:
    """The progress of a strategy's steps."""

    zones: Zones
    cut: int = 0
    """Offset from an index of `zones` to one of the base."""
    upto: int = 0
    names: list[str] = field(default_factory=list[str])
    shortened: list[MessageId] = field(default_factory=list[MessageId])
    summary: StoredMessage | None = None
    usage: list[Usage] = field(default_factory=list[Usage])


# A strategy of a program may take long: that is no matter of the other conversations.
_workers = ForkLocal(lambda: ElasticExecutor("agent-context-strategies", size=2, keep=2, cap=1024))


async def plan_step(step: Strategy, view: PlanningView) -> CompressionPlan | None:
    """What a strategy plans, on a thread where it may take its time."""
    return cast("CompressionPlan | None", await in_thread(partial(step.plan, view), _workers))


class CompressionExecutor:
    """Carries out strategies for one conversation, with one set of options."""

    def __init__(
        self,
        *,
        count: Callable[[StoredMessage], int],
        summarizer: Summarizer,
        hook: CompressionHook | None,
    ) -> None:
        self._count = count
        self._summarizer = summarizer
        self._hook = hook

    async def run(
        self,
        strategy: Strategy,
        zones: Zones,
        budget: int,
        room: int | None = None,
        *,
        pinned: frozenset[MessageId] = frozenset(),
        allow_newest: bool = False,
    ) -> CompressionResult | None:
        """Compress `zones` by `strategy`; None if there is nothing to do.

        The target is `budget` tokens; the window has room for `room`. `pinned` are the ids of
        messages that stay. See `PlanningView` for `allow_newest`.

        Raises `CompressionError` if a step fails or if the outcome isn't smaller.
        """
        before = await io_loop().offload(self._weigh, zones)
        done = _StepState(zones)
        steps = [step for step in strategy.steps if not isinstance(step, Recall)]
        for step in steps:
            if step is not strategy and self._weigh(done.zones).total <= budget:
                break
            view = PlanningView(done.zones, self._count, budget, room, allow_newest, pinned)
            await self._step(step, done, view, last=step is steps[-1])
        if not done.names:
            return None
        return await self._outcome(zones, done, before)

    def _weigh(self, zones: Zones) -> ZoneTokens:
        return ZoneTokens(
            immutable=sum(map(self._count, zones.immutable)),
            compressed=sum(map(self._count, zones.compressed)),
            incremental=sum(map(self._count, zones.incremental)),
        )

    async def _step(
        self, step: Strategy, done: _StepState, view: PlanningView, *, last: bool
    ) -> None:
        plan = await plan_step(step, view)
        if plan is None:
            return
        _check(plan, done.zones, step)
        try:
            await self._carry_out(plan, step, view, done)
        except SummaryRejected as refusal:
            if last:
                raise
            logger.warning("compression step %s: %s", step.name, refusal)

    async def _carry_out(
        self, plan: CompressionPlan, step: Strategy, view: PlanningView, done: _StepState
    ) -> None:
        zones = done.zones
        gone, stays = await io_loop().offload(view.split, plan.cut)
        if plan.cut and not gone and not plan.replaced:
            return
        incremental = zones.incremental
        for index, record in plan.replaced.items():
            incremental = incremental.replace(index, record)
        compressed = zones.compressed
        if plan.summary is not None:
            summary, usage = await self._summarizer.summarize(zones, plan.cut, gone, plan.summary)
            compressed = PersistentVector.of((summary,))
            done.summary = summary
            done.usage += usage
        kept = PersistentVector.of((*stays, *incremental.tail(plan.cut)))
        done.zones = zones.compress(compressed, kept)
        done.names.append(step.name)
        done.shortened += [record.id for i, record in plan.replaced.items() if i >= plan.cut]
        done.upto = max(done.upto, done.cut + max((plan.cut, *(i + 1 for i in plan.replaced))))
        done.cut += len(gone)

    async def _outcome(
        self, base: Zones, done: _StepState, before: ZoneTokens
    ) -> CompressionResult:
        zones, summary, upto = done.zones, done.summary, done.upto
        if self._hook is not None:
            zones, summary = await apply_hook(self._hook, zones, summary)
            upto = len(base.incremental)
        after = await io_loop().offload(self._weigh, zones)
        if after.total >= before.total:
            raise CompressionError(
                f"{'+'.join(done.names)} would take {after.total} tokens instead of "
                f"{before.total}; nothing was changed"
            )
        untouched = len(base.incremental) - upto
        kept = tuple(zones.incremental.head(len(zones.incremental) - untouched))
        report = CompressionReport(
            strategy="+".join(done.names),
            before=before,
            after=after,
            removed_ids=_removed_ids(base, zones),
            shortened_ids=tuple(done.shortened),
            summary_id=summary.id if summary else None,
            usage=Usage.total(done.usage),
        )
        return CompressionResult(base, upto, zones.compressed, kept, summary, report)


def _check(plan: CompressionPlan, zones: Zones, step: Strategy) -> None:
    if plan.cut and plan.cut not in legal_cuts(zones.incremental):
        raise CompressionError(
            f"{step.name} planned to cut at {plan.cut}, inside a group of messages that belong "
            "together; nothing was changed"
        )
    for index, record in plan.replaced.items():
        old = zones.incremental[index] if 0 <= index < len(zones.incremental) else None
        if old is None or (old.id, old.role, old.call_ids) != (
            record.id,
            record.role,
            record.call_ids,
        ):
            raise CompressionError(
                f"{step.name} planned to replace the message at {index} by another one than a "
                "form of it; nothing was changed"
            )


def _removed_ids(before: Zones, after: Zones) -> tuple[MessageId, ...]:
    left = {record.id for record in (*after.compressed, *after.incremental)}
    was = (*before.compressed, *before.incremental)
    return tuple(record.id for record in was if record.id not in left)
