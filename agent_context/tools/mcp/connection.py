"""One life of an MCP server: from its start, or the first request to it, until it is gone."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit, urlunsplit

from agent_context._validation import missing_extra
from agent_context.errors import InvalidOptions
from agent_context.tools.offload import retrieve_exception

if TYPE_CHECKING:
    from mcp import Client

__all__ = ["Connection", "ConnectionLost", "ServerAddress"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_KEY: Final = re.compile(r"key|token|secret|passw|auth", re.IGNORECASE)
_SHORTEST_SECRET: Final = 4
_LONG_SEGMENT: Final = 16
"""Of a path: one of so many characters may be a key."""
_SIGN_OF_LIFE: Final = 5.0
"""Seconds for a sign of life of a server that did not answer in time."""
_GRACE: Final = 10.0
"""Seconds for a good-bye; a server of ours is killed by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a server is: a program to start, or an address."""

    command: Sequence[str] = field(default=(), repr=False)
    url: str | None = field(default=None, repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: Path | str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.command, str):
            raise InvalidOptions(f"command: a list of words, not the text {self.command!r}")
        if bool(self.command) is (self.url is not None):
            raise InvalidOptions("an MCP server has a command or a url, and not both")

    def __str__(self) -> str:
        """How messages call it: a url without what may be a key, path and query included."""
        if self.url is None:
            return self.command[0]
        found = urlsplit(self.url)
        return urlunsplit((found.scheme, found.netloc.rpartition("@")[2], "", "", ""))

    def redact(self, text: str) -> str:
        """The text without keys: what the url says beside its host, and what headers hold."""
        if self.url is not None:
            text = text.replace(self.url, str(self))
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, "…")
        return text

    def _secrets(self) -> set[str]:
        found = urlsplit(self.url or "")
        values = [value for _, value in parse_qsl(found.query)]
        held = [word for value in self.headers.values() for word in (value, *value.split())]
        named = [value for name, value in self.env.items() if _KEY.search(name)]
        segments = [part for part in found.path.split("/") if len(part) >= _LONG_SEGMENT]
        user = found.netloc.rpartition("@")[0]
        every = [found.query, *values, *map(quote, values), *map(quote_plus, values), *held]
        every += [found.fragment, user, found.password or "", *named, *segments]
        return {secret for secret in every if len(secret) >= _SHORTEST_SECRET}


class ConnectionLost(Exception):
    """The server is gone, or can't be reached. Whether it had done what was asked is unknown."""


class Connection:
    """A client in a task of its own: it has to be left where it was entered."""

    def __init__(self, where: ServerAddress) -> None:
        self._where = where
        self._leave = asyncio.Event()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live())

    @classmethod
    async def open(cls, where: ServerAddress, *, timeout: float) -> Connection:
        """Connect. Raises `Lost`."""
        connection = cls(where)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(connection._client)
        except TimeoutError as error:
            await connection.close()
            raise ConnectionLost(f"no answer within {timeout:g} s") from error
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def client(self) -> Client:
        """The client, for work that `during` watches over."""
        return self._client.result()

    @property
    def alive(self) -> bool:
        """Whether nothing is known to the contrary."""
        return not self._life.done()

    async def run_while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, if the connection lives as long. Raises `Lost`."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        task = asyncio.ensure_future(work)
        task.add_done_callback(retrieve_exception)
        try:
            await asyncio.wait({task, self._life}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ConnectionLost("it is gone")
            return task.result()
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise ConnectionLost("it is gone") from error
            raise
        finally:
            task.cancel()

    async def answers(self) -> bool:
        """Whether the server gives a sign of life."""
        from mcp import MCPError

        try:
            async with asyncio.timeout(_SIGN_OF_LIFE):
                await self.run_while_connected(self.client.list_tools(cache_mode="bypass"))
        except (TimeoutError, ConnectionLost):
            return False
        except MCPError:
            return True  # a refusal is a sign of life
        return True

    async def close(self) -> None:
        """Say good-bye, and end a program that was started. Harmless if it is gone."""
        self._leave.set()
        _, late = await asyncio.wait({self._life}, timeout=_GRACE)
        for task in late:
            task.cancel()

    async def _live(self) -> None:
        try:
            async with _enter(self._where) as client:
                self._client.set_result(client)
                await self._leave.wait()
        except InvalidOptions as error:
            self._client.set_exception(error)
        except Exception as error:  # noqa: BLE001 - a group of whatever the transport met
            if not self._client.done():
                self._client.set_exception(ConnectionLost(self._where.redact(_first(error))))
                # Whoever opened it may have left already.
                self._client.exception()
            else:
                logger.warning(
                    "The connection to MCP server %s broke: %s",
                    self._where,
                    self._where.redact(_first(error)),
                )


def _first(error: BaseException) -> str:
    """What went wrong, from under the groups that task groups put around it."""
    if isinstance(error, BaseExceptionGroup):
        return _first(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return f"{type(error).__name__}: {error}"


@asynccontextmanager
async def _enter(where: ServerAddress) -> AsyncGenerator[Client]:
    try:
        from mcp import Client, StdioServerParameters
    except ModuleNotFoundError as error:
        raise missing_extra("McpTools", "mcp", "mcp") from error
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    if where.url is None:
        program, *arguments = where.command
        started = StdioServerParameters(
            command=program,
            args=arguments,
            env=dict(where.env),
            cwd=where.cwd,
            encoding_error_handler="replace",  # or one bad byte ends the reading of all answers
        )
        async with Client(started) as client:
            yield client
    else:
        async with (
            create_mcp_http_client(headers=dict(where.headers)) as http,
            Client(streamable_http_client(where.url, http_client=http)) as client,
        ):
            yield client
