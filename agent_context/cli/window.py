"""`context-actor context` and `inspect`: what fills the window, and what would be sent."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, NoReturn, Protocol

import orjson
import typer
from msgspec import Struct

from agent_context import AgentContext
from agent_context._installed_backends import ECHO
from agent_context.backend import ContextBackend
from agent_context.cli.backends import Choice, choose_unasked
from agent_context.cli.conversations import opened
from agent_context.cli.output import show_json, show_table, shown_text, to_line
from agent_context.cli.places import failures
from agent_context.errors import AgentContextError, InvalidOptions
from agent_context.messages import Message
from agent_context.options import SendOptions
from agent_context.protocol import (
    CacheReport,
    Compressed,
    EstimateTokens,
    FromJsonl,
    Immutable,
    Incremental,
    Send,
    ToJsonl,
    TokenBreakdown,
)
from agent_context.ref import ContextRef

__all__ = ["context", "grid", "inspect", "show_grid", "window_json"]

_CELLS: Final = 100
_ROW: Final = 20


class _Part(Struct, frozen=True):
    """One kind of what fills the window."""

    name: str
    tokens: int
    sign: str
    colour: str


def context(store: str | None, conversation: str, model: str | None, *, as_json: bool) -> None:
    """Show what a turn sent now would take of the window."""
    with failures():
        choice = choose_unasked(model)
    with opened(store, choice.backend, choice.options) as host:
        ref = host.get(conversation, create=False)
        if as_json:
            show_json({"model": choice.model, "backend": choice.name, **window_json(ref)})
        else:
            show_grid(ref)


def window_json(ref: ContextRef) -> Mapping[str, Any]:
    """The parts of the window in tokens, and what the vendor's cache is expected to hold."""
    tokens, cached = _measure(ref)
    return {**asdict(tokens), "total": tokens.total, "free": tokens.free, "cached_prefix": cached}


def show_grid(ref: ContextRef) -> None:
    """Print the window as a grid, with a legend."""
    tokens, cached = _measure(ref)
    text = grid(tokens, cached)
    if not sys.stdout.isatty():
        typer.echo("\n".join(line for line, _ in text))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line, colours in text:
        shown = Text(line)
        for at, colour in enumerate(colours):
            shown.stylize(colour, at, at + 1)
        console.print(shown)


def _measure(ref: ContextRef) -> tuple[TokenBreakdown, int]:
    following = ref.ask(CacheReport()).next
    cached = 0
    if following is not None:
        cached = following.shared if following.predicted is None else following.predicted
    return ref.ask(EstimateTokens()), cached


def grid(tokens: TokenBreakdown, cached: int) -> list[tuple[str, list[str]]]:
    """Lines, each with the colours of its first characters.

    A cell is a hundredth of the window; `▣` is one that the vendor's cache holds.
    """
    window = tokens.window or max(tokens.total + tokens.reserve, 1)
    parts = _parts(tokens, window)
    cells = _cells(parts, window)
    for at in range(min(round(cached * _CELLS / window), len(cells))):
        if cells[at][0] == "■":
            cells[at] = ("▣", cells[at][1])
    lines = [
        (" ".join(sign for sign, _ in row), [c for _, colour in row for c in (colour, "")])
        for row in (cells[start : start + _ROW] for start in range(0, _CELLS, _ROW))
    ]
    exact = "" if tokens.exact else " (estimated)"
    lines.append((f"{tokens.total} of {tokens.window or '?'} tokens{exact}", []))
    for part in parts:
        share = f"{100 * part.tokens / window:5.1f} %"
        lines.append((f"{part.sign} {part.name:<13}{part.tokens:>9}{share:>9}", [part.colour]))
    if cached:
        lines.append((f"▣ {'cached prefix':<13}{cached:>9}{100 * cached / window:>7.1f} %", []))
    return lines


