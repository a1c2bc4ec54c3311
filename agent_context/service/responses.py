"""Bodies that every surface sends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from agent_context.service.errors import Problem

__all__ = ["Json", "is_anthropic", "problem_body", "problem_response"]


class Json(Response):
    """A JSON body, written by orjson; a part of it may be bytes that are JSON already."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return orjson.dumps(content)


def is_anthropic(path: str) -> bool:
    """Whether a path belongs to the surface that words errors as Anthropic does."""
    return "/v1/messages" in path and "/sessions/" not in path


_ANTHROPIC: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def problem_body(path: str, problem: Problem) -> dict[str, Any]:
    """The error in the words of the path's surface."""
    if not is_anthropic(path):
        return problem.body()
    usual = "invalid_request_error" if problem.status < 500 else "api_error"
    kind = _ANTHROPIC.get(problem.status, usual)
    return {"type": "error", "error": {"type": kind, "message": problem.message}}


def problem_response(path: str, problem: Problem) -> Json:
    """The same as a response."""
    headers: dict[str, str] = {}
    if problem.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(problem.retry_after)))
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Json(problem_body(path, problem), status_code=problem.status, headers=headers)
