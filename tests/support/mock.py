"""Servers that live in the transport, and what was said to them."""

import json
from typing import Any

import httpx

from agent_context.messages import Message
from agent_context.options import SendOptions
from agent_context.testing import request_of
from agent_context_backends.chat_completions import ChatCompletionsBackend

OK: dict[str, Any] = {
    "id": "x1",
    "model": "m-1",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}


class Recorded(httpx.MockTransport):
    """Answers every request with `answer`, and keeps it."""

    def __init__(self, answer: object = OK, *, status: int = 200) -> None:
        self.requests: list[httpx.Request] = []
        self._answer = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self._status = status
        super().__init__(self._handle)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(self._status, content=self._answer)

    @property
    def body(self) -> dict[str, Any]:
        """The last request's body."""
        body: dict[str, Any] = json.loads(self.requests[-1].content)
        return body


async def sent(
    backend: ChatCompletionsBackend, transport: Recorded, *messages: Message, **options: Any
) -> dict[str, Any]:
    """The body that these options become."""
    said = messages or (Message.user("q"),)
    await backend.send(request_of(backend, *said, options=SendOptions(**options)))
    return transport.body
