"""Images, files and audio from a path, as parts of a message."""

from __future__ import annotations

import os
import struct
from base64 import b64encode
from pathlib import Path
from typing import Final

from agent_context.errors import InvalidMessage
from agent_context.messages import ImagePart, OpaquePart

__all__ = ["Audio", "File", "Image"]

MAX_BYTES: Final = 20 * 1024 * 1024
"""Bytes of a file that is read if nothing else is said: more than most vendors take."""

_IMAGES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_AUDIO: Final = (
    (b"ID3", "mp3"),
    (b"\xff\xfb", "mp3"),
    (b"\xff\xf3", "mp3"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
)
_START_OF_FRAME: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


class Image:
    """An image for `Message.user(["What is this?", Image.from_path("cat.png")])`."""

    @staticmethod
    def from_path(
        path: str | os.PathLike[str], *, detail: str | None = None, max_bytes: int = MAX_BYTES
    ) -> ImagePart:
        """The image in a PNG, JPEG, GIF or WebP file, by its content and whatever its name.

        Its size in pixels is read, so that its tokens are counted. `detail` says how closely the
        model should look. Raises `InvalidMessage` for another kind of file and one of more than
        `max_bytes`, and `OSError`.
        """
        data = _read(path, max_bytes)
        kind = _sniff_image(data)
        if kind is None:
            raise InvalidMessage(f"{path}: no PNG, JPEG, GIF or WebP image")
        width, height = _size(data, kind) or (None, None)
        return ImagePart(url=_url(data, kind), detail=detail, width=width, height=height)


class File:
    """A document for a message. Vendors take PDF; what a model can't read is said in words."""

    @staticmethod
    def from_path(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> OpaquePart:
        """The PDF in a file, under its name.

        Raises `InvalidMessage` for what is no PDF (say a text as text) and for more than
        `max_bytes`, and `OSError`.
        """
        data = _read(path, max_bytes)
        if not data.startswith(b"%PDF-"):
            raise InvalidMessage(f"{path}: no PDF; what is text goes into the message as text")
        said = {"filename": Path(path).name, "file_data": _url(data, "application/pdf")}
        return OpaquePart(data={"type": "file", "file": said})


class Audio:
    """A recording for a message."""

    @staticmethod
    def from_path(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> OpaquePart:
        """The sound in a WAV, MP3, FLAC or Ogg file, by its content and whatever its name.

        Raises `InvalidMessage` for another kind of file and for more than `max_bytes`, and
        `OSError`.
        """
        data = _read(path, max_bytes)
        kind = "wav" if data[:4] == b"RIFF" and data[8:12] == b"WAVE" else _sniff(data, _AUDIO)
        if kind is None:
            raise InvalidMessage(f"{path}: no WAV, MP3, FLAC or Ogg recording")
        said = {"data": b64encode(data).decode(), "format": kind}
        return OpaquePart(data={"type": "input_audio", "input_audio": said})


def _read(path: str | os.PathLike[str], most: int) -> bytes:
    with Path(path).open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InvalidMessage(f"{path}: more than {most:,} bytes; max_bytes allows more")
    if not data:
        raise InvalidMessage(f"{path}: the file is empty")
    return data


def _url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{b64encode(data).decode()}"


def _sniff(data: bytes, known: tuple[tuple[bytes, str], ...]) -> str | None:
    return next((kind for start, kind in known if data.startswith(start)), None)


def _sniff_image(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return _sniff(data, _IMAGES)


def _size(data: bytes, kind: str) -> tuple[int, int] | None:
    """Width and height in pixels; None if the file doesn't say them where they should stand."""
    try:
        match kind:
            case "image/png":
                width, height = struct.unpack(">II", data[16:24])
            case "image/gif":
                width, height = struct.unpack("<HH", data[6:10])
            case "image/webp":
                return _size_of_webp(data)
            case _:
                return _size_of_jpeg(data)
    except struct.error:
        return None
    return int(width), int(height)


def _size_of_webp(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8X":
            width = int.from_bytes(data[24:27], "little") + 1
            return width, int.from_bytes(data[27:30], "little") + 1
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            width, height = struct.unpack("<HH", data[26:30])
            return int(width) & 0x3FFF, int(height) & 0x3FFF
        case _:
            return None


def _size_of_jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        if data[at + 1] in _START_OF_FRAME:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return int(width), int(height)
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None
