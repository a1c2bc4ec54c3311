"""Tool-call groups: which messages belong together, and where a history may be cut.

An assistant message with tool calls and all its results are one group, adjacent or not. A result
belongs to the nearest earlier call with its id. A call without a final result is open until a user
speaks or another call takes its id, and dead afterwards: an open call is never cut away, a dead
one may be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

from agent_context._context.stored_message import StoredMessage
from agent_context.messages import Role

__all__ = [
    "RecordSequence",
    "find_open_calls",
    "legal_cuts",
    "update_open_calls",
    "user_turn_starts",
]


class RecordSequence(Protocol):
    """A history that can be read from both ends."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[StoredMessage]: ...
    def __reversed__(self) -> Iterator[StoredMessage]: ...


def find_open_calls(records: RecordSequence) -> tuple[str, ...]:
    """Ids of the calls since the last user message that a later message may still answer."""
    closed: set[str] = set()
    pending: list[str] = []
    for record in reversed(records):
        if record.role is Role.USER:
            break
        if record.role is not Role.TOOL:
            calls = dict.fromkeys(reversed(record.call_ids))
            pending += [call for call in calls if call not in closed]
        if not record.interim:
            closed.update(record.call_ids)
    return tuple(reversed(pending))


def update_open_calls(pending: tuple[str, ...], record: StoredMessage) -> tuple[str, ...]:
    """The open calls after `record`."""
    if record.role is Role.USER:
        return ()
    if not record.call_ids or record.interim:
        return pending
    rest = tuple(call for call in pending if call not in record.call_ids)
    if record.role is Role.TOOL:
        return rest
    return rest + tuple(reversed(dict.fromkeys(reversed(record.call_ids))))


def legal_cuts(records: RecordSequence, pending: Collection[str] | None = None) -> Iterator[int]:
    """Where the history may be cut, newest first: `i` means that what precedes index `i` may go.

    `pending` are its open calls, if they are known. Lazy: it costs what is read of it. The last
    value is 0, which cuts nothing.
    """
    newest = _first_open(records, find_open_calls(records) if pending is None else pending)
    for index in _legal_cuts(records, frozenset()):
        if index <= newest:
            yield index
            newest = index - 1
    if newest >= 0:
        # Results whose call is nowhere hold nothing together; they must not forbid every cut.
        orphans = _orphans(records)
        yield from (index for index in _legal_cuts(records, orphans) if index <= newest)


def _legal_cuts(records: RecordSequence, orphans: frozenset[int]) -> Iterator[int]:
    """Every index with no result behind it whose call stands before it."""
    unmatched: set[str] = set()
    index = len(records)
    yield index
    for record in reversed(records):
        index -= 1
        if record.call_ids and index not in orphans:
            if record.role is Role.TOOL:
                unmatched.update(record.call_ids)
            else:
                unmatched.difference_update(record.call_ids)
        if not unmatched:
            yield index


def _orphans(records: RecordSequence) -> frozenset[int]:
    """Indexes of the results that no earlier message calls for."""
    called: set[str] = set()
    orphans: set[int] = set()
    for index, record in enumerate(records):
        if record.role is not Role.TOOL:
            called.update(record.call_ids)
        elif not called.issuperset(record.call_ids):
            orphans.add(index)
    return frozenset(orphans)


def _first_open(records: RecordSequence, open_now: Collection[str]) -> int:
    """The index of the first message with an open call; the length if there is none."""
    pending = set(open_now)
    index = len(records)
    first = index
    for record in reversed(records):
        if not pending:
            break
        index -= 1
        if record.role is Role.ASSISTANT and pending.intersection(record.call_ids):
            pending.difference_update(record.call_ids)
            first = index
    return first


def user_turn_starts(records: RecordSequence) -> Iterator[int]:
    """Indexes of the user messages, newest first."""
    index = len(records)
    for record in reversed(records):
        index -= 1
        if record.role is Role.USER:
            yield index
