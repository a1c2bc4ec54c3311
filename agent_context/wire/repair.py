"""What any history needs to be legal in a request. Pure, linear, and idempotent.

Stored zones are never touched: this is the view that goes out. A record that is already as it must
be is passed on as the same object.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

import orjson

from agent_context._context.stored_message import StoredMessage
from agent_context.messages import MessageId, Role
from agent_context.wire.arguments import to_object_text
from agent_context.wire.call_fragments import arguments_text
from agent_context.wire.dialect import OUTPUT_ITEMS, Dialect
from agent_context.wire.lenient_json import as_list, as_mapping
from agent_context.wire.parts import chat_parts

__all__ = [
    "CONTINUE",
    "NO_RESULT",
    "STRICTEST_DIALECT",
    "RepairKind",
    "RepairNote",
    "RepairedHistory",
    "placeholder_user_message",
    "repair_history",
    "repair_slice",
    "repair_with_notes",
]

STRICTEST_DIALECT = Dialect(name="any", vendor="", max_call_id=40, needs_user=True)
"""Rules that satisfy every chat-completions API that is known."""

NO_RESULT = "[no result: the call was cancelled, or its result is missing]"
"""What answers a call that nothing answers."""

CONTINUE = "Continue."
"""What a user says who must say something."""


class RepairKind(StrEnum):
    """What was done to a message."""

    DROPPED = "dropped"
    MOVED = "moved"
    ADDED = "added"
    RENAMED = "renamed"
    """Ids of its calls, or the id that it answers."""
    REWRITTEN = "rewritten"
    """Arguments of its calls."""
    MERGED = "merged"


@dataclass(frozen=True, slots=True)
class RepairNote:
    """One thing that was changed."""

    index: int
    """Among the records that were given; their number for what was added at the end."""
    id: MessageId
    what: RepairKind
    why: str


@dataclass(frozen=True, slots=True)
class RepairedHistory:
    """A legal history, and how it came about."""

    records: list[StoredMessage]
    sources: list[int]
    """For each record the index of the one it stands for, in order. A tool result's is its call's,
    a merged message's that of its first part, and the stand-in user's is the number of records."""
    notes: list[RepairNote]


def repair_history(
    records: Sequence[StoredMessage], rules: Dialect = STRICTEST_DIALECT
) -> list[StoredMessage]:
    """The history as it may be sent."""
    return repair_with_notes(records, rules).records


def repair_with_notes(
    records: Sequence[StoredMessage], rules: Dialect = STRICTEST_DIALECT
) -> RepairedHistory:
    """The history as it may be sent, and what was changed for it."""
    legal = repair_slice(records, rules)
    users = (record for record in legal.records if record.role is Role.USER)
    if not legal.records or (rules.needs_user and next(users, None) is None):
        stand_in = placeholder_user_message(legal.records[-1] if legal.records else None)
        legal.records.append(stand_in)
        legal.sources.append(len(records))
        legal.notes.append(
            RepairNote(len(records), stand_in.id, RepairKind.ADDED, "a user must have spoken")
        )
    return legal


def repair_slice(
    records: Sequence[StoredMessage], rules: Dialect, taken: AbstractSet[str] = frozenset()
) -> RepairedHistory:
    """The same for a part of a history, which may be empty and have no user.

    `taken` are the ids of the calls before it; they matter where ids are unique in a request.
    """
    notes: list[RepairNote] = []
    unique = set(taken) if rules.unique_call_ids else None
    ids = _Ids(rules.max_call_id, rules.plain_call_ids, unique)
    pairs = list(_legal(records, _answers(records, notes), ids, notes))
    if rules.merge_same_role:
        pairs = list(_merge(pairs, notes))
    notes.sort(key=attrgetter("index"))
    return RepairedHistory([record for _, record in pairs], [index for index, _ in pairs], notes)


def placeholder_user_message(last: StoredMessage | None) -> StoredMessage:
    """What speaks for a user after `last`.

    It stands at the very end: whatever is said next, what precedes it goes out unchanged.
    """
    name = f"{last.id if last else ''}/user"
    return _record(name, Role.USER, {"role": "user", "content": CONTINUE})


_PLAIN_ID = re.compile(r"[a-zA-Z0-9_-]+")
_Answers = dict[int, list[int | None]]
"""For the index of each message with calls, the index of each call's result."""


