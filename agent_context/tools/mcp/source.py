"""The tools of one MCP server, and calling them."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import Field

from agent_context.errors import InvalidOptions, ToolError
from agent_context.messages import Part
from agent_context.tools.arguments import read_object
from agent_context.tools.mcp.connection import Connection, ConnectionLost, ServerAddress
from agent_context.tools.mcp.results import parts_of_result
from agent_context.tools.offload import LoopClosed, run_on_loop
from agent_context.tools.result_parts import clean_text
from agent_context.tools.schema import strip_titles
from agent_context.tools.tool import ApprovalPolicy, CallableTool, ToolContext

if TYPE_CHECKING:
    from mcp_types import CallToolResult
    from mcp_types import Tool as ServersTool

__all__ = ["McpTool", "McpTools"]

_FORBIDDEN = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME: Final = 64
_PATIENCE: Final = 30.0
"""Seconds for a server to start, or to answer for the first time."""


class McpTool(CallableTool):
    """A tool of an MCP server."""

    source: Any = Field(exclude=True, repr=False)
    """The `McpTools` that it belongs to."""
    server_name: str = Field(exclude=True)
    """The server's own name for it."""
    idempotent: bool = Field(default=False, exclude=True)
    """Whether the server says that calling it twice does no more than calling it once."""

    async def call(self, arguments: str, context: ToolContext) -> object:
        """Have the server run it."""
        source: McpTools = self.source
        return await source.call(self, read_object(arguments, who=self.name), context)


