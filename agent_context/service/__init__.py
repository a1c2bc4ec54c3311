"""Conversations over HTTP: the OpenAI and Anthropic APIs, and one of the service's own.

Needs the extra `service`.
"""

from agent_context._installed_backends import open_backend
from agent_context.service.app import create_app
from agent_context.service.catalog import ModelRoute
from agent_context.service.config import Bounds, ServiceConfig
from agent_context.service.server import Server, make_server

__all__ = [
    "Bounds",
    "ModelRoute",
    "Server",
    "ServiceConfig",
    "create_app",
    "make_server",
    "open_backend",
]