def _parts(tokens: TokenBreakdown, window: int) -> list[_Part]:
    free = max(0, window - tokens.total - tokens.reserve)
    system = tokens.immutable + tokens.instructions
    return [
        _Part("immutable", system, "■", "magenta"),
        _Part("compressed", tokens.compressed, "■", "yellow"),
        _Part("incremental", tokens.incremental, "■", "cyan"),
        _Part("scratch", tokens.scratch, "■", "green"),
        _Part("tools", tokens.tools + tokens.overhead, "■", "blue"),
        _Part("reserve", tokens.reserve, "▨", "bright_black"),
        _Part("free", free, "□", "bright_black"),
    ]


def _cells(parts: list[_Part], window: int) -> list[tuple[str, str]]:
    """A cell for each hundredth; what is there at all has one."""
    cells: list[tuple[str, str]] = []
    for part in parts[:-1]:
        count = max(1, round(part.tokens * _CELLS / window)) if part.tokens else 0
        cells += [(part.sign, part.colour)] * count
    free = parts[-1]
    cells += [(free.sign, free.colour)] * (_CELLS - len(cells))
    return cells[:_CELLS]


def inspect(
    store: str | None, conversation: str, vendor: str | None, text: str | None, *, as_json: bool
) -> None:
    """Show the zones message by message or, with a vendor, the request that it would get."""
    with failures():
        taken = _Capture() if vendor is not None else None
        choice = _capturing(vendor, taken) if vendor and taken else choose_unasked(ECHO)
    with opened(store) as host:
        ref = host.get(conversation, create=False)
        if taken is not None:
            typer.echo(_body(ref, choice, taken, text))
            return
        rows = list(_rows(ref, choice.backend))
        if as_json:
            for zone, index, tokens, message in rows:
                fields = {"zone": zone, "index": index, "tokens": tokens}
                show_json({**fields, "message": message.to_dict()})
            return
        show_table(
            ("zone", "index", "tokens", "role", "text"),
            [
                (zone, str(index), str(tokens), message.role, to_line(shown_text(message), 80))
                for zone, index, tokens, message in rows
            ],
        )


def _rows(ref: ContextRef, backend: ContextBackend) -> list[tuple[str, int, int, Message]]:
    zones = {
        "immutable": ref.ask(Immutable()),
        "compressed": ref.ask(Compressed()),
        "incremental": ref.ask(Incremental()),
    }
    facts = backend.model_facts(None)
    return [
        (zone, index, backend.estimate_tokens(message, facts), message)
        for zone, messages in zones.items()
        for index, message in enumerate(messages)
    ]


class _Captured(AgentContextError):
    """Ends a request whose body is there."""


class _Outgoing(Protocol):
    async def aread(self) -> bytes: ...


class _Capture:
    """A backend's `transport` that takes what would be sent, and sends nothing."""

    def __init__(self) -> None:
        self.body: bytes | None = None

    async def handle_async_request(self, request: _Outgoing) -> NoReturn:
        self.body = await request.aread()
        raise _Captured("what would be sent is known")

    async def aclose(self) -> None:
        """Nothing is open."""


def _capturing(vendor: str, taken: _Capture) -> Choice:
    name = vendor.partition(":")[0]
    try:
        if name != ECHO:
            return choose_unasked(vendor, transport=taken)
    except TypeError:  # it takes no transport
        pass
    raise InvalidOptions(f"as: {name} has no request of its own; name a vendor, such as deepseek")


def _body(ref: ContextRef, choice: Choice, taken: _Capture, text: str | None) -> str:
    """The request of a turn, made by a copy of the conversation that keeps nothing."""
    said = [] if text is None else [Message.user(text)]
    copy = AgentContext.start(choice.backend, options=choice.options)
    try:
        copy.ask(FromJsonl(ref.ask(ToJsonl(), timeout=600)), timeout=600)
        copy.ask(Send(SendOptions(auto_compress=False, retries=0), said))
    except AgentContextError:
        if taken.body is None:
            raise
    finally:
        copy.stop()
        asyncio.run(choice.backend.aclose())
    body = orjson.loads(taken.body or b"null")
    return orjson.dumps(body, option=orjson.OPT_INDENT_2).decode()
