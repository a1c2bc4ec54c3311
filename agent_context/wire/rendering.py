"""A request's body as bytes, of which only what is new is rendered.

What changes from turn to turn stands behind what was said, so that a request's bytes up to its last
stored message are the beginning of the next request's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import orjson

from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.tool_call_groups import legal_cuts
from agent_context._context.zones import Zones
from agent_context.messages import Role
from agent_context.wire.dialect import CONTENT_BLOCKS, OUTPUT_ITEMS, Dialect
from agent_context.wire.message_blocks import breakpoints, render_messages
from agent_context.wire.names import function_name, speaker_name
from agent_context.wire.parts import chat_parts, is_supported, placeholder_text
from agent_context.wire.repair import RepairedHistory, placeholder_user_message, repair_slice
from agent_context.wire.response_items import PARAGRAPH, render_items

__all__ = ["RequestRenderer", "render"]


@dataclass(frozen=True, slots=True)
class _StablePrefix:
    """The beginning of a request, as far as nothing that is said later should change it."""

    zones: Zones
    count: int
    """How many incremental records it covers; the other zones it covers whole."""
    dialect: Dialect
    text: memoryview
    """Its messages with commas between: a part of an earlier body, which is not copied."""
    last: Role | None
    """The role of its last message; None if it has no message."""
    has_user: bool
    calls: frozenset[str] = frozenset()
    """The ids of its calls, where they must be unique in a request."""

    def begins(self, zones: Zones, dialect: Dialect) -> bool:
        """Whether `zones` begin with the records that it covers."""
        return (
            _same(self.zones.immutable, zones.immutable)
            and _same(self.zones.compressed, zones.compressed)
            and self.zones.incremental.shares_prefix(zones.incremental, self.count)
            and self.dialect == dialect
        )

    def stands(self, tail: _Suffix) -> bool:
        """Whether it is unchanged by what follows: no late result, nothing to merge."""
        if self.dialect.merge_same_role and self.last is not Role.TOOL and tail.legal.records:
            return self.last is not tail.legal.records[0].role and not tail.answers_earlier()
        return not tail.answers_earlier()


@dataclass(frozen=True, slots=True)
class _Suffix:
    """What follows the settled beginning, repaired on its own."""

    stored: tuple[StoredMessage, ...]
    trailing: tuple[StoredMessage, ...]
    legal: RepairedHistory

    @staticmethod
    def of(
        stored: Iterable[StoredMessage], trailing: Sequence[StoredMessage], before: _StablePrefix
    ) -> _Suffix:
        stored = tuple(stored)
        legal = repair_slice((*stored, *trailing), before.dialect, before.calls)
        return _Suffix(stored, tuple(trailing), legal)

    def answers_earlier(self) -> bool:
        """Whether there is a result whose call is not here."""
        called: set[str] = set()
        for record in chain(self.stored, self.trailing):
            if record.role is Role.TOOL and not called.issuperset(record.call_ids):
                return True
            called.update(record.call_ids)
        return False

    def settling_point(self, dialect: Dialect) -> int:
        """How many of the stored records nothing that is said later should change; 0 if unknown."""
        if any(record.role is Role.TOOL for record in self.trailing):
            return 0
        if dialect.api == "messages":
            # What the next request may mark stays out: a mark is a part of its message.
            first = min(breakpoints(self.stored), default=len(self.stored))
            return next((cut for cut in legal_cuts(self.stored) if cut <= first), 0)
        if not dialect.merge_same_role:
            return next(legal_cuts(self.stored))
        # The last message may still grow, and a cut must not divide one that was merged.
        # A result's source is its call's, which may have been merged into an earlier message.
        pairs = zip(self.legal.sources, self.legal.records, strict=True)
        starts = (source for source, record in pairs if record.role is not Role.TOOL)
        whole = {start for start in starts if start < len(self.stored)}
        last = max(whole, default=0)
        return next((cut for cut in legal_cuts(self.stored) if cut <= last and cut in whole), 0)


class RequestRenderer:
    """A conversation's rendered messages. Any number of threads may use it at once."""

    __slots__ = ("_settled",)

    def __init__(self) -> None:
        # Replaced as a whole, never changed: who reads an older one renders more, never wrongly.
        self._settled: _StablePrefix | None = None

    def body(
        self,
        head: Mapping[str, Any],
        zones: Zones,
        trailing: Sequence[StoredMessage],
        dialect: Dialect,
        foot: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The JSON object with the fields of `head`, all messages, and the fields of `foot`.

        The messages are repaired and rendered. The bytes depend on the arguments alone, not on
        what was rendered before.
        """
        end = b"]," + orjson.dumps(foot)[1:] if foot else b"]}"
        settled = self._settled
        if settled is not None and settled.begins(zones, dialect):
            tail = _Suffix.of(zones.incremental.tail(settled.count), trailing, settled)
            if settled.stands(tail):
                return self._join(head, zones, settled, tail, end)
        nothing = _StablePrefix(zones, 0, dialect, memoryview(b""), None, has_user=False)
        tail = _Suffix.of(zones, trailing, nothing)
        return self._join(head, zones, nothing, tail, end)

    def missing(self, zones: Zones) -> int:
        """About how many records of `zones` the next body has to render."""
        settled = self._settled
        if settled is None or not settled.begins(zones, settled.dialect):
            return len(zones)
        return len(zones.incremental) - settled.count

    def forget(self) -> None:
        """Let go of the bytes; the next body is rendered from nothing."""
        self._settled = None

    def _join(
        self,
        head: Mapping[str, Any],
        zones: Zones,
        before: _StablePrefix,
        tail: _Suffix,
        end: bytes,
    ) -> bytes:
        dialect = before.dialect
        fields = {name: value for name, value in head.items() if name != dialect.list_name}
        start = orjson.dumps(fields | {dialect.list_name: []})[:-2]
        said: list[bytes | memoryview] = [before.text] if before.last is not None else []
        said += _render_all(tail, dialect, first=not said)
        if (
            not any(said)
            or _must_user_speak(before, tail, dialect)
            or (dialect.needs_user and not _has_user(before, tail.legal.records))
        ):
            said += _render_stand_in(placeholder_user_message(None), dialect)
        parts = [start, *chain.from_iterable((piece, b",") for piece in said if piece)]
        parts[-1] = end
        body = b"".join(parts)
        self._settle(zones, before, tail, memoryview(body)[len(start) :], said)
        return body

    def _settle(
        self,
        zones: Zones,
        before: _StablePrefix,
        tail: _Suffix,
        text: memoryview,
        said: Sequence[bytes | memoryview],
    ) -> None:
        cut = tail.settling_point(before.dialect)
        count = len(zones.incremental) - len(tail.stored) + cut
        added = bisect_left(tail.legal.sources, cut)
        if not added or count < 0:
            return
        records = tail.legal.records[:added]
        sizes = [len(piece) for piece in said[: added + (before.last is not None)] if piece]
        end = sum(sizes) + max(len(sizes) - 1, 0)
        has_user, calls = _has_user(before, records), _calls(before, records)
        self._settled = _StablePrefix(
            zones, count, before.dialect, text[:end], records[-1].role, has_user, calls
        )


def _render_all(tail: _Suffix, dialect: Dialect, *, first: bool) -> list[bytes]:
    records = tail.legal.records
    if dialect.api == "messages":
        count = bisect_left(tail.legal.sources, len(tail.stored))
        marks = breakpoints(records[:count]) if dialect.marks_cache else ()
        return render_messages(records, dialect, marks=marks, first=first)
    return [
        render(each, dialect, late=place > 0 or not first) for place, each in enumerate(records)
    ]


def _render_stand_in(record: StoredMessage, dialect: Dialect) -> list[bytes]:
    if dialect.api == "messages":
        return render_messages([record], dialect)
    return [render(record, dialect)]


def _must_user_speak(before: _StablePrefix, tail: _Suffix, dialect: Dialect) -> bool:
    """Whether the request would end with the model's words, and may not."""
    last = tail.legal.records[-1].role if tail.legal.records else before.last
    return dialect.user_last and last is Role.ASSISTANT


def _same(one: PersistentVector, other: PersistentVector) -> bool:
    return one is other or (len(one) == len(other) and one.shares_prefix(other, len(one)))


def _has_user(before: _StablePrefix, records: Iterable[StoredMessage]) -> bool:
    return before.has_user or any(record.role is Role.USER for record in records)


def _calls(before: _StablePrefix, records: Iterable[StoredMessage]) -> frozenset[str]:
    if not before.dialect.unique_call_ids:
        return before.calls
    new = [call for each in records if each.role is Role.ASSISTANT for call in each.call_ids]
    return before.calls.union(new) if new else before.calls


_PLAIN = frozenset({"role", "content", "tool_call_id"})
_OURS = frozenset(
    {"reasoning", "interrupted", "leaked_markup", "finish_reason", "origin", "name", "tool_calls"}
    | {"interim", CONTENT_BLOCKS, OUTPUT_ITEMS}
    | _PLAIN
)


def render(record: StoredMessage, dialect: Dialect, *, late: bool = False) -> bytes:
    """The message as it goes over the wire; of most it is the stored bytes as they lie.

    It is `late` if another one precedes it. As items it may be several, with commas between, or
    none.
    """
    if dialect.api == "responses":
        return render_items(record, dialect)
    fields = record.fields()
    role = record.role.value
    if record.role is Role.SYSTEM:
        role = (late and dialect.late_system_role) or dialect.system_role
    plain = len(fields) == 2 or fields.keys() <= _PLAIN
    if plain and role == fields["role"] and isinstance(fields["content"], str):
        return record.body
    wire = {"role": role, "content": _content(fields["content"], record.role, dialect)}
    own = _is_own(fields, dialect)
    wire |= _reasoning(fields, dialect, own=own)
    if fields.get("tool_calls"):
        returns = _is_from(fields, dialect)
        wire["tool_calls"] = [_call(call, own=returns) for call in fields["tool_calls"]]
    if "tool_call_id" in fields:
        wire["tool_call_id"] = fields["tool_call_id"]
    if fields.get("name") and dialect.names:
        wire["name"] = speaker_name(fields["name"])
    if own:
        wire |= {name: value for name, value in fields.items() if name not in _OURS}
    return orjson.dumps(wire)


def _is_own(fields: Mapping[str, Any], dialect: Dialect) -> bool:
    """Whether what only its vendor understands goes back to it; OpenAI refuses what it sent."""
    return dialect.keep_reasoning and _is_from(fields, dialect)


def _is_from(fields: Mapping[str, Any], dialect: Dialect) -> bool:
    """Whether the vendor that it goes to has sent it. Fields of calls go back to any."""
    origin: Mapping[str, Any] = fields.get("origin") or {}
    return origin.get("vendor") == dialect.vendor


def _reasoning(fields: Mapping[str, Any], dialect: Dialect, *, own: bool) -> dict[str, Any]:
    thought = fields.get("reasoning") if own else None
    if dialect.backfill_reasoning and fields.get("tool_calls"):
        return {dialect.reasoning_field: thought or dialect.empty_reasoning}
    return {} if thought is None else {dialect.reasoning_field: thought}


def _call(call: dict[str, Any], *, own: bool) -> dict[str, Any]:
    function: dict[str, Any] = call["function"]
    known = {"name": function_name(function["name"]), "arguments": function["arguments"]}
    if own:
        return call | {"function": function | known}
    return {"id": call["id"], "type": "function", "function": known}


def _content(content: object, role: Role, dialect: Dialect) -> object:
    """Content as it is taken; some servers drop a list in silence where no user speaks."""
    if isinstance(content, str):
        return content
    given = chat_parts(content)
    parts = [_part(part, role, dialect) for part in given]
    marked = any(part.keys() & dialect.part_fields for part in parts)
    only_text = all(part["type"] == "text" for part in given)
    if role is Role.USER or marked or (role is Role.ASSISTANT and not only_text):
        return parts or ""
    apart = "" if role is Role.ASSISTANT else PARAGRAPH
    return apart.join(part["text"] for part in parts)


def _part(part: dict[str, Any], role: Role, dialect: Dialect) -> dict[str, Any]:
    kind = part["type"]
    if kind == "text":
        return {n: v for n, v in part.items() if n in _TEXT or n in dialect.part_fields}
    # No API takes anything but text from an assistant, few from a tool or in instructions.
    if role is not Role.USER or not is_supported(part, dialect):
        return {"type": "text", "text": placeholder_text(part)}
    if kind != "image_url":
        return part if dialect.part_fields else {n: v for n, v in part.items() if n not in _CACHE}
    image = cast("dict[str, Any]", part["image_url"])
    sent = {name: value for name, value in image.items() if name not in {"width", "height"}}
    kept = {n: v for n, v in part.items() if n in dialect.part_fields}
    return {"type": "image_url", "image_url": sent, **kept}


_TEXT = frozenset({"type", "text"})
_CACHE = frozenset({"cache_control"})
