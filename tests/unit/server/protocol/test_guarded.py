"""Heads of requests that are too much, or that could be read in two ways."""

import pytest

from skillwire.server.protocol.guarded import Refusal, check_head, head_bytes
from skillwire.server.protocol.limits import ConnectionLimits, Ending

LIMITS = ConnectionLimits(url_bytes=20, header_count=5, body_bytes=100)
HOST = (b"host", b"here:8000")
CHUNKED = (b"transfer-encoding", b"chunked")


@pytest.mark.parametrize(
    ("version", "target", "headers"),
    [
        ("1.1", b"/mcp", [HOST]),
        ("1.1", b"/mcp?a=b", [HOST, (b"content-length", b"100")]),
        ("1.1", b"/mcp", [HOST, (b"transfer-encoding", b"Chunked")]),
        ("1.1", b"/mcp", [HOST, (b"accept", b"a"), (b"accept", b"b")]),
        ("1.1", b"http://HERE:8000/mcp", [HOST]),
        ("1.0", b"/mcp", []),
        ("1.0", b"/mcp", [HOST]),
        ("1.1", b"/" + b"u" * 19, [HOST]),
        ("1.1", b"/mcp", [HOST, *[(b"x-%d" % number, b"y") for number in range(4)]]),
    ],
)
def test_ordinary_heads_pass(version: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    check_head(LIMITS, version, target, headers)


@pytest.mark.parametrize(
    ("version", "target", "headers", "ending"),
    [
        ("1.1", b"/mcp", [], Ending.MALFORMED),
        ("1.1", b"/mcp", [HOST, HOST], Ending.MALFORMED),
        ("1.0", b"/mcp", [HOST, HOST], Ending.MALFORMED),
        ("0.9", b"/mcp", [], Ending.MALFORMED),
        ("2.0", b"/mcp", [HOST], Ending.MALFORMED),
        ("1.0", b"/mcp", [HOST, CHUNKED], Ending.MALFORMED),
        ("1.1", b"/mcp", [HOST, CHUNKED, CHUNKED], Ending.MALFORMED),
        ("1.1", b"/mcp", [HOST, CHUNKED, (b"content-length", b"1")], Ending.MALFORMED),
        ("1.1", b"/mcp", [HOST, (b"content-length", b"1"), (b"content-length", b"1")], Ending.MALFORMED),
        ("1.1", b"/mcp", [HOST, (b"transfer-encoding", b"gzip, chunked")], Ending.MALFORMED),
        ("1.1", b"http://there/mcp", [HOST], Ending.MALFORMED),
        ("1.1", b"http://here:8000@x/", [HOST], Ending.MALFORMED),
        ("1.1", b"ftp://here:8000/mcp", [HOST], Ending.MALFORMED),
        ("1.1", b"here:8000", [HOST], Ending.MALFORMED),
        ("1.1", b"*", [HOST], Ending.MALFORMED),
        ("1.1", b"", [HOST], Ending.MALFORMED),
        ("1.1", b"/" + b"u" * 20, [HOST], Ending.LONG_URL),
        ("1.1", b"/mcp", [HOST, *[(b"x-%d" % number, b"y") for number in range(5)]], Ending.LARGE_HEAD),
        ("1.1", b"/mcp", [HOST, (b"content-length", b"101")], Ending.LARGE_BODY),
    ],
)
def test_other_heads_are_refused(
    version: str, target: bytes, headers: list[tuple[bytes, bytes]], ending: Ending
) -> None:
    with pytest.raises(Refusal) as refused:
        check_head(LIMITS, version, target, headers)

    assert refused.value.ending is ending


def test_a_head_is_as_large_as_its_lines() -> None:
    lines = b"/mcp" + b"host: here:8000\r\n" + b"x: y\r\n"

    assert head_bytes(b"/mcp", [HOST, (b"x", b"y")]) == len(lines)
