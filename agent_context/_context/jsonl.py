"""Conversations as lines of JSON: a header, then one message a line with its zone and id.

    {"agent_context":1}
    {"id":"…","zone":"incremental","role":"user","content":"Hello"}

The message itself is in chat-completions form, so lines that other programs wrote can be read too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import orjson

from agent_context._context.chat_line import decode_line
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage, from_message, with_id
from agent_context._context.zones import Zone, Zones
from agent_context.errors import ImportFailed, InvalidMessage, InvalidOptions
from agent_context.messages import Message, MessageId, Role, new_id

__all__ = ["LoadedZones", "dump_zones", "load_zones"]

_FORMAT = 1
_HEADER = orjson.dumps({"agent_context": _FORMAT})


@dataclass(frozen=True, slots=True)
class LoadedZones:
    """What the zones become, and how many messages were read into them."""

    zones: Zones
    count: int


def dump_zones(zones: Zones, which: Iterable[Zone]) -> str:
    """The zones in `which` as lines, in the order of a request."""
    wanted = _check_zones(which)
    lines = [_HEADER]
    for zone in Zone:
        if zone in wanted:
            lines += (record.to_json_line(zone=zone.value) for record in zones.zone(zone))
    return b"\n".join((*lines, b"")).decode()


def _check_zones(which: Iterable[Zone]) -> set[Zone]:
    try:
        return {Zone(zone) for zone in which}
    except (ValueError, TypeError) as error:
        raise InvalidOptions(f"zones: any of {', '.join(Zone)}, as a list: {error}") from error


def load_zones(
    text: object, mode: Literal["replace", "append"], zones: Zones, *, is_new: bool
) -> LoadedZones:
    """The zones after reading `text` into them.

    Raises `ImportFailed` with the line that can't be read; see `protocol.FromJsonl` for `mode`.
    """
    if not isinstance(text, str):
        raise ImportFailed(0, f"a text is expected, not {type(text).__name__}")
    if mode not in {"replace", "append"}:
        raise InvalidOptions(f"mode is 'replace' or 'append', not {mode!r}")
    read = list(_parse_lines(text))
    if mode == "append":
        taken = {record.id for record in zones}
        new = [_with_free_id(record, taken) for _, record in read]
        return LoadedZones(zones.extend(new), len(new))
    open_immutable = is_new and not len(zones)
    placed = _sort_by_zone(read, system_first=open_immutable)
    immutable = placed[Zone.IMMUTABLE] if open_immutable else list(zones.immutable)
    own = set[MessageId]() if open_immutable else {record.id for record in immutable}
    compressed = [_with_free_id(record, own) for record in placed[Zone.COMPRESSED]]
    incremental = [_with_free_id(record, own) for record in placed[Zone.INCREMENTAL]]
    count = len(compressed) + len(incremental) + (len(immutable) if open_immutable else 0)
    return LoadedZones(
        Zones(
            PersistentVector.of(immutable) if open_immutable else zones.immutable,
            PersistentVector.of(compressed),
            PersistentVector.of(incremental),
        ),
        count,
    )


def _sort_by_zone(
    read: list[tuple[Zone | None, StoredMessage]], *, system_first: bool
) -> dict[Zone, list[StoredMessage]]:
    """Records by zone. An untagged line is incremental; leading system prompts are immutable."""
    placed: dict[Zone, list[StoredMessage]] = {zone: [] for zone in Zone}
    leading = system_first
    for zone, record in read:
        leading = leading and zone is None and record.role is Role.SYSTEM
        if zone is None:
            zone = Zone.IMMUTABLE if leading else Zone.INCREMENTAL  # noqa: PLW2901 - the default
        placed[zone].append(record)
    return placed


def _parse_lines(text: str) -> Iterator[tuple[Zone | None, StoredMessage]]:
    seen: set[MessageId] = set()
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if (read := decode_line(line)) is None:
            if not line.strip():
                continue
            fields = _parse_object(line, number)
            if "agent_context" in fields:
                _check_header(fields, number)
                continue
            read = _parse_record(fields, number)
        if (message_id := read[1].id) in seen:
            raise ImportFailed(number, f"the id {message_id!r} was used by an earlier line")
        seen.add(message_id)
        yield read


def _parse_object(line: str, number: int) -> dict[str, Any]:
    try:
        value = orjson.loads(line.encode("utf-8", "surrogatepass"))
    except orjson.JSONDecodeError as error:
        raise ImportFailed(number, f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ImportFailed(number, f"an object is expected, not {type(value).__name__}")
    return cast("dict[str, Any]", value)


def _check_header(fields: dict[str, Any], number: int) -> None:
    if fields["agent_context"] != _FORMAT:
        raise ImportFailed(
            number, f"format {fields['agent_context']!r} is not known; this reads {_FORMAT}"
        )
    if number != 1:
        raise ImportFailed(number, "a header stands on the first line only")


def _parse_record(fields: dict[str, Any], number: int) -> tuple[Zone | None, StoredMessage]:
    tag = fields.pop("zone", None)
    if tag is not None and tag not in set(Zone):
        raise ImportFailed(number, f"zone {tag!r} is not one of {', '.join(Zone)}")
    try:
        message = Message.model_validate(fields)
        return (Zone(tag) if tag is not None else None), from_message(message)
    except InvalidMessage as error:
        raise ImportFailed(number, str(error)) from error


def _with_free_id(record: StoredMessage, taken: set[MessageId]) -> StoredMessage:
    return with_id(record, new_id()) if record.id in taken else record