class McpTools:
    """The tools of an MCP server, while it is entered: `async with McpTools(url=…) as server`.

    A server that is gone is connected to anew for the next call. Only a call that may be repeated
    is repeated. What it says of its tools is read once: the beginning of the prompt stays.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = (),
        url: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        headers: Mapping[str, str] | None = None,
        prefix: str = "",
        allow: Collection[str] | None = None,
        timeout: float | None = None,
        approval: ApprovalPolicy = "never",
    ) -> None:
        """Say where the server is, and which of its tools are wanted.

        Args:
            command: The program to start, with its arguments; it speaks over its standard input
                and output.
            url: Of a server that speaks streamable HTTP.
            env: Variables for the program, beside the few that every program needs.
            cwd: The program's directory.
            headers: Sent with each request to the url.
            prefix: Put in front of each tool's name.
            allow: The tools that are wanted, by the server's names; None for all of them.
            timeout: Seconds for one call; None takes the toolbox's.
            approval: Whether somebody must allow a call of any of them.

        Raises:
            InvalidOptions: there are both a command and a url, or neither.
        """
        self._where = ServerAddress(
            command=command, url=url, env=env or {}, cwd=cwd, headers=headers or {}
        )
        self._prefix = prefix
        self._allow = allow
        self._settings: dict[str, Any] = {"timeout": timeout, "approval": approval}
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting = asyncio.Lock()
        self._examination: asyncio.Task[None] | None = None
        """Sees whether the server lives, after a call was given up."""
        self.tools: tuple[McpTool, ...] = ()
        """By name, since servers list them in any order."""
        self.instructions: str | None = None
        """What the server says of itself, for a prompt. It is as trustworthy as the server."""

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            connection = await self._connect()
        except ConnectionLost as error:
            raise InvalidOptions(
                f"MCP server {self._where} can't be reached ({error}); is it there, does it run?"
            ) from error
        try:
            self.tools = self.choose(await connection.run_while_connected(_list_tools(connection)))
            self.instructions = connection.client.instructions
        except BaseException:
            await self._drop(connection)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._loop = None
        if self._examination is not None:
            self._examination.cancel()
        if self._connection is not None:
            await self._drop(self._connection)

    async def call(
        self, tool: McpTool, arguments: Mapping[str, Any], context: ToolContext
    ) -> tuple[Part, ...]:
        """What the server answers. Raises `ToolError`. From any loop."""
        if self._loop is None:
            raise ToolError(f"MCP server {self._where} was closed by the program.")
        work = partial(self._call, tool, arguments, context)
        if self._loop is asyncio.get_running_loop():
            return await work()
        try:
            return await run_on_loop(work, self._loop, contextvars.copy_context())
        except LoopClosed as error:
            raise ToolError(f"MCP server {self._where} was closed by the program.") from error

    async def _call(
        self, tool: McpTool, arguments: Mapping[str, Any], context: ToolContext
    ) -> tuple[Part, ...]:
        from mcp import MCPError

        try:
            result = await self._request(tool, arguments, context)
        except MCPError as error:
            raise ToolError(f"{tool.name} failed: {self._where.redact(error.message)}") from error
        parts = parts_of_result(result)
        if result.is_error:
            text = "\n".join(part.text for part in parts if part.kind == "text")
            text = self._where.redact(text)
            raise ToolError(text or f"{tool.name} failed, and the server doesn't say why.")
        return parts

    async def _request(
        self, tool: McpTool, arguments: Mapping[str, Any], context: ToolContext
    ) -> CallToolResult:
        try:
            return await self._try(tool, arguments, context)
        except ConnectionLost as error:
            if not tool.idempotent:
                raise ToolError(
                    f"MCP server {self._where} was lost during the call of {tool.name}: {error}. "
                    "The call may have been carried out or not; look before you repeat it. The "
                    "server is connected to anew for the next call."
                ) from error
        try:
            return await self._try(tool, arguments, context)
        except ConnectionLost as error:
            raise ToolError(
                f"MCP server {self._where} was lost again during the call of {tool.name}: {error}."
            ) from error

    async def _try(
        self, tool: McpTool, arguments: Mapping[str, Any], context: ToolContext
    ) -> CallToolResult:
        try:
            connection = await self._connect()
        except ConnectionLost as error:
            raise ToolError(f"MCP server {self._where} can't be reached: {error}.") from error

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            share = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
            context.report(message or share)

        asked = connection.client.call_tool(
            tool.server_name, _sendable(arguments), progress_callback=heard
        )
        try:
            return await connection.run_while_connected(asked)
        except ConnectionLost:
            await self._drop(connection)
            raise
        except asyncio.CancelledError:
            # Slow, or nobody reads its answers any more: then later calls need another connection.
            if self._examination is None or self._examination.done():
                self._examination = asyncio.create_task(self._examine(connection))
            raise

    async def _examine(self, connection: Connection) -> None:
        if not await connection.answers():
            await self._drop(connection)

    async def _connect(self) -> Connection:
        async with self._connecting:
            if self._examination is not None:
                await asyncio.shield(self._examination)
            if self._connection is None or not self._connection.alive:
                self._connection = await Connection.open(self._where, timeout=_PATIENCE)
            return self._connection

    async def _drop(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
        await connection.close()

    def choose(self, listed: Sequence[ServersTool]) -> tuple[McpTool, ...]:
        """The tools that are wanted of those that the server lists, by name."""
        names = {item.name for item in listed}
        wanted = names if self._allow is None else set(self._allow)
        if missing := sorted(wanted - names):
            raise InvalidOptions(
                f"MCP server {self._where} has no tools {', '.join(missing)}; "
                f"it has {', '.join(sorted(names))}"
            )
        legal = _legal_names(self._prefix, names)
        chosen = [self._tool(item, legal[item.name]) for item in listed if item.name in wanted]
        return tuple(sorted(chosen, key=lambda tool: tool.name))

    def _tool(self, item: ServersTool, name: str) -> McpTool:
        hints = item.annotations
        return McpTool(
            name=name,
            description=item.description or item.title or "",
            parameters={"properties": {}, **strip_titles(item.input_schema)},
            source=self,
            server_name=item.name,
            idempotent=bool(hints and (hints.read_only_hint or hints.idempotent_hint)),
            **self._settings,
        )


def _legal_names(prefix: str, names: Collection[str]) -> dict[str, str]:
    """A name that models may use for each of a server's own, no two of them alike.

    It is the nearest; where that is another's too, it ends in a digest of the server's own name,
    so that the tools are called the same whichever of them are there.
    """
    nearest = {name: _FORBIDDEN.sub("_", f"{prefix}{name}")[:_LONGEST_NAME] for name in names}
    shared = {name for name, count in Counter(nearest.values()).items() if count > 1}
    return {
        name: legal if legal not in shared or legal == f"{prefix}{name}" else _apart(legal, name)
        for name, legal in nearest.items()
    }


def _apart(legal: str, name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{legal[: _LONGEST_NAME - 9]}_{digest}"


def _sendable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without halves of surrogate pairs, which would end the connection."""
    sent: dict[str, Any] = json.loads(clean_text(json.dumps(arguments, ensure_ascii=False)))
    return sent


async def _list_tools(connection: Connection) -> list[ServersTool]:
    page = await connection.client.list_tools()
    tools = list(page.tools)
    while page.next_cursor is not None:
        page = await connection.client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools
