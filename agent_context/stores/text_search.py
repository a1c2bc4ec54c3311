"""What can be searched for in an entry, and which entries hold it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from agent_context.stores.store import Entry

__all__ = ["extract_text", "query_words", "rank_entries"]

NAMES: Final = frozenset({"id", "role", "type", "kind"})
"""Fields that say what something is; nobody searches a conversation for them."""

WORD: Final = re.compile(r"\w+")


def extract_text(payload: bytes) -> str:
    """All texts in a JSON object, a line each; nothing for what is not JSON."""
    try:
        # Not orjson: this one takes a lone surrogate that somebody escaped.
        value = json.loads(payload)
    except ValueError:
        return ""
    text = "\n".join(_texts(value))
    return text.encode("utf-8", "replace").decode()


def query_words(text: str) -> list[str]:
    """The words that a query asks for, in lower case."""
    clean = text.encode("utf-8", "replace").decode()
    return list(dict.fromkeys(WORD.findall(clean.lower())))


def rank_entries(entries: Iterable[Entry], text: str, *, limit: int) -> Sequence[Entry]:
    """Entries with the most words of `text` in them, as parts of words too; of equals the newest.

    It reads every entry: for a store without an index.
    """
    words = query_words(text)
    found: list[tuple[int, int, Entry]] = []
    for entry in entries:
        said = extract_text(entry.payload).lower()
        if hits := sum(word in said for word in words):
            found.append((-hits, -entry.seq, entry))
    found.sort(key=lambda hit: hit[:2])
    return tuple(entry for _, _, entry in found[: max(limit, 0)])


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            if name not in NAMES:
                yield from _texts(item)
