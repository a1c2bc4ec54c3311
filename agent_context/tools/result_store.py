"""Long results: the model reads their head and tail, and the whole is kept for when it asks."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol

from agent_context.errors import ToolError
from agent_context.messages import Part, TextPart
from agent_context.tools.function import FunctionTool, tool

__all__ = [
    "READ_RESULT_TOOL",
    "InMemoryToolResults",
    "ToolResultStore",
    "make_read_result_tool",
    "truncate_parts",
]

READ_RESULT_TOOL = "read_tool_result"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


class ToolResultStore(Protocol):
    """Where the full texts of long results are."""

    async def keep(self, id: str, text: str) -> None:
        """Keep a text. Raises `StoreError` if it can't be."""
        ...

    async def fetch(self, id: str) -> str | None:
        """The text, or None if there is none of that id."""
        ...


class InMemoryToolResults:
    """Keeps results while the program runs; the oldest go when there is no room."""

    def __init__(self, texts: Mapping[str, str] | None = None, *, room: int = 16_000_000) -> None:
        """`texts` are there from the start; `room` is in characters."""
        self._room = room
        self._texts: OrderedDict[str, str] = OrderedDict(texts or {})

    @property
    def texts(self) -> Mapping[str, str]:
        """What is kept, by id."""
        return dict(self._texts)

    async def keep(self, id: str, text: str) -> None:
        """Keep a text, in the place of others if need be."""
        self._texts[id] = text
        self._texts.move_to_end(id)
        while len(self._texts) > 1 and sum(map(len, self._texts.values())) > self._room:
            self._texts.popitem(last=False)

    async def fetch(self, id: str) -> str | None:
        """The text, if it is still there."""
        return self._texts.get(id)


async def truncate_parts(
    parts: Sequence[Part], call_id: str, most: int, keeper: ToolResultStore
) -> tuple[Part, ...]:
    """The parts, with each text of more than `most` characters cut in its middle and kept."""
    return tuple([await _truncate_part(part, call_id, most, keeper) for part in parts])


async def _truncate_part(part: Part, call_id: str, most: int, keeper: ToolResultStore) -> Part:
    if not isinstance(part, TextPart) or len(part.text) <= most:
        return part
    text, head, tail = part.text, most - most // 2, most // 2
    left_out = f"{len(text) - head - tail} of {len(text)} characters left out"
    try:
        kept_as = await _keep_text(text, call_id, keeper)
        note = f"{left_out}; {READ_RESULT_TOOL} shows them: id {kept_as!r}, offset {head}"
    except Exception as error:  # noqa: BLE001 - the call has worked: only its middle is lost
        note = f"{left_out}, which could not be kept: {error}"
    return TextPart(text=f"{text[:head]}\n[… {note} …]\n{text[len(text) - tail :]}")


async def _keep_text(text: str, call_id: str, keeper: ToolResultStore) -> str:
    """Keep a text under the call's id, or one like it: some servers give an id out twice.

    An id that no store could take as a name, or no model could repeat, is replaced.
    """
    if not _PLAIN.fullmatch(call_id):
        call_id = (
            f"call-{hashlib.sha256(call_id.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
        )
    name, number = call_id, 1
    while (other := await keeper.fetch(name)) is not None and other != text:
        number += 1
        name = f"{call_id}-{number}"
    await keeper.keep(name, text)
    return name


def make_read_result_tool(keeper: ToolResultStore, page: int) -> FunctionTool:
    """The tool that shows what was left out of a result, at most `page` characters at once."""
    return _reader_of(page)(keeper)


@lru_cache(maxsize=64)
def _reader_of(page: int) -> Callable[[ToolResultStore], FunctionTool]:
    """Makes the tool for a store. Its schema is made once for a page size, and not in each run."""

    class Reader:
        def __init__(self, keeper: ToolResultStore) -> None:
            self._keeper = keeper

        @tool(name=READ_RESULT_TOOL, max_result=page + 100)
        async def read(self, id: str, offset: int = 0, limit: int = page) -> str:
            """Read more of a tool result that was too long to be shown whole.

            Args:
                id: The id that the shortened result names.
                offset: The first character to show, counted from 0.
                limit: How many characters to show.
            """
            text = await self._keeper.fetch(id)
            if text is None:
                raise ToolError(f"No result is kept under the id {id!r}.")
            start = min(max(offset, 0), len(text))
            end = min(start + max(1, min(limit, page)), len(text))
            return f"{text[start:end]}\n[characters {start} to {end} of {len(text)}]"

    return lambda keeper: Reader(keeper).read
