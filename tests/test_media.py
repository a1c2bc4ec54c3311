"""Images, files and audio from a path."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from agent_context import Message
from agent_context.errors import InvalidMessage
from agent_context.media import Audio, File, Image
from agent_context.messages import OpaquePart


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x7f" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def jpeg(width: int, height: int) -> bytes:
    comment = b"\xff\xfe\x00\x05abc"
    frame = b"\xff\xc0\x00\x0b\x08" + struct.pack(">HH", height, width) + b"\x01\x01\x11\x00"
    return b"\xff\xd8" + comment + frame + b"\xff\xd9"


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + kind + struct.pack("<I", len(body)) + body


IMAGES = {
    "image/png": png(7, 5),
    "image/jpeg": jpeg(7, 5),
    "image/gif": b"GIF89a" + struct.pack("<HH", 7, 5) + b"\0\0\0;",
    "image/webp": webp(b"VP8X", b"\0\0\0\0" + b"\x06\0\0" + b"\x04\0\0"),
    "image/webp ": webp(b"VP8L", b"\x2f" + (6 | 4 << 14).to_bytes(4, "little")),
    "image/webp  ": webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 7, 5)),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_is_known_by_its_content_and_its_size_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "picture.txt"
    path.write_bytes(IMAGES[kind])

    part = Image.from_path(path, detail="low")

    assert part.url.startswith(f"data:{kind.strip()};base64,")
    assert (part.width, part.height, part.detail) == (7, 5, "low")


def test_a_size_that_is_not_there_is_not_made_up(tmp_path: Path) -> None:
    path = tmp_path / "cut.jpg"
    path.write_bytes(b"\xff\xd8\xff\xe0\x00\x10JFIF")

    assert Image.from_path(path).width is None


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"RIFF\0\0\0\0WAVEfmt ", "wav"),
        (b"ID3\x04", "mp3"),
        (b"fLaC\0", "flac"),
        (b"OggS\0", "ogg"),
    ],
)
def test_a_recording_is_known_by_its_content(data: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "sound"
    path.write_bytes(data)

    part = Audio.from_path(path)

    assert part.data["input_audio"]["format"] == kind


def test_a_document_goes_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "contract.pdf"
    path.write_bytes(b"%PDF-1.7 ...")

    part = File.from_path(path)

    assert part.data["file"]["filename"] == "contract.pdf"
    assert part.data["file"]["file_data"].startswith("data:application/pdf;base64,")


@pytest.mark.parametrize("kind", [Image, File, Audio])
@pytest.mark.parametrize(
    ("data", "words"),
    [(b"just text", "no "), (b"", "is empty"), (b"x" * 100, "more than 50 bytes")],
)
def test_what_can_not_be_sent_is_refused(
    kind: Any, data: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "thing"
    path.write_bytes(data)

    with pytest.raises(InvalidMessage, match=words):
        kind.from_path(path, max_bytes=50)


def test_a_message_takes_them_and_shows_none_of_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png(200, 200))
    message = Message.user(["What is this?", Image.from_path(path)])
    sound = OpaquePart(data={"type": "input_audio", "input_audio": {"data": "A" * 5000}})

    assert Message.from_dict(message.to_dict()) == message
    assert len(repr(message)) < 600
    assert "data:image/png;base64,…" in repr(message)
    assert len(repr(sound)) < 200
