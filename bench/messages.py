"""Requests of protocol 2026-07-28, and `initialize`, as bytes, and the answers they must get."""

import json
import re
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, TypeAlias

VERSION = "2026-07-28"
_META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
# The member of `params` that a header repeats.
_NAMED = {"resources/read": "uri", "tools/call": "name"}
# All of one width, so that every request and every answer of a kind has one length.
_numbers = count(100_000)

Expected: TypeAlias = Callable[[int], bytes]
"""What the answer to the request of that number must be, byte for byte."""


class WrongAnswerError(Exception):
    """A server answered something else than it must."""


class Call:
    """One request, prepared for both transports; only its number differs from use to use."""

    def __init__(self, method: str, **params: object) -> None:
        self.method = method
        if method != "initialize":  # It opens a conversation of the generation before.
            params["_meta"] = _META
        body = json.dumps(
            {"jsonrpc": "2.0", "id": 0, "method": method, "params": params},
            separators=(",", ":"),
        ).encode()
        self._before, self._after = body.split(b'"id":0', 1)
        self._before += b'"id":'
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": VERSION,
            "mcp-method": method,
            "content-length": str(len(self._before) + 6 + len(self._after)),
        }
        if method in _NAMED:
            headers["mcp-name"] = str(params[_NAMED[method]])
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"

    def body(self, number: int) -> bytes:
        return b"%s%06d%s" % (self._before, number, self._after)

    def line(self, number: int) -> bytes:
        return self.body(number) + b"\n"

    def http(self, host: str, path: str, number: int) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\n{self._headers}"
        return head.encode() + self.body(number)


def next_number() -> int:
    return 100_000 + (next(_numbers) - 100_000) % 900_000


def result(body: bytes, number: int) -> Mapping[str, Any]:
    """Return the result in an answer; complain about an error or another request's answer."""
    answer = json.loads(body)
    if answer.get("id") != number or "result" not in answer:
        raise WrongAnswerError(body[:500].decode(errors="replace"))
    return answer["result"]


def repeats(body: bytes, number: int) -> Expected:
    """Expect the same answer again, under the number asked for."""
    result(body, number)
    found = re.findall(rb'"id":\s*%d\b' % number, body)
    if len(found) != 1:
        raise WrongAnswerError(f"the answer shows its number {len(found)} times")
    before, after = body.split(found[0])
    before += found[0].removesuffix(b"%d" % number)
    return lambda other: b"%s%d%s" % (before, other, after)


def always(body: bytes) -> Expected:
    """Expect these very bytes, as a floor sends them."""
    return lambda _number: body
