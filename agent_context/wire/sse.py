"""Server-sent events as model servers really send them: bytes in, payloads out."""

from __future__ import annotations

__all__ = ["SseDecoder"]

_BOM = b"\xef\xbb\xbf"
_COLON = ord(":")


class SseDecoder:
    """Finds the `data` payloads in a byte stream that may be split anywhere. Linear in its length.

    Lines end in LF, CR or CRLF; `data:` needs no space; comments, other fields and empty events
    are skipped. Payloads stay bytes: a character split between two reads is never seen.
    """

    __slots__ = ("_after_cr", "_data", "_partial", "_started", "comments")

    def __init__(self) -> None:
        self.comments = 0
        """Comment lines so far: signs of life of a server that has nothing to say yet."""
        self._partial: list[bytes] = []
        self._data: list[bytes] = []
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
            return []
        if self._partial:
            data = b"".join((*self._partial, data))
            self._partial.clear()
        lines = data.splitlines()
        if not data.endswith((b"\n", b"\r")):
            self._partial.append(lines.pop())
        self._after_cr = data.endswith(b"\r")
        return self._take(lines)

    def close(self) -> list[bytes]:
        """The payload that the end of the stream left without its blank line, if any."""
        line = b"".join(self._partial)
        self._partial.clear()
        return self._take([line, b""])

    def _take(self, lines: list[bytes]) -> list[bytes]:
        if not self._started and lines:
            self._started = True
            lines[0] = lines[0].removeprefix(_BOM)
        payloads: list[bytes] = []
        for line in lines:
            if not line:
                self._dispatch(payloads)
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line[0] == _COLON:
                self.comments += 1
        return payloads

    def _dispatch(self, payloads: list[bytes]) -> None:
        if not self._data:
            return
        payload = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        if payload:
            payloads.append(payload)
