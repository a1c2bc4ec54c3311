"""Which tool call a fragment of a streamed answer belongs to, whatever its server calls it.

Servers leave out indexes and ids, number every call 0, give each fragment an id of its own, send
one call under two indexes, or two calls under one id. Two rules hold for all of them: a call
without a name is none, and no fragment makes a call of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from agent_context.messages import new_id
from agent_context.stream_events import ToolCallDelta
from agent_context.wire.arguments import is_object
from agent_context.wire.lenient_json import as_count, as_mapping

__all__ = ["CallAssembler", "arguments_text", "extra_fields"]


@dataclass(slots=True)
class _Fragment:
    """What a server sent of a call."""

    index: int | None
    id: str
    name: str
    arguments: str
    extra: dict[str, Any] | None


@dataclass(slots=True, eq=False)
class _Call:
    """A call that is being written."""

    id: str
    """As it was sent; empty if it wasn't."""
    name: str = ""
    number: int | None = None
    """Which call of the answer it is; None while nobody can tell whether it is one."""
    arguments: list[str] = field(default_factory=list[str])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    twin: _Call | None = None
    """The whole call whose id and name it repeats: the same one until it says other things."""

    @property
    def text(self) -> str:
        return "".join(self.arguments)

    @property
    def whole(self) -> bool:
        return bool(self.arguments) and is_object(self.text)

    @property
    def is_new(self) -> bool:
        """Whether it is a call, and not one that has been there."""
        if self.twin is None:
            return bool(self.name)
        return self.whole and orjson.loads(self.text) != orjson.loads(self.twin.text)


class CallAssembler:
    """Turns fragments of calls into events that say which call each is of."""

    def __init__(self) -> None:
        self.count = 0
        """How many calls there are."""
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._ids: set[str] = set()
        self._last: _Call | None = None
        self._last_named: _Call | None = None

    def add(self, raw: Mapping[str, Any]) -> ToolCallDelta | None:
        """What a fragment adds; None while it can't be told."""
        sent = _read(raw)
        call = self._find(sent)
        if call is None:
            call = self._open(sent)
        elif _repeats(sent, call):
            return None
        self._last = call
        self._note(call, sent)
        return self._tell(call, sent)

    def add_whole(self, raw: Mapping[str, Any]) -> ToolCallDelta | None:
        """The call that an item of a whole answer is; None if it has no name."""
        sent = _read(raw)
        return self._tell(_Call(sent.id, sent.name, twin=None), sent) if sent.name else None

    def _find(self, sent: _Fragment) -> _Call | None:
        """The call that is continued; None if another one begins."""
        at = self._by_index.get(sent.index) if sent.index is not None else None
        known = self._by_id.get(sent.id) if sent.id else None
        if at is not None and (not sent.id or at.id == sent.id):
            known = at
        if known is not None:
            return self._continue_known(known, sent)
        if at is None and (sent.index is not None or sent.id) and sent.name:
            return None
        return self._continue_other(at or self._last, sent)

    def _continue_known(self, call: _Call, sent: _Fragment) -> _Call | None:
        """The call that has this id, or this index and no other id."""
        if not sent.name:
            return self._adopted(call, sent)
        if not call.name:
            return call
        return call if sent.name == call.name and not call.whole else None

    def _continue_other(self, call: _Call | None, sent: _Fragment) -> _Call | None:
        """The call before, which has another id or index than the fragment, or none."""
        if call is None:
            return None
        if sent.name:
            if not call.name:
                return call
            same = sent.name == call.name and not call.whole
            alone = bool(call.arguments) and sent.id and is_object(sent.arguments)
            return call if same and not alone else None
        if sent.index is None and not sent.id:
            return call
        return self._adopted(None if call.whole else call, sent)

    def _adopted(self, call: _Call | None, sent: _Fragment) -> _Call | None:
        """`call`, or the one whose arguments these must be if it is no call by itself."""
        named = self._last_named
        if (call is None or not call.name) and sent.arguments and named and not named.whole:
            return named
        return call

    def _open(self, sent: _Fragment) -> _Call:
        known = self._by_id.get(sent.id) if sent.id else None
        repeats = known is not None and known.name == sent.name and known.whole
        call = _Call(sent.id, twin=known if repeats else None)
        if sent.id and known is None:
            self._by_id[sent.id] = call
        if sent.index is not None:
            self._by_index[sent.index] = call
        return call

    def _note(self, call: _Call, sent: _Fragment) -> None:
        """Remember what the fragment is called, for those that come after it."""
        call.id = call.id or sent.id
        if sent.id:
            self._by_id.setdefault(sent.id, call)
        if sent.index is not None:
            self._by_index.setdefault(sent.index, call)
        if sent.name and not call.name:
            call.name = sent.name
            self._last_named = call

    def _tell(self, call: _Call, sent: _Fragment) -> ToolCallDelta | None:
        if call.number is not None:
            call.arguments.append(sent.arguments)
            return ToolCallDelta(call.number, None, None, sent.arguments, sent.extra)
        if sent.arguments:
            call.arguments.append(sent.arguments)
        call.extra |= sent.extra or {}
        if not call.is_new:
            return None
        call.number = self.count
        self.count += 1
        return ToolCallDelta(
            call.number, self._free_id(call.id), call.name, call.text, call.extra or None
        )

    def _free_id(self, sent: str) -> str:
        """The id, or one of our own: a result must be able to name its call."""
        chosen = sent if sent and sent not in self._ids else f"call_{new_id()}"
        self._ids.add(chosen)
        return chosen


def _repeats(sent: _Fragment, call: _Call) -> bool:
    """Whether a whole call is sent again, without its name."""
    return bool(sent.id and sent.arguments and not sent.name) and (
        call.whole and is_object(sent.arguments) and sent.arguments == call.text
    )


def _read(raw: Mapping[str, Any]) -> _Fragment:
    function = as_mapping(raw, "function")
    return _Fragment(
        index=as_count(raw.get("index")),
        id=_text(raw.get("id")),
        name=_text(function.get("name")),
        arguments=arguments_text(function.get("arguments")),
        extra=extra_fields(raw) or None,
    )


def arguments_text(value: object) -> str:
    """The JSON text of arguments; some servers send the object itself."""
    if value is None or isinstance(value, str):
        return value or ""
    return orjson.dumps(value).decode()


_CALL = frozenset({"index", "id", "type", "function"})
_FUNCTION = frozenset({"name", "arguments"})


def extra_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a call that only its vendor understands, such as the signature of a thought."""
    if raw.keys() <= _CALL and as_mapping(raw, "function").keys() <= _FUNCTION:
        return {}
    extra = {name: value for name, value in raw.items() if name not in _CALL and value is not None}
    inner = {
        name: value
        for name, value in as_mapping(raw, "function").items()
        if name not in _FUNCTION and value is not None
    }
    return {**extra, "function": inner} if inner else extra


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
