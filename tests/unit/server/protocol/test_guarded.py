"""Heads of requests that are too much, or that could be read in two ways."""

import pytest

from skillwire.server.http.guard import RejectedRequestError, check_head, head_bytes
from skillwire.server.limits import CloseReason, HttpConnectionLimits

LIMITS = HttpConnectionLimits(url_bytes=20, header_count=5, body_bytes=100)
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
        ("1.1", b"/mcp", [], CloseReason.MALFORMED),
        ("1.1", b"/mcp", [HOST, HOST], CloseReason.MALFORMED),
        ("1.0", b"/mcp", [HOST, HOST], CloseReason.MALFORMED),
        ("0.9", b"/mcp", [], CloseReason.MALFORMED),
        ("2.0", b"/mcp", [HOST], CloseReason.MALFORMED),
        ("1.0", b"/mcp", [HOST, CHUNKED], CloseReason.MALFORMED),
        ("1.1", b"/mcp", [HOST, CHUNKED, CHUNKED], CloseReason.MALFORMED),
        ("1.1", b"/mcp", [HOST, CHUNKED, (b"content-length", b"1")], CloseReason.MALFORMED),
        ("1.1", b"/mcp", [HOST, (b"content-length", b"1"), (b"content-length", b"1")], CloseReason.MALFORMED),
        ("1.1", b"/mcp", [HOST, (b"transfer-encoding", b"gzip, chunked")], CloseReason.MALFORMED),
        ("1.1", b"http://there/mcp", [HOST], CloseReason.MALFORMED),
        ("1.1", b"http://here:8000@x/", [HOST], CloseReason.MALFORMED),
        ("1.1", b"ftp://here:8000/mcp", [HOST], CloseReason.MALFORMED),
        ("1.1", b"here:8000", [HOST], CloseReason.MALFORMED),
        ("1.1", b"*", [HOST], CloseReason.MALFORMED),
        ("1.1", b"", [HOST], CloseReason.MALFORMED),
        ("1.1", b"/" + b"u" * 20, [HOST], CloseReason.LONG_URL),
        ("1.1", b"/mcp", [HOST, *[(b"x-%d" % number, b"y") for number in range(5)]], CloseReason.LARGE_HEAD),
        ("1.1", b"/mcp", [HOST, (b"content-length", b"101")], CloseReason.LARGE_BODY),
    ],
)
def test_other_heads_are_refused(
    version: str, target: bytes, headers: list[tuple[bytes, bytes]], ending: CloseReason
) -> None:
    with pytest.raises(RejectedRequestError) as refused:
        check_head(LIMITS, version, target, headers)

    assert refused.value.reason is ending


def test_a_head_is_as_large_as_its_lines() -> None:
    lines = b"/mcp" + b"host: here:8000\r\n" + b"x: y\r\n"

    assert head_bytes(b"/mcp", [HOST, (b"x", b"y")]) == len(lines)
