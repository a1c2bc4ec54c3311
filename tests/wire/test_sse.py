"""The SSE decoder: the same payloads, however the bytes are cut."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context.wire.sse import ResponseTooLong, SseDecoder


def payloads(*pieces: bytes) -> list[bytes]:
    decoder = SseDecoder()
    found = [payload for piece in pieces for payload in decoder.feed(piece)]
    return found + decoder.close()


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\n\r\n", [b"a"]),
        (b"data: a\r\r", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"event: x\nid: 1\nretry: 5\ndata: a\n\n", [b"a"]),
        (b": comment\n\n:\n\ndata: a\n\n", [b"a"]),
        (b"\n\n\ndata: a\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data\n\ndata:\n\ndata: a\n\n", [b"a"]),
        (b'data: {"a":1}\ndata: {"b":2}\n\n', [b'{"a":1}', b'{"b":2}']),
        (b'data: {"a":1}\nevent: x\ndata: {"b":2}\n', [b'{"a":1}', b'{"b":2}']),
        (b'data: {\ndata: "a": {}\ndata: }\n\n', [b'{\n"a": {}\n}']),
        (b'data: {"a":1}\ndata: [DONE]\n\n', [b'{"a":1}', b"[DONE]"]),
        (b'{"a":1}\ndata: b\n\n', [b'{"a":1}', b"b"]),
        (b"event: error\ndata: no\n\ndata: b\n\n", [b'{"error":"no"}', b"b"]),
        (b'event: error\ndata: {"a":1}\n\n', [b'{"error":{"a":1}}']),
        (b"data: error: no\n\n", [b'{"error":"no"}']),
        (b"error: no\n", [b'{"error":"no"}']),
        (b"event: error\n\ndata: b\n\n", [b"b"]),
        (b"data: a", [b"a"]),
        (b"data: a\n", [b"a"]),
        (b"", []),
        ("data: „中😀“\n\n".encode(), ["„中😀“".encode()]),
    ],
)
def test_payloads_are_found_wherever_the_bytes_are_cut(
    stream: bytes, expected: list[bytes]
) -> None:
    one_by_one = [stream[i : i + 1] for i in range(len(stream))]

    assert payloads(stream) == expected
    assert payloads(*one_by_one) == expected
    for cut in range(len(stream)):
        assert payloads(stream[:cut], b"", stream[cut:]) == expected


LINES = st.sampled_from([b"data: a", b"data:b", b"", b":", b": c", b"event: e", b"data: \xc3\xa4"])
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(
    st.lists(st.tuples(LINES, ENDS)).map(lambda pairs: b"".join(a + b for a, b in pairs)),
    st.data(),
)
def test_any_cuts_give_the_same_payloads(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[i:j] for i, j in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert payloads(*pieces) == payloads(stream)


def test_comments_are_counted() -> None:
    decoder = SseDecoder()

    decoder.feed(b": keep-alive\n\n: keep-")
    decoder.feed(b"alive\n\n")

    assert decoder.comments == 2


@pytest.mark.parametrize("line", [b"data: ", b":", b"x", b"data: a\ndata: "])
def test_an_event_has_a_limit(line: bytes) -> None:
    decoder = SseDecoder(limit=100)
    decoder.feed(b"data: " + b"x" * 90 + b"\n\n" + line)

    for _ in range(9):
        decoder.feed(b"x" * 10)

    with pytest.raises(ResponseTooLong, match="100 bytes"):
        decoder.feed(b"x" * 11)


def cpu_time_of(size: int) -> float:
    line = b"data: " + b"x" * size + b"\n\n"
    decoder, before = SseDecoder(), time.process_time()
    for start in range(0, len(line), 1024):
        decoder.feed(line[start : start + 1024])
    return time.process_time() - before


def test_a_long_line_takes_linear_time() -> None:
    assert cpu_time_of(8_000_000) < 0.5
