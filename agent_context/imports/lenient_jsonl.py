"""JSON objects, one a line, of which some may be broken.

A program that dies while it appends leaves half a line, a machine that dies may leave NUL bytes;
and the next record is then written right behind. What is whole is found all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final, cast

import orjson

from agent_context.errors import ImportFailed
from agent_context.imports.result import Rejected
from agent_context.wire.lenient_json import loads_lenient

__all__ = ["MAX_LINE", "lines_of", "objects_in"]

_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_TRIES = 64
"""How many places of a broken line may be the beginning of a whole record."""

_START = re.compile(rb'(?<![\[,:\s\\])\s*(?=\{\s*")')
"""Where a record may begin behind a torn one. After `[`, `,` or `:` it may as well be a part of
the torn one, which must not be taken for a record of its own."""

_RECORD = frozenset({"role", "messages", "agent_context"})


MAX_LINE: Final = 256 << 20
"""Bytes of a line: what is longer is no line."""


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file. Raises `ImportFailed` for one that is too long to be read."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise ImportFailed(number, f"the line is longer than {MAX_LINE >> 20} MB")
        yield line


def objects_in(
    lines: Iterable[bytes], *, first: int = 1
) -> Iterator[tuple[int, dict[str, Any]] | Rejected]:
    """Each object with the number of its line, from `first`; blank lines are passed over."""
    for number, line in enumerate(lines, start=first):
        text = line.removeprefix(_BOM) if number == 1 else line
        text = text.strip(_SPACE)
        bare = text.strip(_SPACE + b"\0")
        if len(bare) < len(text):
            padding = len(text) - len(bare)
            yield Rejected(f"line {number}", b"\0" * padding, f"{padding} bytes of padding")
        if bare:
            yield from _objects(bare, number)


def _objects(text: bytes, number: int) -> Iterator[tuple[int, dict[str, Any]] | Rejected]:
    where = f"line {number}"
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        value, why = _repair(text), f"not JSON: {error}"
        if value is None:
            yield from _behind_torn(text, number, why)
            return
        yield Rejected(where, text, "taken, with U+FFFD in the place of what is no Unicode")
    if isinstance(value, dict):
        yield number, cast("dict[str, Any]", value)
    else:
        why = f"an object is expected, not {type(value).__name__}"
        yield Rejected(where, text, why)


def _repair(text: bytes) -> object:
    try:
        return loads_lenient(text)
    except (ValueError, RecursionError):
        return None


def _behind_torn(
    text: bytes, number: int, why: str
) -> Iterator[tuple[int, dict[str, Any]] | Rejected]:
    """The record that a torn line ends with, if there is one; what stands before it is reported."""
    for found in _starts(text):
        try:
            value = orjson.loads(text[found:])
        except orjson.JSONDecodeError:
            continue
        if isinstance(value, dict) and not _RECORD.isdisjoint(cast("dict[str, Any]", value)):
            yield Rejected(f"line {number}", text[:found], f"torn: {why}")
            yield number, cast("dict[str, Any]", value)
            return
    yield Rejected(f"line {number}", text, why)


def _starts(text: bytes) -> Iterator[int]:
    for tries, found in enumerate(_START.finditer(text, 1)):
        if tries == _TRIES:
            return
        yield found.end()
