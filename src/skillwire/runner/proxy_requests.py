"""Strict parsing of a script's requests to the proxy, and the list of allowed hosts.

Everything that two HTTP parsers could read differently is refused, because
the proxy and the server behind it are two parsers.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from skillwire.core import RunnerError, quoted
from skillwire.runner.policy import is_host

HEAD_END: Final = b"\r\n\r\n"
TUNNEL_OPEN: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"

_PORTS: Final = {"http": 80, "https": 443}
_MOST_HEADERS: Final = 100
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_LINE = re.compile(r"([A-Z]{1,20}) ([!-~]+) HTTP/1\.[01]")
_AUTHORITY = re.compile(r"([A-Za-z0-9._-]{1,254})(?::([0-9]{1,5}))?")
_URL = re.compile(r"(?i:([a-z][a-z0-9+.-]*)://)([^/?#]*)(/[^#]*|\?[^#]*)?")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")
_LENGTH = re.compile(r"[0-9]{1,15}")
_ODD_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n)|\x00")
# Hop-by-hop headers, and those that the proxy writes itself.
_NOT_PASSED_ON: Final = frozenset(
    {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)


class RefusedRequestError(Exception):
    """A request is refused by the proxy, with a status, a reason in one word, and a line of text."""

    def __init__(self, status: HTTPStatus, why: str, line: str) -> None:
        super().__init__(line)
        self.status = status
        self.why = why

    @property
    def answer(self) -> bytes:
        """The whole response."""
        body = f"{self}\n".encode()
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
            "Content-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """What a script requests: a tunnel to a port of a host, or one request that is forwarded to it.

    `head` is what is sent to the server first; empty for a tunnel. `body_bytes`
    is the length of the request's body; None for a tunnel.
    """

    host: str
    port: int
    head: bytes = b""
    body_bytes: int | None = None

    @property
    def is_tunnel(self) -> bool:
        return self.body_bytes is None

    @property
    def authority(self) -> str:
        return f"{self.host}:{self.port}"


class AllowList:
    """The hosts that a script may reach, each with a port; 443 by default."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._endpoints: set[tuple[str, int]] = set()
        for text in allowed:
            if not is_host(text):
                raise RunnerError(
                    f"{quoted(str(text)[:200])} is not a host that scripts can be allowed to reach",
                    fix="write a name in lower case, such as api.example.org or api.example.org:8443",
                )
            host, _, port = text.partition(":")
            self._endpoints.add((host, int(port or _PORTS["https"])))

    def require(self, request: ProxyRequest) -> None:
        """Check that a request goes to an allowed host.

        Raises:
            RefusedRequestError: The host is not allowed.
        """
        if (request.host, request.port) not in self._endpoints:
            raise RefusedRequestError(
                HTTPStatus.FORBIDDEN,
                "not-allowed",
                f"{quoted(request.authority)} is not among the hosts that this script may reach",
            )


def parse_request(head: bytes) -> ProxyRequest:
    """Parse the head of a request, without the empty line at its end.

    Raises:
        RefusedRequestError: It is malformed, ambiguous, or not supported.
    """
    if _ODD_LINE_END.search(head):
        raise _malformed("the request has a line that does not end in CRLF")
    first, *lines = head.decode("latin-1").split("\r\n")
    match = _LINE.fullmatch(first)
    if match is None:
        raise _malformed("not an HTTP/1.1 request")
    method, target = match.groups()
    headers = _headers(lines)
    length = _body_length(headers)
    if method == "CONNECT":
        if length:
            raise _malformed("a CONNECT request must not have a body")
        return ProxyRequest(*_place(target, None))
    if method not in _METHODS:
        raise RefusedRequestError(
            HTTPStatus.METHOD_NOT_ALLOWED, "method", f"this proxy does not forward {quoted(method)}"
        )
    host, port, path = _split_url(target)
    return ProxyRequest(host, port, _head(method, host, port, path, headers, length), length or 0)


def _headers(lines: list[str]) -> list[tuple[str, str]]:
    if len(lines) > _MOST_HEADERS:
        raise RefusedRequestError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            "too-large",
            f"at most {_MOST_HEADERS} headers are allowed",
        )
    headers: list[tuple[str, str]] = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not (colon and _NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            raise _malformed(f"the request has a malformed header: {quoted(line[:40])}")
        headers.append((name, value.strip(" \t")))
    return headers


def _body_length(headers: list[tuple[str, str]]) -> int | None:
    """Return the length of the body; None when no header declares one."""
    by_name: dict[str, list[str]] = {}
    for name, value in headers:
        by_name.setdefault(name.lower(), []).append(value)
    for name in ("host", "content-length"):
        if len(by_name.get(name, ())) > 1:
            raise _malformed(f"the request has more than one header {name}")
    (length,) = by_name.get("content-length", [None])
    if "transfer-encoding" in by_name:
        if length is not None:
            raise _malformed("the request has both Content-Length and Transfer-Encoding")
        raise RefusedRequestError(
            HTTPStatus.LENGTH_REQUIRED,
            "malformed",
            "a body needs a Content-Length; Transfer-Encoding is not supported",
        )
    if length is None:
        return None
    if not _LENGTH.fullmatch(length):
        raise _malformed("the Content-Length is not a number")
    return int(length)


def _split_url(target: str) -> tuple[str, int, str]:
    match = _URL.fullmatch(target)
    if match is None:
        raise _malformed("a proxy request needs an absolute URL without a fragment")
    scheme, authority, rest = match.groups()
    if scheme.lower() != "http":
        raise _malformed("only http:// is forwarded; use CONNECT for https://")
    host, port = _place(authority, _PORTS["http"])
    path = rest or "/"
    return host, port, path if path.startswith("/") else f"/{path}"


def _place(authority: str, default: int | None) -> tuple[str, int]:
    if "@" in authority:
        raise _malformed("a user name or password in a URL is not allowed")
    match = _AUTHORITY.fullmatch(authority)
    if match is None and not authority.startswith("["):
        raise _malformed(f"{quoted(authority[:80])} is not a host")
    port = int(match[2]) if match and match[2] else default
    host = match[1].lower().removesuffix(".") if match else ""
    if port is None and match:
        raise _malformed("a tunnel needs a host and a port")
    if port is None or not is_host(host):
        raise RefusedRequestError(
            HTTPStatus.FORBIDDEN,
            "not-allowed",
            f"{quoted(authority[:80])} is not a host name; IP addresses are not allowed",
        )
    return host, port


def _head(
    method: str, host: str, port: int, path: str, headers: list[tuple[str, str]], length: int | None
) -> bytes:
    """Return the head of the request as it is sent to the server."""
    dropped = set(_NOT_PASSED_ON)
    for name, value in headers:
        if name.lower() == "connection":
            dropped.update(option.strip().lower() for option in value.split(","))
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}" if port == _PORTS["http"] else f"Host: {host}:{port}",
        *(
            f"{name}: {value}"
            for name, value in headers
            if name.lower() not in dropped and not name.lower().startswith("proxy-")
        ),
        *([] if length is None else [f"Content-Length: {length}"]),
        "Connection: close",
    ]
    return "\r\n".join(lines).encode("latin-1") + HEAD_END


def _malformed(line: str) -> RefusedRequestError:
    return RefusedRequestError(HTTPStatus.BAD_REQUEST, "malformed", line)
