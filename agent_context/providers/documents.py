"""Documents that a model should know, as far as there is room for them."""

from __future__ import annotations

import asyncio
import html
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from agent_context._context.tokens import counter
from agent_context.errors import InvalidOptions
from agent_context.messages import Message
from agent_context.providers.context import SessionContext
from agent_context.providers.provider import AgentLike, ContextProvider
from agent_context.sessions.session import AgentSession
from agent_context.skills.metadata import one_line
from agent_context.tools.result_parts import clean_text

__all__ = ["DocumentsProvider", "Selection"]


class Selection(Struct, frozen=True):
    """Which documents there is room for."""

    text: str
    """These documents, and the names of those that were left out."""
    taken: tuple[str, ...]
    left_out: tuple[str, ...]
    tokens: int


class DocumentsProvider(ContextProvider):
    """Gives documents to the model, whole, in their order, as long as they fit the budget.

    One that doesn't fit is left out and named; a later, smaller one may still fit. The text is the
    same in every run, so that the vendor's prompt cache finds it again.
    """

    kind = "knowledge"

    def __init__(
        self,
        documents: Mapping[str, str],
        *,
        budget: int = 8_000,
        place: Literal["instructions", "messages"] = "instructions",
        vocabulary: str = "o200k_base",
        source_id: str = "documents",
    ) -> None:
        """`budget` is in tokens of the `vocabulary`. A user message holds them as `messages`."""
        if budget < 0:
            raise InvalidOptions(f"budget: a number of tokens, not {budget}")
        if place not in {"instructions", "messages"}:
            raise InvalidOptions(f"place: 'instructions' or 'messages', not {place!r}")
        super().__init__(source_id)
        self.documents: Mapping[str, str] = dict(documents)
        self.budget = budget
        self.place = place
        self._vocabulary = vocabulary
        self._chosen: Selection | None = None
        self._message: Message | None = None

    @classmethod
    def from_files(
        cls,
        paths: Iterable[str | os.PathLike[str]],
        *,
        budget: int = 8_000,
        place: Literal["instructions", "messages"] = "instructions",
        vocabulary: str = "o200k_base",
        source_id: str = "documents",
    ) -> DocumentsProvider:
        """With what these files hold now. Raises `InvalidOptions` for one that can't be read."""
        documents: dict[str, str] = {}
        for path in map(Path, paths):
            name = path.name if path.name not in documents else path.as_posix()
            documents[name] = _read(path)
        return cls(
            documents, budget=budget, place=place, vocabulary=vocabulary, source_id=source_id
        )

    def choose(self) -> Selection:
        """What fits; worked out once, which may take a while."""
        if self._chosen is None:
            self._chosen = _select(self.documents, self.budget, counter(self._vocabulary).count)
        return self._chosen

    async def before_run(
        self,
        *,
        agent: AgentLike,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Add the documents, and note in the state which were left out."""
        del agent, session
        chosen = await asyncio.to_thread(self.choose)
        state.update(taken=list(chosen.taken), left_out=list(chosen.left_out))
        if not chosen.text:
            return
        if self.place == "instructions":
            context.extend_instructions(self, chosen.text)
            return
        self._message = self._message or Message.user(chosen.text)
        context.extend_messages(self, [self._message])


def _select(documents: Mapping[str, str], budget: int, count: Callable[[str], int]) -> Selection:
    pieces = {name: _piece(name, text) for name, text in documents.items()}
    taken: list[str] = []
    room = budget
    for name, piece in pieces.items():
        cost = count(piece)
        if cost <= room:
            taken.append(name)
            room -= cost
    # Pieces cost a little more or less together, and what is left out is named as well.
    while count(text := _format(pieces, taken)) > budget and taken:
        taken.pop()
    if (tokens := count(text)) > budget:
        text, tokens = "", 0
    left_out = tuple(name for name in pieces if name not in taken)
    return Selection(text, tuple(taken), left_out, tokens)


# A document that held these tags could end itself, and speak as whoever wrote the instructions.
_TAG = re.compile(r"<(?=[\s\u200b-\u200f\u2060\ufeff/]*document)", re.IGNORECASE)


def _piece(name: str, text: str) -> str:
    content = _TAG.sub("&lt;", clean_text(text.rstrip()))
    return f'<document name="{_attribute(name)}">\n{content}\n</document>'


def _attribute(name: str) -> str:
    return html.escape(one_line(name))


def _format(pieces: Mapping[str, str], taken: list[str]) -> str:
    told = [pieces[name] for name in taken]
    if left_out := [name for name in pieces if name not in taken]:
        names = ", ".join(map(_attribute, left_out))
        told.append(f"Documents that there was no room for: {names}")
    return "\n\n".join(told)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise InvalidOptions(f"documents: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidOptions(f"documents: {path} is no text in UTF-8: {error}") from error
