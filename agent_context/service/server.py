"""The server: uvicorn, which ends its streams before it waits for them."""

from __future__ import annotations

import socket

import uvicorn

from agent_context.errors import InvalidOptions
from agent_context.service.app import create_app
from agent_context.service.auth import KeyFile, is_loopback
from agent_context.service.config import ServiceConfig
from agent_context.service.service import Service

__all__ = ["Server", "make_server"]


class Server(uvicorn.Server):
    """Ends with open streams, too: they are told, and what runs in conversations is kept."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.stop_intake()
        await super().shutdown(sockets)


def make_server(config: ServiceConfig, *, host: str = "127.0.0.1", port: int = 8321) -> Server:
    """A server for this configuration; its `run` returns when the process is told to end.

    Raises `InvalidOptions` for an address that others can reach while there is no key.
    """
    if not is_loopback(host) and not (config.keys and KeyFile(config.keys).load()):
        raise InvalidOptions(
            f"host: without a key only this machine may be served, not {host}: "
            "make one with `context-actor keys create`"
        )
    app = create_app(config)
    service: Service = app.state.service
    options = uvicorn.Config(
        app,
        host=host,
        port=port,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    return Server(options, service)