def _answers(records: Sequence[StoredMessage], notes: list[RepairNote]) -> _Answers:
    """A result goes to the nearest earlier call with its id; what finds none left is dropped.

    An interim one makes way for the next.
    """
    answers: _Answers = {}
    unanswered: dict[str, tuple[int, list[int]]] = {}
    interim: dict[tuple[int, str], list[int]] = {}
    for index, record in enumerate(records):
        if not record.call_ids:
            continue
        if record.role is Role.ASSISTANT:
            answers[index] = [None] * len(record.call_ids)
            unanswered.update((call, (index, places)) for call, places in _places(record.call_ids))
        elif (found := unanswered.get(record.call_ids[0])) is None:
            notes.append(
                RepairNote(index, record.id, RepairKind.DROPPED, "it answers no earlier call")
            )
        else:
            caller, places = found
            interims = interim.setdefault((caller, record.call_ids[0]), [])
            if not (places or interims):
                notes.append(
                    RepairNote(index, record.id, RepairKind.DROPPED, "its call is already answered")
                )
                continue
            place = places.pop() if places else interims.pop()
            if (earlier := answers[caller][place]) is not None:
                why = "a later result took its place"
                notes.append(RepairNote(earlier, records[earlier].id, RepairKind.DROPPED, why))
            answers[caller][place] = index
            if record.interim:
                interims.append(place)
    return answers


def _places(calls: tuple[str, ...]) -> Iterable[tuple[str, list[int]]]:
    """Where each id stands among the calls, last place first."""
    places: dict[str, list[int]] = {}
    for place in range(len(calls) - 1, -1, -1):
        places.setdefault(calls[place], []).append(place)
    return places.items()


@dataclass(frozen=True, slots=True)
class _Ids:
    """What ids of calls may be."""

    limit: int | None
    plain: bool
    taken: set[str] | None
    """Those of earlier messages, which may not come again; None if they may."""

    def of(self, caller: StoredMessage) -> tuple[str, ...]:
        """Legal ids for its calls; the same object if they are already."""
        ids = _legal_ids(caller.call_ids, self.limit, plain=self.plain)
        if self.taken is None:
            return ids
        if not self.taken.isdisjoint(ids):
            ids = tuple(
                _new_id(f"{caller.id}/{call}", place, self.limit, self.taken)
                if call in self.taken
                else call
                for place, call in enumerate(ids)
            )
        self.taken.update(ids)
        return ids


def _legal(
    records: Sequence[StoredMessage], answers: _Answers, ids: _Ids, notes: list[RepairNote]
) -> Iterator[tuple[int, StoredMessage]]:
    for index, record in enumerate(records):
        if record.role is Role.TOOL:
            continue
        if record.call_ids and record.role is Role.ASSISTANT:
            for answer in _group(records, index, answers[index], ids, notes):
                yield index, answer
        elif _is_blank(record):
            notes.append(RepairNote(index, record.id, RepairKind.DROPPED, "it says nothing"))
        else:
            yield index, record


def _group(
    records: Sequence[StoredMessage],
    index: int,
    results: list[int | None],
    legal: _Ids,
    notes: list[RepairNote],
) -> Iterator[StoredMessage]:
    """A message with calls, and a result for each of them."""
    caller = _with_object_arguments(records[index])
    if caller is not records[index]:
        why = "arguments are one JSON object"
        notes.append(RepairNote(index, caller.id, RepairKind.REWRITTEN, why))
    ids = legal.of(caller)
    if ids is not caller.call_ids:
        notes.append(
            RepairNote(index, caller.id, RepairKind.RENAMED, "ids are unique, short and not empty")
        )
    yield _with_call_ids(caller, ids)
    previous = index
    for place, (name, result) in enumerate(zip(ids, results, strict=True)):
        if result is None:
            missing = _no_result(caller, place, name)
            notes.append(RepairNote(index, missing.id, RepairKind.ADDED, "a call has no result"))
            yield missing
            continue
        if result != previous + 1:
            why = "a result follows its call, in the order of the calls"
            notes.append(RepairNote(result, records[result].id, RepairKind.MOVED, why))
        previous = result
        yield _answering(records[result], name)


def _legal_ids(calls: tuple[str, ...], limit: int | None, *, plain: bool) -> tuple[str, ...]:
    """Ids that are unique, not empty and not too long; the same object if they are already."""
    longest = limit if limit is not None else max(map(len, calls))
    good = {call for call in calls if 0 < len(call) <= longest}
    if plain:
        good = {call for call in good if _PLAIN_ID.fullmatch(call)}
    if len(good) == len(calls):
        return calls
    first = {calls[place]: place for place in range(len(calls) - 1, -1, -1)}
    taken = set(good)
    return tuple(
        call if call in good and first[call] == place else _new_id(call, place, limit, taken)
        for place, call in enumerate(calls)
    )


