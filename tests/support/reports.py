"""What processes that run tests side by side tell each other."""

from __future__ import annotations

from typing import Any


def readable(data: Any) -> Any:
    """A report whose texts are all Unicode: what a test logs may be none, and can't be sent."""
    match data:
        case str():
            return data.encode("utf-8", "backslashreplace").decode("utf-8")
        case dict():
            return {readable(key): readable(value) for key, value in data.items()}
        case list():
            return [readable(item) for item in data]
        case tuple():
            return tuple(readable(item) for item in data)
        case _:
            return data
