"""Pinned tool results, which compressions keep: what the model must not forget while it works.

A result says so itself, in two fields: `protected` (why) and `subject` (what it is about). It is in
use as long as no later result of the same kind is about the same subject, and as long as all that
is in use, newest first, takes at most half of the room that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from agent_context._context.stored_message import StoredMessage
from agent_context._context.tool_call_groups import RecordSequence
from agent_context.messages import Message, Role

__all__ = ["pin", "pinned_indexes"]


def pin(message: Message, why: str, *, subject: str) -> Message:
    """Mark a tool result as pinned."""
    return message.model_copy(update={"protected": why, "subject": subject})


def pinned_indexes(
    history: RecordSequence, count: Callable[[StoredMessage], int], room: int
) -> frozenset[int]:
    """Indexes of the protected results in use, and of all that belongs to the same calls.

    Together they take at most `room` tokens.
    """
    marked = list(_newest_of_each(history))
    if not marked:
        return frozenset()
    records, owners = tuple(history), _owners(history)
    found: set[int] = set()
    for index in marked:
        group = _whole_group(records, owners, index) - found
        size = sum(count(records[member]) for member in group)
        if size <= room:
            found |= group
            room -= size
    return frozenset(found)


def _newest_of_each(history: RecordSequence) -> Iterator[int]:
    """Indexes of the marked results that no later one supersedes, newest first."""
    seen: set[tuple[str, str]] = set()
    index = len(history)
    for record in reversed(history):
        index -= 1
        if record.role is not Role.TOOL:
            continue
        if (about := record.pin) is not None and about not in seen:
            seen.add(about)
            yield index


def _owners(history: RecordSequence) -> Mapping[int, int]:
    """For each result the index of the nearest earlier message with its call."""
    latest: dict[str, int] = {}
    owners: dict[int, int] = {}
    for index, record in enumerate(history):
        if record.role is not Role.TOOL:
            latest |= dict.fromkeys(record.call_ids, index)
        elif (owner := latest.get(record.call_ids[0])) is not None:
            owners[index] = owner
    return owners


def _whole_group(
    records: tuple[StoredMessage, ...], owners: Mapping[int, int], index: int
) -> frozenset[int]:
    """The calls and all their results; nothing if a final one is missing, or the message itself.

    A call that was never answered would be open again without the user's words behind it.
    """
    owner = owners.get(index)
    if owner is None:
        return frozenset()
    results = {place for place, other in owners.items() if other == owner}
    final = [place for place in results if not records[place].interim]
    answered = {call for place in final for call in records[place].call_ids}
    return (
        frozenset({owner, *results})
        if answered.issuperset(records[owner].call_ids)
        else frozenset()
    )
