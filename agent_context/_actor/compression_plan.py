"""Planning a compression: a strategy applied to a conversation's zones, with its model and hook."""

from __future__ import annotations

from agent_context._actor.model_client import BoundModel
from agent_context._context.zones import Zones
from agent_context._runtime import io_loop, reentrancy_scope
from agent_context.compression.executor import CompressionExecutor, CompressionResult
from agent_context.compression.hook import CompressionHook, HookResult
from agent_context.compression.strategy import Strategy
from agent_context.compression.summarizer import Summarizer
from agent_context.messages import Message, MessageId

__all__ = ["plan_compression"]


async def plan_compression(
    model: BoundModel,
    strategy: Strategy,
    hook: CompressionHook | None,
    zones: Zones,
    budget: int | None = None,
    room: int = 0,
    *,
    pinned: frozenset[MessageId] = frozenset(),
    allow_newest: bool = False,
) -> CompressionResult | None:
    """Apply `strategy` to `zones`; None if there is nothing to do.

    `budget` is what the three zones should take, in tokens; `room` is what the window has for
    them. Without a budget it aims at half of what there is. Messages whose ids are `pinned` stay,
    wherever the history is cut; see `PlanningView` for `allow_newest`. Raises `CompressionError`.
    """
    if budget is None:
        whole = await io_loop().offload(model.estimate, zones, ())
        stored = whole.immutable + whole.compressed + whole.incremental
        budget, room = stored // 2, whole.free + stored
    executor = CompressionExecutor(
        count=model.count,
        summarizer=Summarizer(model),
        hook=_guard(hook, model.conversation_id),
    )
    factor = model.calibration_factor
    return await executor.run(
        strategy,
        zones,
        int(budget / factor),
        int(room / factor),
        pinned=pinned,
        allow_newest=allow_newest,
    )


def _guard(hook: CompressionHook | None, conversation_id: str) -> CompressionHook | None:
    """Wrap the hook: it must not ask the conversation that waits for it."""
    if hook is None:
        return None
    call = hook

    def call_in_scope(summary: Message | None, kept: tuple[Message, ...]) -> HookResult | None:
        with reentrancy_scope(conversation_id):
            return call(summary, kept)

    return call_in_scope