def _new_id(call: str, place: int, limit: int | None, taken: set[str]) -> str:
    digest = hashlib.sha256(f"{place}/{call}".encode()).hexdigest()
    name = f"call_{digest[:16]}"[-(limit or 21) :]
    while name in taken:
        digest = hashlib.sha256(digest.encode()).hexdigest()
        name = digest[: limit or 21]
    taken.add(name)
    return name


def _with_call_ids(caller: StoredMessage, ids: tuple[str, ...]) -> StoredMessage:
    if ids is caller.call_ids:
        return caller
    fields = caller.fields()
    calls = cast("list[dict[str, Any]]", fields["tool_calls"])
    fields["tool_calls"] = [call | {"id": name} for call, name in zip(calls, ids, strict=True)]
    return _record(caller.id, caller.role, fields, ids)


def _with_object_arguments(caller: StoredMessage) -> StoredMessage:
    """The message with arguments that servers can parse; the same object if they are so already."""
    fields = caller.fields()
    items = map(as_mapping, as_list(fields.get(OUTPUT_ITEMS)))
    called = [item for item in items if item.get("type") == "function_call"]
    places = cast(
        "list[dict[str, Any]]", [*(call["function"] for call in fields["tool_calls"]), *called]
    )
    written = [arguments_text(place.get("arguments")) for place in places]
    legal = list(map(to_object_text, written))
    if legal == written:
        return caller
    for place, text in zip(places, legal, strict=True):
        place["arguments"] = text
    return _record(caller.id, caller.role, fields, caller.call_ids)


def _answering(result: StoredMessage, call: str) -> StoredMessage:
    if result.call_ids == (call,):
        return result
    return _record(result.id, result.role, result.fields() | {"tool_call_id": call}, (call,))


def _no_result(caller: StoredMessage, place: int, call: str) -> StoredMessage:
    fields = {"role": "tool", "content": NO_RESULT, "tool_call_id": call}
    return _record(f"{caller.id}/{place}", Role.TOOL, fields, (call,))


def _record(
    name: MessageId, role: Role, fields: Mapping[str, Any], calls: tuple[str, ...] = ()
) -> StoredMessage:
    return StoredMessage(name, role, bytes(memoryview(orjson.dumps(fields))), calls)


_BLANK = re.compile(
    rb'\{"role":"[a-z]+","content":(?:(?P<parts>\[)|(?:"(?:[ \t]|\\[nrtf])*"|null)[,}])'
)


def _is_blank(record: StoredMessage) -> bool:
    """Whether a message's content is nothing, or white space only."""
    found = _BLANK.match(record.body)
    if found is None or not found["parts"]:
        return found is not None
    return not chat_parts(record.fields()["content"])


def _merge(
    pairs: Iterable[tuple[int, StoredMessage]], notes: list[RepairNote]
) -> Iterator[tuple[int, StoredMessage]]:
    """Neighbours of one role as one message; tool messages stay single."""
    first = 0
    for role, group in groupby(pairs, key=lambda pair: pair[1].role):
        run = list(group)
        if role is Role.TOOL:
            yield from ((first, record) for _, record in run)
            continue
        first = run[0][0]
        if len(run) == 1:
            yield from run
            continue
        why = "the one before has the same role"
        notes += [RepairNote(index, record.id, RepairKind.MERGED, why) for index, record in run[1:]]
        yield run[0][0], _join([record for _, record in run])


def _join(run: list[StoredMessage]) -> StoredMessage:
    """The last message of the run, saying what all of them say."""
    every = [record.fields() for record in run]
    fields = every[-1] | {"content": _join_content([each["content"] for each in every])}
    if len({_vendor(each) for each in every}) == 1:
        thoughts = [each["reasoning"] for each in every if each.get("reasoning")]
        fields |= {"reasoning": "\n\n".join(thoughts)} if thoughts else {}
    fields.pop(OUTPUT_ITEMS, None)
    if len({each.get("name") for each in every}) > 1:
        fields.pop("name", None)
    return _record(run[0].id, run[0].role, fields, run[-1].call_ids)


def _vendor(fields: Mapping[str, Any]) -> object:
    origin: Mapping[str, Any] = fields.get("origin") or {}
    return origin.get("vendor")


def _join_content(contents: list[str | list[dict[str, Any]]]) -> str | list[dict[str, Any]]:
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(text for text in cast("list[str]", contents) if text.strip())
    lists = (
        [{"type": "text", "text": content}] if isinstance(content, str) else content
        for content in contents
        if content
    )
    return [part for parts in lists for part in parts]
