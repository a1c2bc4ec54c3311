"""The composition root: a configuration becomes an application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from agent_context.errors import AgentContextError
from agent_context.service import anthropic, openai, sessions
from agent_context.service.config import ServiceConfig
from agent_context.service.errors import Problem, to_problem
from agent_context.service.gate import Gate
from agent_context.service.responses import Json, problem_response
from agent_context.service.service import Admin, Running, Service

__all__ = ["create_app"]

logger = logging.getLogger(__name__)

_PROBE = 2.0
"""Seconds that the store has to answer."""


def create_app(config: ServiceConfig) -> FastAPI:
    """The application; it lets go of everything when its lifespan ends."""
    service = Service(config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        await service.close()

    app = FastAPI(title="context-actor", lifespan=lifespan, redirect_slashes=False)
    app.state.service = service
    for router in (*sessions.routers, *openai.routers, *anthropic.routers):
        app.include_router(router)
    _add_operations(app)
    _add_error_handlers(app)
    app.add_middleware(Gate, service=service)
    return app


def _add_operations(app: FastAPI) -> None:
    @app.get("/livez", tags=["operations"])
    async def live() -> Response:
        """The process runs."""
        return Json({"status": "ok"})

    @app.get("/readyz", tags=["operations"])
    async def ready(service: Running) -> Response:
        """Requests are welcome: the store answers and nothing is being stopped."""
        problem = await _probe(service)
        if problem is None:
            return Json({"status": "ok"})
        return Json({"status": problem}, status_code=503, headers={"Retry-After": "1"})

    @app.get("/metrics", tags=["operations"])
    async def metrics(service: Running, _: Admin) -> Response:
        """Figures for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def _probe(service: Service) -> str | None:
    if service.draining:
        return "draining"
    try:
        async with asyncio.timeout(_PROBE):
            await asyncio.to_thread(service.host.conversations, limit=1)
    except TimeoutError:
        return f"the store has not answered in {_PROBE} seconds"
    except AgentContextError as error:
        return to_problem(error).message
    return None


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(AgentContextError)
    async def expected(request: Request, error: AgentContextError) -> Response:
        return problem_response(request.url.path, to_problem(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return problem_response(request.url.path, _validation_problem(error))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}
        problem = Problem(
            status=error.status_code,
            message=str(error.detail),
            code=code.get(error.status_code, "invalid_request"),
        )
        return problem_response(request.url.path, problem)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem_response(request.url.path, to_problem(error))


def _validation_problem(error: RequestValidationError) -> Problem:
    complaints: list[dict[str, Any]] = list(error.errors())
    texts = [f"{_place(each)}: {each['msg']}" for each in complaints]
    param = _place(complaints[0]) if complaints else None
    return Problem(status=400, message="; ".join(texts), code="invalid_request", param=param)


def _place(complaint: dict[str, Any]) -> str:
    place = [str(part) for part in complaint["loc"]]
    return ".".join(place[1:] if place[0] == "body" and len(place) > 1 else place)
