"""The hook by which a program reviews a compression before it is applied."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.zones import Zones
from agent_context._runtime import Reply
from agent_context.errors import CompressionError
from agent_context.messages import Message, Role

__all__ = ["CompressionHook", "HookResult", "apply_hook"]

_TIMEOUT = 10.0
_PAIR = 2

HookResult = tuple[Message | None, Sequence[Message]]
CompressionHook = Callable[[Message | None, tuple[Message, ...]], HookResult | None]
"""Gets the summary (None if the strategy made none) and the incremental messages that stay, and
returns replacements for both, or None for no change. It runs on a thread of its own and has ten
seconds."""


async def apply_hook(
    editor: CompressionHook, zones: Zones, summary: StoredMessage | None
) -> tuple[Zones, StoredMessage | None]:
    """Apply a hook to the zones and the summary. Raises `CompressionError`."""
    kept = tuple(record.message for record in zones.incremental)
    shown = summary.message if summary else None
    try:
        async with asyncio.timeout(_TIMEOUT):
            wanted = await _run_on_thread(lambda: editor(shown, kept))
    except TimeoutError as error:
        raise CompressionError(
            f"the editor took longer than {_TIMEOUT:.0f} s; nothing was changed"
        ) from error
    except Exception as error:
        raise CompressionError(f"the editor failed: {error!r}; nothing was changed") from error
    if wanted is None:
        return zones, summary
    return _apply(zones, summary, wanted)


def _run_on_thread(work: Callable[[], HookResult | None]) -> Reply[HookResult | None]:
    reply: Reply[HookResult | None] = Reply()

    def run() -> None:
        try:
            reply.set(work())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            reply.set_error(error)

    # A daemon: an editor that never returns must not keep the process alive.
    threading.Thread(target=run, name="agent-context-editor", daemon=True).start()
    return reply


def _apply(
    zones: Zones, summary: StoredMessage | None, wanted: HookResult
) -> tuple[Zones, StoredMessage | None]:
    new_summary, kept = _check_messages(wanted, had_summary=summary is not None)
    old = {record.id: record for record in zones.incremental}
    records = PersistentVector.of(_record(message, old) for message in kept)
    _check_groups(zones.incremental, records)
    if new_summary is None:
        return zones.compress(zones.compressed, records), summary
    at_rest = from_message(new_summary)
    return zones.compress(PersistentVector.of((at_rest,)), records), at_rest


def _check_messages(wanted: object, *, had_summary: bool) -> tuple[Message | None, list[Message]]:
    summary, kept = _take_apart(wanted)
    if len({message.id for message in kept}) < len(kept):
        raise CompressionError("the editor returned a message twice; nothing was changed")
    if not had_summary and summary is None:
        return None, kept
    if not isinstance(summary, Message) or summary.role is Role.TOOL or not summary.text.strip():
        raise CompressionError(
            "the editor must return a summary with text (and only where there was one); "
            "nothing was changed"
        )
    return summary, kept


def _take_apart(wanted: object) -> tuple[object, list[Message]]:
    if isinstance(wanted, tuple | list) and len(wanted := cast("list[Any]", wanted)) == _PAIR:
        summary, kept = wanted
        if isinstance(kept, Sequence) and all(isinstance(m, Message) for m in cast("Any", kept)):
            return summary, list(cast("Sequence[Message]", kept))
    raise CompressionError(
        "the editor must return (summary, messages) or None, "
        f"not {type(wanted).__name__}; nothing was changed"
    )


def _record(message: Message, old: dict[str, StoredMessage]) -> StoredMessage:
    same = old.get(message.id)
    return same if same is not None and same.message == message else from_message(message)


def _check_groups(before: PersistentVector, after: PersistentVector) -> None:
    new = _unmatched_calls(after) - _unmatched_calls(before)
    if new:
        raise CompressionError(
            f"the editor split the calls {sorted(new)} from their results; nothing was changed"
        )


def _unmatched_calls(records: PersistentVector) -> set[str]:
    calls = {call for r in records if r.role is Role.ASSISTANT for call in r.call_ids}
    results = {call for r in records if r.role is Role.TOOL for call in r.call_ids}
    return calls ^ results
