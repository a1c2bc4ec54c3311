"""The gate before all routes: who may come in, how much they may bring, and how often."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_context.service.auth import Principal, is_loopback
from agent_context.service.errors import Problem, ServiceError
from agent_context.service.responses import problem_response
from agent_context.service.service import Service

__all__ = ["Gate", "RateLimiter"]

_OPEN: Final = frozenset({"/livez", "/readyz"})


class Gate:
    """Refuses before anything is read or done; counts what it lets through."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._rate = RateLimiter(service.config.bounds.requests_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._count(scope, status, time.perf_counter() - started)
            await send(message)

        try:
            limited = self._admit(scope, receive)
        except ServiceError as error:
            response = problem_response(scope["path"], error.problem)
            await response(scope, receive, watched)
            return
        await self._app(scope, limited, watched)

    def _admit(self, scope: Scope, receive: Receive) -> Receive:
        headers = Headers(scope=scope)
        if scope["path"] in _OPEN:
            return receive
        principal = self._identify(scope, headers)
        scope.setdefault("state", {})["principal"] = principal
        if self._service.draining:
            text = "the service stops; ask again in a moment"
            raise ServiceError(
                Problem(
                    status=503, message=text, type="server_error", code="draining", retry_after=1
                )
            )
        if (wait := self._rate.take(principal.key_id)) > 0:
            text = "this key asks too often"
            raise ServiceError(
                Problem(
                    status=429,
                    message=text,
                    type="rate_limit_error",
                    code="rate_limit_exceeded",
                    retry_after=wait,
                )
            )
        return _bounded(receive, headers, self._service.config.bounds.body)

    def _identify(self, scope: Scope, headers: Headers) -> Principal:
        keys = self._service.keys
        if keys is None or not keys.load():
            _check_local(scope, headers)
            return Principal()
        token = _token(headers)
        found = None if token is None else keys.find(token)
        if found is None:
            text = "a key is needed: Authorization: Bearer ac-…" if token is None else "no such key"
            raise ServiceError(
                Problem(
                    status=401, message=text, type="authentication_error", code="invalid_api_key"
                )
            )
        return found.principal()

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        self._service.metrics.count_request(scope["method"], route, status, seconds)


def _token(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


def _check_local(scope: Scope, headers: Headers) -> None:
    """Without keys only this machine is served, and no page of another site that is open on it."""
    client: Sequence[object] | None = scope.get("client")
    origin = headers.get("origin")
    local = client is None or is_loopback(str(client[0]))
    named = is_loopback(headers.get("host", "localhost"))
    own = origin is None or is_loopback(origin.partition("://")[2])
    if local and named and own:
        return
    text = "without a key only this machine is served: make one with `context-actor keys create`"
    raise ServiceError(
        Problem(status=403, message=text, type="permission_error", code="key_needed")
    )


def _bounded(receive: Receive, headers: Headers, most: int) -> Receive:
    """`receive`, which gives up on a body that is too long, announced or not."""
    told = headers.get("content-length", "")
    if told.isdigit() and int(told) > most:
        raise ServiceError(_too_large(most))
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise HTTPException(413, _too_large(most).message)
        return message

    return limited


def _too_large(most: int) -> Problem:
    return Problem(
        status=413, message=f"the body has more than {most} bytes", code="request_too_large"
    )


class RateLimiter:
    """Counts requests by key: so many a minute, a quarter of them at once."""

    def __init__(self, per_minute: int | None) -> None:
        self._per_minute = per_minute
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, key: str) -> float:
        """0 if the request may come in, else the seconds until one may."""
        if self._per_minute is None:
            return 0.0
        burst, rate = max(1.0, self._per_minute / 4), self._per_minute / 60
        now = time.monotonic()
        left, when = self._left.get(key, (burst, now))
        left = min(burst, left + (now - when) * rate)
        allowed = left >= 1
        self._left[key] = (left - allowed, now)
        return 0.0 if allowed else (1 - left) / rate
