"""The service's own surface: conversations with all that they can do, under `/v1/sessions`."""

from agent_context.service.sessions.compression import router as compression_router
from agent_context.service.sessions.history import router as history_router
from agent_context.service.sessions.messages import router as messages_router
from agent_context.service.sessions.sessions import router as sessions_router
from agent_context.service.sessions.turns import router as turns_router

__all__ = ["routers"]

routers = (sessions_router, messages_router, turns_router, compression_router, history_router)
