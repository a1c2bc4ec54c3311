"""The user's last word on a compression."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

from agent_context.errors import CompressionError
from agent_context.messages import Message, Role
from agent_context.records import Record, record_of
from agent_context.runtime import Reply
from agent_context.vector import Vector
from agent_context.zones import Zones

__all__ = ["Edit", "Editor", "edited"]

_TIMEOUT = 10.0
_PAIR = 2

Edit = tuple[Message | None, Sequence[Message]]
Editor = Callable[[Message | None, tuple[Message, ...]], Edit | None]
"""Sees the summary (None if the strategy made none) and the incremental messages that stay, and
returns what should be there instead, or None for no change. It runs on a thread of its own and
has ten seconds."""


async def edited(
    editor: Editor, zones: Zones, summary: Record | None
) -> tuple[Zones, Record | None]:
    """The zones and the summary as `editor` wants them. Raises `CompressionError`."""
    kept = tuple(record.message for record in zones.incremental)
    shown = summary.message if summary else None
    try:
        async with asyncio.timeout(_TIMEOUT):
            wanted = await _on_own_thread(lambda: editor(shown, kept))
    except TimeoutError as error:
        raise CompressionError(
            f"the editor took longer than {_TIMEOUT:.0f} s; nothing was changed"
        ) from error
    except Exception as error:
        raise CompressionError(f"the editor failed: {error!r}; nothing was changed") from error
    if wanted is None:
        return zones, summary
    return _applied(zones, summary, wanted)


def _on_own_thread(work: Callable[[], Edit | None]) -> Reply[Edit | None]:
    reply: Reply[Edit | None] = Reply()

    def run() -> None:
        try:
            reply.set(work())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            reply.set_error(error)

    # A daemon: an editor that never returns must not keep the process alive.
    threading.Thread(target=run, name="agent-context-editor", daemon=True).start()
    return reply


def _applied(zones: Zones, summary: Record | None, wanted: Edit) -> tuple[Zones, Record | None]:
    new_summary, kept = _checked(wanted, had_summary=summary is not None)
    old = {record.id: record for record in zones.incremental}
    records = Vector.of(_record(message, old) for message in kept)
    _check_groups(zones.incremental, records)
    if new_summary is None:
        return zones.compress(zones.compressed, records), summary
    at_rest = record_of(new_summary)
    return zones.compress(Vector.of((at_rest,)), records), at_rest


def _checked(wanted: object, *, had_summary: bool) -> tuple[Message | None, list[Message]]:
    summary, kept = _taken_apart(wanted)
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


def _taken_apart(wanted: object) -> tuple[object, list[Message]]:
    if isinstance(wanted, tuple | list) and len(wanted := cast("list[Any]", wanted)) == _PAIR:
        summary, kept = wanted
        if isinstance(kept, Sequence) and all(isinstance(m, Message) for m in cast("Any", kept)):
            return summary, list(cast("Sequence[Message]", kept))
    raise CompressionError(
        "the editor must return (summary, messages) or None, "
        f"not {type(wanted).__name__}; nothing was changed"
    )


def _record(message: Message, old: dict[str, Record]) -> Record:
    same = old.get(message.id)
    return same if same is not None and same.message == message else record_of(message)


def _check_groups(before: Vector, after: Vector) -> None:
    new = _unmatched(after) - _unmatched(before)
    if new:
        raise CompressionError(
            f"the editor split the calls {sorted(new)} from their results; nothing was changed"
        )


def _unmatched(records: Vector) -> set[str]:
    calls = {call for r in records if r.role is Role.ASSISTANT for call in r.calls}
    results = {call for r in records if r.role is Role.TOOL for call in r.calls}
    return calls ^ results
