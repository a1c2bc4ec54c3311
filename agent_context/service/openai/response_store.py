"""Responses that run, and those that are kept beside their conversations."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from agent_context.errors import AgentContextError, ConversationClosed
from agent_context.service.auth import Principal
from agent_context.service.errors import ServiceError, not_found
from agent_context.service.openai.response import (
    EventWriter,
    ResponseRecord,
    conversation_of,
    end_response,
)
from agent_context.service.service import Service
from agent_context.service.sse import PING, event_frame
from agent_context.service.turns import LiveTurn

__all__ = ["LiveResponse", "ResponseStore"]

logger = logging.getLogger(__name__)

_MOST: Final = 1_000


class LiveResponse:
    """A response whose turn runs in this process, or has ended lately."""

    def __init__(self, record: ResponseRecord, turn: LiveTurn, *, queued: bool = False) -> None:
        self.record = record
        self.turn = turn
        self.ended = asyncio.Event()
        """Set once the response is whole, and kept if it is to be."""
        self._queued = queued

    async def frames(self, after: int = -1) -> AsyncIterator[bytes]:
        """Its events behind the one with this number, as frames."""
        writer = EventWriter(self.record.response["id"], queued=self._queued)
        begun = {**self.record.response, **_BEGUN}

        def frame(events: Any) -> bytes:  # noqa: ANN401 - events
            return b"".join(
                event_frame(each["type"], each)
                for each in events
                if each["sequence_number"] > after
            )

        if first := frame(writer.begin(begun)):
            yield first
        try:
            async for events in self.turn.follow():
                yield b"".join(frame(writer.tell(event)) for event in events) or PING
        except ConversationClosed:
            return
        except AgentContextError:
            pass  # the last event says it
        if rest := frame(writer.close("incomplete")):
            yield rest
        await self.ended.wait()
        yield frame(writer.end(self.record.response))

    def finish(self) -> None:
        """Make the response whole: its turn has ended."""
        turn, record = self.turn, self.record
        writer = EventWriter(record.response["id"], queued=self._queued)
        count = sum(1 for _ in writer.begin(record.response))
        for event in turn.events:
            count += sum(1 for _ in writer.tell(event))
        count += sum(1 for _ in writer.close("incomplete"))
        record.response = end_response(
            record.response, writer.output, turn.completion, turn.error, now=time.time()
        )
        record.events = count + 1
        if turn.completion is not None:
            record.message_id = turn.completion.message.id


_BEGUN: Final[dict[str, Any]] = {
    "status": "in_progress",
    "output": [],
    "usage": None,
    "error": None,
    "incomplete_details": None,
    "completed_at": None,
}


class ResponseStore:
    """Finds responses by their ids, for those whose they are."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._live: OrderedDict[str, LiveResponse] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(
        self, record: ResponseRecord, turn: LiveTurn, *, keep: bool, queued: bool = False
    ) -> LiveResponse:
        """Follow a turn to its end for a response; `keep` it for those who ask later."""
        live = LiveResponse(record, turn, queued=queued)
        if keep:
            self._live[self._live_key(turn.ref.id, record.response["id"])] = live
            self._forget_old()
            await self._write(turn.ref.id, record)
        turn.on_end(lambda _: self._spawn(self._finish(live, keep=keep)))
        return live

    def find_live(self, who: Principal, response_id: str) -> LiveResponse | None:
        """One whose turn runs here, or has ended lately."""
        key = self._key(who, response_id)
        return None if key is None else self._live.get(self._live_key(key, response_id))

    async def get(self, who: Principal, response_id: str) -> ResponseRecord:
        """One that was kept. Raises `ServiceError` (404)."""
        live = self.find_live(who, response_id)
        if live is not None:
            return live.record
        key = self._key(who, response_id)
        payload = None
        if key is not None and await asyncio.to_thread(self._service.host.info, key) is not None:
            name = _attachment(response_id)
            payload = await asyncio.to_thread(self._service.host.store.get_attachment, key, name)
        if payload is None:
            raise not_found(
                f"there is no response {response_id!r}, or it was not stored",
                code="response_not_found",
            )
        return _after_restart(msgspec.json.decode(payload, type=ResponseRecord))

    async def delete(self, who: Principal, response_id: str) -> None:
        """Forget one; its conversation stays. Raises `ServiceError` (404)."""
        await self.get(who, response_id)
        key = self._key(who, response_id) or ""
        self._live.pop(self._live_key(key, response_id), None)
        store = self._service.host.store
        await asyncio.to_thread(store.put_attachment, key, _attachment(response_id), None)

    def conversation_id(self, response_id: str) -> str | None:
        """The conversation that it is in, as its tenant calls it."""
        return conversation_of(response_id)

    def _key(self, who: Principal, response_id: str) -> str | None:
        name = conversation_of(response_id)
        try:
            return None if name is None else self._service.conversations.key_of(who, name)
        except ServiceError:
            return None

    def _live_key(self, key: str, response_id: str) -> str:
        return f"{key}\n{response_id}"

    def _spawn(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, live: LiveResponse, *, keep: bool) -> None:
        live.finish()
        try:
            if keep:
                await self._write(live.turn.ref.id, live.record)
        except AgentContextError as error:
            logger.warning("response %s was not kept: %s", live.record.response["id"], error)
        finally:
            live.ended.set()

    async def _write(self, key: str, record: ResponseRecord) -> None:
        payload = msgspec.json.encode(record)
        name = _attachment(record.response["id"])
        await asyncio.to_thread(self._service.host.store.put_attachment, key, name, payload)

    def _forget_old(self) -> None:
        for key, live in list(self._live.items()):
            if len(self._live) <= _MOST:
                break
            if live.ended.is_set():
                del self._live[key]


def _attachment(response_id: str) -> str:
    return f"response/{response_id}"


def _after_restart(record: ResponseRecord) -> ResponseRecord:
    """One that was begun in a process that has ended did not get to its end."""
    if record.response["status"] in {"in_progress", "queued"}:
        error = {"code": "server_error", "message": "the service ended before the answer did"}
        record.response = {**record.response, "status": "failed", "error": error}
    return record
