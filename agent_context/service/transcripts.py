"""Clients that send the whole history with each request: what of it is new, and where it belongs.

Such a client names its conversation, or its program does in a header. What it sends is compared
with all that was said there, not with the zones: those may be compressed. A request that goes on
from what is known is appended. One that leaves it is a fork (or a rewind), and one that begins in
another way is answered aside, as agents ask for titles under the name of their talk; if the aside
is gone on with, it was a talk of its own, and becomes a branch.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal
from weakref import WeakValueDictionary

import orjson
from msgspec import Struct

from agent_context import AgentContext, events
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from agent_context.errors import AgentContextError
from agent_context.events import ChangeEvent
from agent_context.host import Host
from agent_context.messages import ImagePart, Message, Role
from agent_context.protocol import Fork, History, Rewind
from agent_context.ref import ContextRef, read_zones
from agent_context.service.auth import Principal
from agent_context.service.config import ServiceConfig
from agent_context.service.conversations import OWN, Conversations
from agent_context.service.turns import LiveTurn, TurnRegistry

__all__ = ["Placement", "Transcripts"]

_REMEMBERED: Final = 10_000
_PAGE: Final = 500


class Placement(Struct, frozen=True, kw_only=True):
    """Where a request goes on, and what it says there."""

    ref: ContextRef
    messages: Sequence[Message]
    kind: Literal["append", "new", "fork", "rewind", "branch", "aside"]


class Said(Struct, frozen=True, gc=False):
    """A message as it is compared."""

    digest: bytes
    partial: str | None = None
    """The text of an answer that was cut short: the client may have less of it, or nothing."""
    text: str = ""
    """Of an assistant's message."""


class Line(Struct, frozen=True):
    """One conversation that goes by a name, and how far a request goes along with it."""

    ref: ContextRef
    stored: int
    """Messages of its past, those of its waiting turns not counted."""
    length: int
    matched: int
    """Messages of the line that the request repeats."""
    used: int
    """Messages of the request that do so."""
    has_tools: bool

    @property
    def is_continued(self) -> bool:
        return self.matched == self.length


