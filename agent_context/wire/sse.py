"""Server-sent events as model servers really send them: bytes in, payloads out."""

from __future__ import annotations

import orjson

__all__ = ["LONGEST_EVENT", "ResponseTooLong", "SseDecoder"]

LONGEST_EVENT = 16 * 1024 * 1024
"""Bytes of one event that are read by default. No model writes as much at a time."""

_BOM = b"\xef\xbb\xbf"
_COLON, _BRACE = ord(":"), ord("{")


class ResponseTooLong(Exception):
    """A server sends more than anybody should take in."""


class SseDecoder:
    """Finds the `data` payloads in a byte stream that may be split anywhere. Linear in its length.

    Lines end in LF, CR or CRLF; `data:` needs no space; comments, other fields and empty events
    are skipped. Payloads stay bytes: a character split between two reads is never seen. Of what
    the standard doesn't know: an empty line is not needed between two JSON objects, a line may be
    an object without `data:`, and what an event or field named `error` says comes as an object
    whose `error` it is.

    Raises `ResponseTooLong` for an event of more than `limit` bytes.
    """

    __slots__ = (
        "_after_cr",
        "_data",
        "_failed",
        "_limit",
        "_partial",
        "_size",
        "_started",
        "comments",
    )

    def __init__(self, limit: int = LONGEST_EVENT) -> None:
        self.comments = 0
        """Comment lines so far: signs of life of a server that has nothing to say yet."""
        self._limit = limit
        self._size = 0
        self._partial: list[bytes] = []
        self._data: list[bytes] = []
        self._failed = False
        self._after_cr = False
        self._started = False

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads of the events that are complete with `data`."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\n" not in data and b"\r" not in data:
            if data:
                self._partial.append(data)
                self._grow(len(data))
            return []
        if self._partial:
            data = b"".join((*self._partial, data))
            self._partial.clear()
        lines = data.splitlines()
        if not data.endswith((b"\n", b"\r")):
            self._partial.append(lines.pop())
        self._after_cr = data.endswith(b"\r")
        found = self._take(lines)
        self._size = sum(map(len, self._data))
        self._grow(sum(map(len, self._partial)))
        return found

    def close(self) -> list[bytes]:
        """The payload that the end of the stream left without its blank line, if any."""
        line = b"".join(self._partial)
        self._partial.clear()
        return self._take([line, b""])

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._limit:
            raise ResponseTooLong(f"an event of its stream has more than {self._limit} bytes")

    def _take(self, lines: list[bytes]) -> list[bytes]:
        if not self._started and lines:
            self._started = True
            lines[0] = lines[0].removeprefix(_BOM)
        payloads: list[bytes] = []
        for line in lines:
            if not line:
                self._dispatch(payloads)
            elif line.startswith(b"data:"):
                if self._data:
                    self._part(payloads)
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line[0] == _COLON:
                self.comments += 1
            else:
                self._read_other(line, payloads)
        return payloads

    def _part(self, payloads: list[bytes]) -> None:
        """End the event here if it is a whole object: some servers send no empty line."""
        payload = b"\n".join(self._data)
        if payload.lstrip().startswith(b"{") and _is_json(payload):
            self._dispatch(payloads)

    def _read_other(self, line: bytes, payloads: list[bytes]) -> None:
        name, _, value = line.partition(b":")
        if line[0] == _BRACE:
            self._dispatch(payloads)
            payloads.append(line)
        elif name == b"event":
            self._part(payloads)
            self._failed = value.strip() == b"error"
        elif name == b"error":
            self._dispatch(payloads)
            payloads.append(_as_error(value))

    def _dispatch(self, payloads: list[bytes]) -> None:
        failed, self._failed = self._failed, False
        if not self._data:
            return
        payload = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        if failed or payload.lstrip().startswith(b"error:"):
            payload = _as_error(payload)
        if payload:
            payloads.append(payload)


def _is_json(payload: bytes) -> bool:
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError:
        return False
    return True


def _as_error(said: bytes) -> bytes:
    """What a server says of its failure, as an object that has it in `error`."""
    said = said.strip().removeprefix(b"error:").strip()
    if said and _is_json(said):
        return b'{"error":' + said + b"}"
    return orjson.dumps({"error": said.decode("utf-8", "replace") or "no reason was given"})
