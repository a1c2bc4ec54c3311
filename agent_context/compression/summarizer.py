"""Asking the model for a summary, within the model's own window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from agent_context._context.persistent_vector import EMPTY, PersistentVector
from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.token_breakdown import TokenBreakdown
from agent_context._context.tool_call_groups import legal_cuts
from agent_context._context.zones import Zones
from agent_context.backend import ContextBackend
from agent_context.compression.strategy import SummaryRequest
from agent_context.errors import BackendError, CompressionError, ErrorKind
from agent_context.messages import Completion, FinishReason, Message, Usage
from agent_context.models import ModelFacts
from agent_context.options import SendOptions

__all__ = ["Summarizer", "SummaryModel", "SummaryRejected"]

_HEADING = "Summary so far: "
_ROOM_TO_THINK = 8_192
_SHORTEST_CLIP = 200
_SHORTEST_SUMMARY = 512
"""Tokens that a summary of a whole history should have room for."""
_CHARACTERS_PER_TOKEN = 2
_HOPELESS = frozenset(
    {
        ErrorKind.CONTENT_FILTERED,
        ErrorKind.CONTEXT_OVERFLOW,
        ErrorKind.EMPTY_RESPONSE,
        ErrorKind.HISTORY_REJECTED,
        ErrorKind.PROTOCOL,
        ErrorKind.UNSUPPORTED_PARAMETER,
    }
)
"""Failures of this request that a retry won't cure; another way to make room may succeed."""


class SummaryRejected(CompressionError):
    """No usable summary, and asking again would not help."""


class SummaryModel(Protocol):
    """What a summary needs of the conversation's model."""

    @property
    def backend(self) -> ContextBackend: ...
    @property
    def facts(self) -> ModelFacts: ...
    @property
    def options(self) -> SendOptions: ...
    def rebind(self, options: SendOptions, /) -> SummaryModel: ...
    def estimate(self, zones: Zones, trailing: tuple[StoredMessage, ...], /) -> TokenBreakdown: ...
    def sizes(self, records: Iterable[StoredMessage], /) -> list[float]: ...
    async def ask(self, zones: Zones, trailing: tuple[StoredMessage, ...], /) -> Completion: ...


