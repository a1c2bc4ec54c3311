"""An export of a chat service: a list of conversations in a JSON file, or in a zip file of some."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from agent_context.errors import ImportFailed, InvalidMessage
from agent_context.imports.result import (
    ImportedConversation,
    ImportResult,
    Rejected,
    collect,
    raw_of,
)
from agent_context.wire.lenient_json import as_list, as_mapping, loads_lenient

__all__ = ["MAX_BYTES", "Exported", "items_of", "lacks", "read_export", "texts_in"]

Exported = Mapping[str, Any]
"""One conversation, as the service wrote it."""

Reader = Callable[[Exported], Iterator[ImportedConversation | Rejected]]

_NAMES = "conversations*.json"
"""Large exports come in several: conversations-000.json and so on."""

MAX_BYTES: Final = 512 << 20
"""Of a text, unpacked; what is larger is refused. The largest exports are about half of that."""
_MAX_RATIO: Final = 100
"""Text of conversations packs to a tenth or so; what packs far better is no such text."""
_MAX_VALUES: Final = 20_000_000
"""Objects, lists and their items in a text: parsed, each takes about 100 bytes."""


def read_export(
    path: str | os.PathLike[str],
    read: Reader,
) -> ImportResult:
    """The conversations of an export, each by `read`; what it can't read is reported.

    Raises `ImportFailed` if there is no list of conversations.
    """
    return collect(
        piece for name, text in texts_in(path) for piece in _conversations(name, text, read)
    )


def texts_in(path: str | os.PathLike[str]) -> Iterator[tuple[str, bytes]]:
    """The file with its name; of a zip file those in it that hold conversations."""
    file = Path(path)
    try:
        if not zipfile.is_zipfile(file):
            _check_size(str(file), file.stat().st_size)
            yield str(file), file.read_bytes()
            return
        with zipfile.ZipFile(file) as archive:
            members = sorted(
                each for each in archive.namelist() if fnmatch(PurePosixPath(each).name, _NAMES)
            )
            if not members:
                raise ImportFailed(0, f"{file}: a zip file with {_NAMES} is expected")
            for name in members:
                yield f"{file}/{name}", _unpack(archive, name, file)
    except _DAMAGED as error:
        raise ImportFailed(0, f"{file}: can't be read: {error or type(error).__name__}") from error


_DAMAGED: Final = (
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    NotImplementedError,
    RuntimeError,
)
"""What reading a damaged or encrypted archive may raise."""


def _unpack(archive: zipfile.ZipFile, name: str, file: Path) -> bytes:
    member = archive.getinfo(name)
    _check_size(f"{file}/{name}", member.file_size)
    if member.file_size > _MAX_RATIO * max(member.compress_size, 64 << 10):
        raise ImportFailed(
            0,
            f"{file}/{name}: {member.compress_size} bytes that unpack to {member.file_size} are no "
            "conversations",
        )
    with archive.open(member) as opened:
        return opened.read(member.file_size)


def _check_size(name: str, size: int) -> None:
    if size > MAX_BYTES:
        raise ImportFailed(
            0, f"{name}: {size >> 20} MB are too much at once, {MAX_BYTES >> 20} are read: split it"
        )


def lacks(exported: Exported, field: str, kind: type) -> Rejected | None:
    """What is wrong with an entry whose `field` isn't of this kind; None if it is."""
    value = exported.get(field)
    if isinstance(value, kind):
        return None
    found = f"not {type(value).__name__}" if field in exported else f"only {sorted(exported)}"
    why = f"no conversation: `{field}` is expected, {found[:200]}"
    return Rejected("the entry", raw_of(exported), why)


def _conversations(
    name: str,
    text: bytes,
    read: Reader,
) -> Iterator[ImportedConversation | Rejected]:
    for number, item in enumerate(items_of(name, text)):
        where = f"{name}, conversation {number}"
        if isinstance(item, Rejected):
            yield item
        elif type(item) is dict:
            yield from _pieces(cast("Exported", item), where, read)
        else:
            why = f"an object is expected, not {type(item).__name__}"
            yield Rejected(where, raw_of(item), why)


def _pieces(
    exported: Exported,
    where: str,
    read: Reader,
) -> Iterator[ImportedConversation | Rejected]:
    try:
        pieces = list(read(exported))
    except InvalidMessage as error:
        pieces = []
        yield Rejected(where, raw_of(exported), str(error))
    for piece in pieces:
        if isinstance(piece, Rejected):
            yield Rejected(f"{where}, {piece.where}", piece.raw, piece.why)
        else:
            yield piece


def items_of(name: str, text: bytes) -> Iterator[object]:
    """The conversations; of a file that was cut off those that are whole."""
    if sum(map(text.count, (b"{", b"[", b","))) > _MAX_VALUES:
        raise ImportFailed(0, f"{name}: more than {_MAX_VALUES} values are no conversations")
    try:
        value = loads_lenient(text.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        yield from _whole(name, text, f"not JSON: {error}")
        return
    if isinstance(value, dict):
        fields = as_mapping(cast("object", value))
        value = fields.get("conversations", [fields])
    if not isinstance(value, list):
        raise ImportFailed(0, f"{name}: a list of conversations is expected")
    yield from as_list(cast("object", value))


def _whole(name: str, text: bytes, why: str) -> Iterator[object]:
    decoder = json.JSONDecoder()
    rest = text.decode("utf-8", "replace").strip("\ufeff \t\r\n")
    if not rest.startswith("["):
        raise ImportFailed(0, f"{name}: {why}")
    place = 1
    while True:
        while rest[place : place + 1] in {" ", "\t", "\r", "\n", ","}:
            place += 1
        try:
            value, place = decoder.raw_decode(rest, place)
        except (ValueError, RecursionError):
            break
        yield loads_lenient(json.dumps(value).encode())  # without half surrogate pairs
    yield Rejected(f"{name}, character {place}", rest[place:].encode("utf-8", "replace"), why)
