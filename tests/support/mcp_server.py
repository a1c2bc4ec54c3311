"""A real MCP server: `mcp_server.py stdio`, or `mcp_server.py http`, which prints its port."""

import base64
import os
import signal
import socket
import sys
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ResourceLink,
    TextResourceContents,
    ToolAnnotations,
)

server = MCPServer("test", instructions="Handle with care.", log_level="CRITICAL")
NO_BYTES = base64.b64encode(b"\0" * 6).decode()


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


@server.tool(name="odd.name/here")
def odd(word: str) -> str:
    return word.upper()


@server.tool()
def fail() -> str:
    raise ValueError("broken")


@server.tool(structured_output=False)
def look() -> list[Image | str]:
    return ["A dot:", Image(data=b"\x89PNG", format="png")]


@server.tool(structured_output=False)
def everything() -> list[AudioContent | EmbeddedResource | ResourceLink]:
    note = TextResourceContents(uri="memo://1", text="buy milk")
    picture = BlobResourceContents(uri="memo://2", mime_type="image/gif", blob=NO_BYTES)
    data = BlobResourceContents(uri="memo://3", mime_type="application/zip", blob=NO_BYTES)
    return [
        AudioContent(type="audio", data=NO_BYTES, mime_type="audio/wav"),
        *[EmbeddedResource(type="resource", resource=item) for item in (note, picture, data)],
        ResourceLink(type="resource_link", name="log", uri="memo://4", description="a log"),
    ]


@server.tool()
async def work(ctx: Context) -> str:
    await ctx.report_progress(1, 2, "halfway")
    return "done"


@server.tool()
def surroundings() -> str:
    return f"{os.environ.get('WORD')} {Path.cwd()} {'SECRET' in os.environ}"


@server.tool()
def die() -> str:
    os._exit(3)


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def die_once(flag: str) -> str:
    if Path(flag).exists():
        return "alive"
    Path(flag).touch()
    os._exit(3)


@server.tool()
def freeze(flag: str) -> str:
    """Stop the first time, as a program in a debugger does."""
    if not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    return "awake"


@server.tool()
def garble(word: str) -> str:
    """Put a byte that is no UTF-8 into what goes out."""
    if sys.argv[1] == "stdio":
        os.write(1, b'{"jsonrpc": "2.0", "method": "notifications/message\xff"}\n')
    return word


def main() -> None:
    if sys.argv[1] == "stdio":
        server.run()
        return
    listening = socket.create_server(("127.0.0.1", int(sys.argv[2])))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(server.streamable_http_app(), log_level="critical")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
