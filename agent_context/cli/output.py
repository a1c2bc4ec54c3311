"""What commands print: tables for people, tab-separated lines for pipes, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import typer
from pydantic import BaseModel

from agent_context.messages import Message

__all__ = ["say", "show_json", "show_table", "shown_text", "shown_time", "to_line"]

_LINE = 200


def say(text: str) -> None:
    """Tell the user something beside the output."""
    typer.echo(text, err=True)


def show_json(value: Any) -> None:  # noqa: ANN401 - whatever JSON has
    """Print one line of JSON."""
    typer.echo(orjson.dumps(value, default=_plain).decode())


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on a terminal, and lines with tabs between the values elsewhere."""
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(to_line(value, None) for value in row))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def shown_time(timestamp: float) -> str:
    """Unix seconds as local time to the second."""
    return datetime.fromtimestamp(timestamp, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def to_line(text: str, limit: int | None = _LINE) -> str:
    """A text on one line, without control characters, cut to so many characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if limit is None or len(line) <= limit else f"{line[: limit - 1]}…"


def shown_text(message: Message) -> str:
    """What a message says, its tool calls included."""
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join(part for part in [message.text, *calls] if part)


def _plain(value: object) -> object:
    if isinstance(value, Message):
        return value.to_dict()
    if isinstance(value, BaseModel):
        return value.model_dump()
    raise TypeError(type(value).__name__)
