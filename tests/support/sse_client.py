"""What a client reads of a stream of server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Frame", "read_frames"]


@dataclass(frozen=True)
class Frame:
    """One event."""

    event: str
    data: Any
    id: str | None = None


def read_frames(lines: Iterable[str]) -> Iterator[Frame]:
    """The events in these lines; comments are left out."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif fields:
            data = fields.get("data", "")
            parsed = data if data == "[DONE]" else json.loads(data)
            yield Frame(fields.get("event", ""), parsed, fields.get("id"))
            fields = {}