class Summarizer:
    """Makes summaries for one conversation.

    The request is the conversation itself up to the cut and a trailing user message, with tools,
    effort and thinking as they were, so that the vendor's prefix cache serves it.
    """

    def __init__(self, model: SummaryModel) -> None:
        self._model = model

    async def summarize(
        self, zones: Zones, cut: int, gone: Iterable[StoredMessage], wish: SummaryRequest
    ) -> tuple[StoredMessage, list[Usage]]:
        """One summary of the compressed zone and the first `cut` incremental messages.

        `gone` are those of them that it stands for; the others stay, and are shown to the model.
        What doesn't fit the window goes in pieces, each with the summary of those before.
        Raises `SummaryRejected` for a summary that is empty, calls tools, or isn't smaller than
        what it replaces, and for a group that is too long for the window even when it is clipped;
        `CompressionError` if the model can't be asked.
        """
        target = self._target(wish)
        ask = (from_message(self._model.backend.user_message(wish.prompt)),)
        model = self._bind(target, zones, cut, ask)
        compressed, usages = zones.compressed, list[Usage]()
        for piece in self._pieces(model, zones, zones.incremental.head(cut), ask, target):
            part = Zones(zones.immutable, compressed, piece)
            completion = await self._ask(model, part, ask)
            usages.append(completion.usage)
            compressed = PersistentVector.of((self._check_summary(completion),))
        summary = compressed[0]
        self._check_smaller(summary, Zones(EMPTY, zones.compressed, PersistentVector.of(gone)))
        return summary, usages

    def _target(self, wish: SummaryRequest) -> int:
        """Maximum tokens of the summary: the window must hold it and what it is made of."""
        window = self._model.facts.context_window
        return max(1, min(wish.target, window // 3) if window else wish.target)

    def _bind(
        self, target: int, zones: Zones, cut: int, ask: tuple[StoredMessage, ...]
    ) -> SummaryModel:
        """The model with room for a summary, if need be a shorter one.

        One request with less room costs less than several with more.
        """
        facts, options = self._model.facts, self._model.options
        thinks = facts.thinks and options.thinking is not False and options.effort != "none"
        thoughts = _ROOM_TO_THINK if thinks else 0
        bounds = [bound for bound in (facts.max_output, facts.context_window // 2) if bound > 0]
        plain: dict[str, object] = {"scratch": (), "response_format": None, "stop": ()}
        most = min(target + thoughts, *bounds)
        model = self._model.rebind(options.model_copy(update={**plain, "max_tokens": most}))
        whole = model.estimate(zones.truncate(cut), ask)
        spare = whole.free + most
        if whole.free >= 0 or spare < _SHORTEST_SUMMARY + thoughts:
            return model
        return self._model.rebind(options.model_copy(update={**plain, "max_tokens": spare}))

    async def _ask(
        self, model: SummaryModel, zones: Zones, ask: tuple[StoredMessage, ...]
    ) -> Completion:
        try:
            return await model.ask(zones, ask)
        except BackendError as error:
            kind = SummaryRejected if error.kind in _HOPELESS else CompressionError
            raise kind(f"the model gave no summary ({error}); nothing was changed") from error

    def _check_summary(self, completion: Completion) -> StoredMessage:
        text = completion.message.text.strip()
        if completion.message.tool_calls:
            raise SummaryRejected(
                "the model called tools instead of summarising; nothing was changed"
            )
        if not text or completion.finish_reason is FinishReason.CONTENT_FILTER:
            raise SummaryRejected("the model gave an empty summary; nothing was changed")
        summary = self._model.backend.to_system_message(_HEADING + text)
        if completion.finish_reason is FinishReason.LENGTH:
            summary = summary.model_copy(update={"finish_reason": FinishReason.LENGTH})
        return from_message(summary)

    def _check_smaller(self, summary: StoredMessage, replaced: Zones) -> None:
        old = self._model.estimate(replaced, ()).total
        new = self._model.estimate(Zones(EMPTY, PersistentVector.of((summary,))), ()).total
        if new >= old:
            raise SummaryRejected(
                f"the summary takes {new} tokens instead of {old}; nothing was changed"
            )

    def _pieces(
        self,
        model: SummaryModel,
        zones: Zones,
        history: PersistentVector,
        ask: tuple[StoredMessage, ...],
        target: int,
    ) -> Iterator[PersistentVector]:
        """`history` in runs of whole groups that fit the window beside everything else.

        That is a summary of the runs before, too, which takes as much as `target`.
        """
        fixed = model.estimate(Zones(zones.immutable, zones.compressed), ask)
        sizes, room = model.sizes(history), fixed.free
        if not fixed.window or sum(sizes) <= room:
            yield history
            return
        room -= target
        for start, end in _runs(history, sizes, room):
            piece = PersistentVector.of(history.tail(start)[: end - start])
            if sum(sizes[start:end]) > room:
                piece = self._clip(model, piece, room)
            yield piece

    def _clip(self, model: SummaryModel, group: PersistentVector, room: int) -> PersistentVector:
        """The same messages with long texts cut, for the summary alone."""
        longest = max(room * _CHARACTERS_PER_TOKEN // len(group), _SHORTEST_CLIP)
        clipped = PersistentVector.of(_clip(record, longest) for record in group)
        if sum(model.sizes(clipped)) > room:
            raise SummaryRejected(
                f"a group of {len(group)} messages is too long to be summarised in a window with "
                f"room for {room} tokens; nothing was changed"
            )
        return clipped


def _runs(history: PersistentVector, sizes: list[float], room: int) -> Iterator[tuple[int, int]]:
    """Where each run of whole groups begins and ends: as long as fits, but at least one group."""
    start, end, total = 0, 0, 0.0
    borders = sorted(cut for cut in legal_cuts(history) if cut) or [len(history)]
    for border in borders:
        group = sum(sizes[end:border])
        if end > start and total + group > room:
            yield start, end
            start, total = end, 0.0
        end, total = border, total + group
    yield start, end


def _clip(record: StoredMessage, longest: int) -> StoredMessage:
    message = record.message
    text = message.text
    if len(text) <= longest:
        return record
    shorter = f"{text[:longest]} […{len(text) - longest} characters left out]"
    fields = {**dict(message), "parts": (Message.system(shorter).parts)}
    return from_message(Message.model_validate(fields))
