"""A network between a client and PostgreSQL that can be cut at the worst moment."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

from psycopg.conninfo import make_conninfo


class Proxy:
    """Forwards connections; `swallow_next` drops one answer of the server, and its connection."""

    def __init__(self, host: str, port: int, parameters: Mapping[str, Any]) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = list[socket.socket]()
        self._swallow = Event()
        self._flowing = Event()
        self._flowing.set()
        self.swallowed = Event()
        own = {"host": "127.0.0.1", "port": self._listener.getsockname()[1]}
        self.dsn = make_conninfo("", **(dict(parameters) | own | {"sslmode": "disable"}))

    def swallow_next(self) -> None:
        self._swallow.set()

    def stall(self) -> None:
        """Hold back all that the server says, and leave every connection open."""
        self._flowing.clear()

    def flow(self) -> None:
        """Let it through again."""
        self._flowing.set()

    def cut(self) -> None:
        """End every connection now."""
        for each in tuple(self._sockets):
            _shut(each)

    def __enter__(self) -> Self:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.flow()
        for each in (self._listener, *self._sockets):
            _shut(each)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = self._dial()
                self._sockets += client, server
                Thread(target=self._up, args=(client, server), daemon=True).start()
                Thread(target=self._down, args=(server, client), daemon=True).start()

    def _dial(self) -> socket.socket:
        host, port = self._server
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        local = socket.socket(socket.AF_UNIX)
        local.connect(f"{host}/.s.PGSQL.{port}")
        return local

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        _shut(server)

    def _down(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                self._flowing.wait()
                if self._swallow.is_set():
                    self._swallow.clear()
                    self.swallowed.set()
                    break
                client.sendall(data)
        _shut(client)
        _shut(server)


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