class Transcripts:
    """Compares what clients send with what is known."""

    def __init__(
        self, config: ServiceConfig, conversations: Conversations, turns: TurnRegistry
    ) -> None:
        self._on_rewrite = config.on_rewrite
        self._conversations = conversations
        self._turns = turns
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._digests: OrderedDict[str, tuple[bytes, Said]] = OrderedDict()
        """By the id of the message, with what it said."""
        self._whole: OrderedDict[str, str] = OrderedDict()
        """Of conversations that were never compressed: the id of their first message."""
        self._pasts: OrderedDict[str, tuple[list[Said], str]] = OrderedDict()
        """Of compressed conversations: all that was said, up to the message with this id."""
        self._asides: OrderedDict[bytes, None] = OrderedDict()
        """Digests of what was answered aside, answers included."""

    def lock(self, who: Principal, name: str) -> asyncio.Lock:
        """Held from a placement until its turn is begun: what is asked next must see it."""
        key = self._conversations.key_of(who, name)
        found = self._locks.get(key)
        if found is None:
            found = self._locks[key] = asyncio.Lock()
        return found

    async def place(
        self, who: Principal, name: str, sent: Sequence[Message], *, has_tools: bool
    ) -> Placement:
        """Where these messages belong. Call it with the lock held."""
        info = await self._conversations.find(who, name)
        if info is None:
            ref = await self._conversations.create(who, name, own={"has_tools": has_tools})
            return Placement(ref=ref, messages=sent, kind="new")
        said = [_digest(message) for message in sent]
        own: Mapping[str, Any] = info.metadata.get(OWN, {})
        names = (name, *own.get("branches", ()))
        lines = [line for each in names if (line := await self._line(who, each, said))]
        return await self._choose(who, name, sent, said, lines, has_tools=has_tools)

    async def _choose(
        self,
        who: Principal,
        name: str,
        sent: Sequence[Message],
        said: Sequence[Said],
        lines: Sequence[Line],
        *,
        has_tools: bool,
    ) -> Placement:
        continued = [line for line in lines if line.is_continued]
        if continued:
            best = max(continued, key=lambda line: line.length)
            return Placement(ref=best.ref, messages=sent[best.used :], kind="append")
        shared = [line for line in lines if line.matched and line.has_tools <= has_tools]
        if shared:
            best = max(shared, key=lambda line: line.matched)
            return await self._leave(who, name, best, sent, has_tools=has_tools)
        first_with_tools = has_tools and not any(line.has_tools for line in lines)
        if first_with_tools or self._goes_on_aside(said):
            ref = await self._branch(who, name, has_tools=has_tools)
            return Placement(ref=ref, messages=sent, kind="branch")
        return self.aside(sent)

    def aside(self, sent: Sequence[Message]) -> Placement:
        """A conversation for this request alone, which nothing keeps."""
        ref = AgentContext.start(self._conversations.backend)
        return Placement(ref=ref, messages=sent, kind="aside")

    def drop(self, ref: ContextRef) -> None:
        """End an aside; stopping waits, and so happens elsewhere."""
        asyncio.get_running_loop().run_in_executor(None, _stop, ref)

    def watch_aside(self, turn: LiveTurn, sent: Sequence[Message]) -> None:
        """End the conversation with its turn, and remember what was said if it is gone on with."""

        def ended(turn: LiveTurn) -> None:
            if turn.completion is not None:
                self._remember([*map(_digest, sent), _digest(turn.completion.message)])
            self.drop(turn.ref)

        turn.on_end(ended)

    # Lines.

    async def _line(self, who: Principal, name: str, said: Sequence[Said]) -> Line | None:
        info = await self._conversations.find(who, name)
        if info is None:
            return None
        ref = await self._conversations.get(who, name)
        waiting = [turn for turn in self._turns.of(ref.id) if not await _end_abandoned(turn)]
        past = await self._past(ref)
        whole = [*past, *(_digest(m) for turn in waiting for m in turn.said)]
        matched, used = _compare(whole, said)
        has_tools = bool(info.metadata.get(OWN, {}).get("has_tools"))
        return Line(ref, len(past), len(whole), matched, used, has_tools)

    async def _past(self, ref: ContextRef) -> Sequence[Said]:
        """All that was said, compressed or not."""
        zones = await read_zones(ref)
        if await self._is_whole(ref, zones):
            return [self._of_record(record) for record in zones.incremental]
        known = self._pasts.get(ref.id)
        if known is not None and (later := _records_after(zones, known[1])) is not None:
            past = [*known[0], *map(self._of_record, later)]
        else:
            past = await _whole_history(ref)
        last = zones.incremental[len(zones.incremental) - 1].id if len(zones.incremental) else ""
        self._pasts[ref.id] = past, last
        _trim(self._pasts, 200)
        return past

    async def _is_whole(self, ref: ContextRef, zones: Zones) -> bool:
        """Whether the incremental zone is all that was said: nothing was ever compressed."""
        if len(zones.compressed):
            return False
        first = zones.incremental[0].id if len(zones.incremental) else ""
        known = self._whole.get(ref.id)
        if known is not None and (not known or known == first):
            self._whole[ref.id] = first
            return True
        whole = not await asyncio.to_thread(_was_compressed, self._conversations.host, ref.id)
        if whole:
            self._whole[ref.id] = first
            _trim(self._whole, _REMEMBERED)
        return whole

    def note(self, event: ChangeEvent) -> None:
        """Take in a change, on whatever thread."""
        if isinstance(event, events.Compressed):
            self._whole.pop(event.conversation_id, None)

    def _of_record(self, record: StoredMessage) -> Said:
        found = self._digests.get(record.id)
        if found is None or found[0] != record.body:
            found = self._digests[record.id] = record.body, _digest(record.message)
            _trim(self._digests, _REMEMBERED)
        return found[1]

    async def _leave(
        self,
        who: Principal,
        name: str,
        line: Line,
        sent: Sequence[Message],
        *,
        has_tools: bool,
    ) -> Placement:
        """Go on from where the request leaves the line."""
        zones = await read_zones(line.ref)
        at = len(zones.incremental) - (line.stored - line.matched)
        rest = sent[line.used :]
        if at < 0 or line.matched > line.stored:
            # That place is compressed, or not there yet: the request's own history is kept.
            ref = await self._branch(who, name, has_tools=has_tools)
            return Placement(ref=ref, messages=sent, kind="branch")
        if self._on_rewrite == "rewind" and line.length == line.stored:
            await line.ref.aask(Rewind(at))
            return Placement(ref=line.ref, messages=rest, kind="rewind")
        ref = await self._branch(who, name, parent=line.ref, at=at, has_tools=has_tools)
        return Placement(ref=ref, messages=rest, kind="fork")

    async def _branch(
        self,
        who: Principal,
        name: str,
        *,
        parent: ContextRef | None = None,
        at: int | None = None,
        has_tools: bool,
    ) -> ContextRef:
        """Another conversation that goes by the name."""
        conversations = self._conversations
        info = await conversations.info(who, name)
        branches: list[str] = list(info.metadata.get(OWN, {}).get("branches", ()))
        branch = f"{name[:190]}~{len(branches) + 1}"
        own = {"has_tools": has_tools, "branch_of": name}
        if parent is None:
            ref = await conversations.create(who, branch, own=own)
        else:
            ref = await parent.aask(Fork(at, conversations.key_of(who, branch)))
            await conversations.note(ref.id, **own)
        await conversations.note(info.id, branches=[*branches, branch])
        return ref

    # Asides.

    def _remember(self, said: Sequence[Said]) -> None:
        self._asides[list(_running_digests(said))[-1]] = None
        _trim(self._asides, _REMEMBERED)

    def _goes_on_aside(self, said: Sequence[Said]) -> bool:
        return any(digest in self._asides for digest in _running_digests(said))


def _trim(table: OrderedDict[Any, Any], most: int) -> None:
    while len(table) > most:
        table.popitem(last=False)


def _stop(ref: ContextRef) -> None:
    with suppress(AgentContextError):
        ref.stop()


async def _end_abandoned(turn: LiveTurn) -> bool:
    """Whether nobody follows the turn any more: its client has gone on, and it is ended."""
    if not turn.is_abandoned:
        return False
    with suppress(AgentContextError):
        await turn.cancel()
        await turn.wait()
    return True


def _was_compressed(host: Host, key: str) -> bool:
    """Whether that was ever done to it, or to those that it was forked from."""
    info = host.info(key)
    while info is not None:
        seq = 0
        while page := host.changes(info.id, after=seq):
            if any(change.kind == "compressed" for change in page):
                return True
            seq = page[-1].seq
        info = None if info.parent is None else host.info(info.parent.id)
    return False


async def _whole_history(ref: ContextRef) -> list[Said]:
    found: list[Said] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await ref.aask(History(cursor, _PAGE))
        found += [_digest(each.message) for each in page.entries if each.kind != "compressed"]
        cursor = page.cursor
    return found


def _records_after(zones: Zones, message_id: str) -> Sequence[StoredMessage] | None:
    later: list[StoredMessage] = []
    for record in reversed(zones.incremental):
        if record.id == message_id:
            return later[::-1]
        later.append(record)
    return None


def _compare(past: Sequence[Said], said: Sequence[Said]) -> tuple[int, int]:
    """How many messages of the past, and of what is said now, are the same from the beginning."""
    matched = used = 0
    while matched < len(past):
        stored = past[matched]
        now = said[used] if used < len(said) else None
        if now is not None and now.digest == stored.digest:
            used += 1
        elif stored.partial is None:
            break
        elif now is not None and now.text and stored.partial.startswith(now.text):
            used += 1
        matched += 1
    return matched, used


def _running_digests(said: Iterable[Said]) -> Iterable[bytes]:
    whole = hashlib.blake2b(digest_size=16)
    for each in said:
        whole.update(each.digest)
        yield whole.digest()


def _digest(message: Message) -> Said:
    """What of a message survives that a client keeps it and sends it again."""
    text = message.text.strip()
    images = [part.url for part in message.parts if isinstance(part, ImagePart)]
    calls = [(call.name, _canonical(call.arguments)) for call in message.tool_calls]
    whole = orjson.dumps([message.role.value, text, images, calls])
    digest = hashlib.blake2b(whole, digest_size=16).digest()
    if message.role is not Role.ASSISTANT:
        return Said(digest)
    return Said(digest, text if message.interrupted else None, text)


def _canonical(arguments: str) -> str:
    try:
        return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return arguments
