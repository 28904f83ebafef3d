"""Requests over HTTP that nobody should send, for every method, path and header, and how they are sent."""

import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from hypothesis import strategies as st

from fuzz.surface import Answer, send
from integration.odd_requests import (
    ACCEPTS,
    CONTENT_TYPES,
    HOSTS,
    MODERN,
    ORIGINS,
    VALUES,
    VERSIONS,
    Header,
    HttpRequest,
    Members,
    Raw,
    Targets,
    cursor_like,
    envelope,
    good_request,
    header_value,
    http_requests,
    json_values,
    uri_like,
    write,
)

METHODS = (
    *("initialize", "ping", "server/discover", "skills/list", "skills/get", "skills/read", "skills/execute"),
    *("skills/read_reference", "resources/read", "resources/directory/read", "resources/list"),
    *("resources/templates/list", "resources/subscribe", "resources/unsubscribe", "tools/list", "tools/call"),
    *("prompts/list", "prompts/get", "completion/complete", "logging/setLevel", "events/list", "tasks/get"),
    *(
        "notifications/initialized",
        "notifications/cancelled",
        "notifications/progress",
        "sampling/createMessage",
    ),
)
PATHS = (
    *(
        "/",
        "/mcp",
        "/mcp/",
        "/connect",
        "/robots.txt",
        "/healthz",
        "/readyz",
        "/metrics",
        "/skills/",
        "/files/",
    ),
    *(
        "/skills/tea",
        "/skills/hidden/vault",
        "/files/hidden/vault/SKILL.md",
        "/?q=vault",
        "/skills/acme/billing",
        "/skills/other:/x",
        "/files/tea/SKILL.md",
        "/files/tea/assets/leaf.png",
    ),
    *(
        "/static/",
        "/static/../secret",
        "/static/%2e%2e/x",
        "/.well-known/agent-skills/index.json",
        "/.well-known/",
    ),
    *(
        "/.well-known/agent-skills/",
        "/.well-known/agent-skills/x/SKILL.md",
        "/.well-known/oauth-protected-resource",
    ),
    *(
        "/.well-known/oauth-protected-resource/mcp",
        "/.git/config",
        "/docs",
        "/openapi.json",
        "/sse",
        "/favicon.ico",
    ),
)
_INSIDE = (
    "%2f",
    "%2e%2e",
    "%00",
    "%ff",
    "..",
    ".",
    "//",
    "%",
    "%zz",
    "\u00e9",
    "\u202e",
    "~",
    "*",
    "a" * 300,
    "\\",
    ";",
)
_VERBS = (
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "get",
    "X",
    "PROPFIND",
)
_ENCODINGS: Sequence[tuple[bytes, Callable[[bytes], bytes]]] = (
    (b"gzip", gzip.compress),
    (b"deflate", zlib.compress),
    (b"gzip", lambda body: body),
    (b"br", lambda body: body),
    (b"identity", lambda body: body),
    (b"gzip, gzip", lambda body: gzip.compress(gzip.compress(body))),
    (b"x" * 3000, lambda body: body),
)
_MORE_HEADERS: Sequence[Header] = (
    *((b"x-long", b"x" * size) for size in (4000, 20_000, 60_000, 70_000)),
    *(
        (b"x-odd", value)
        for value in (b"\x00", b"a\x0bb", b"\xff\xfe", b"", b" ", b"\t", b"a\r\n b", b"\x7f")
    ),
    *((b"expect", value) for value in (b"100-continue", b"x")),
    *((b"upgrade", value) for value in (b"websocket", b"h2c")),
    *(
        (b"authorization", value)
        for value in (b"Bearer", b"Bearer x", b"Basic Og==", b"\xff", b"Bearer " + b"a" * 9000)
    ),
    *((b"mcp-session-id", value) for value in (b"0" * 32, b"", b"\xff", b"../..", b"a" * 5000)),
    *((b"last-event-id", value) for value in (b"1", b"\xff")),
    *((b"range", value) for value in (b"bytes=0-1", b"bytes=-", b"x")),
    *((b"if-none-match", value) for value in (b"*", b'W/"x"', b'"', b"\xff")),
    *((b"x-forwarded-for", value) for value in (b"1.2.3.4", b"\xff")),
    *((b"cookie", value) for value in (b"a=b", b"\xff=;")),
    *((b"accept-encoding", value) for value in (b"gzip", b"*;q=0")),
    *((b"forwarded", value) for value in (b"for=1.2.3.4;host=evil",)),
    (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    (b"", b"x"),
    (b"bad name", b"x"),
    (b"transfer-encoding", b"chunked"),
)


@dataclass(frozen=True, slots=True)
class Hostile:
    """A request, the way its body is sent, and whether the client leaves before the end of it."""

    request: HttpRequest
    is_chunked: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the server can know where the body ends, so that there must be an answer."""
        lengths = [value for name, value in self.request.headers if name == b"content-length"]
        size = sum(map(len, self.request.pieces))
        has_encoding = any(name == b"transfer-encoding" for name, _ in self.request.headers)
        return (
            not self.request.leaves and not has_encoding and all(length == b"%d" % size for length in lengths)
        )

    def send(self, port: int) -> Answer:
        request = self.request
        headers = list(request.headers)
        if self.is_chunked:
            headers = [header for header in headers if header[0] != b"content-length"]
            headers.append((b"transfer-encoding", b"chunked"))
        pieces = request.pieces[:-1] if request.leaves else request.pieces
        return send(
            port,
            request.method,
            request.path,
            headers,
            pieces,
            is_chunked=self.is_chunked,
            leaves=not (self.is_whole or self.is_chunked) or request.leaves,
        )


Strategy: TypeAlias = "st.SearchStrategy[Hostile]"


def hostile_requests(targets: Targets) -> Strategy:
    """Draw any of the requests there are here."""
    return st.one_of(
        st.builds(Hostile, http_requests(targets), st.booleans()),
        st.builds(Hostile, good_requests(targets)),
        messages(targets),
        messages(targets),
        fetches(),
    )


@st.composite
def good_requests(draw: st.DrawFn, targets: Targets) -> HttpRequest:
    """Draw a request with which nothing is wrong."""
    return good_request(draw(st.randoms(use_true_random=False)), targets)


@st.composite
def messages(draw: st.DrawFn, targets: Targets) -> Hostile:
    """Draw a message of any method and either generation, mostly with what the method asks for."""
    rng = draw(st.randoms(use_true_random=False))
    method = draw(st.sampled_from(METHODS))
    params = Members()
    uris = [*targets.skills, *targets.files, *targets.directories, "skill://index.json"]
    for key in draw(st.lists(st.sampled_from(_KEYS), max_size=4, unique=True)):
        uri = rng.choice(uris)
        plausible: dict[str, object] = {
            "uri": uri if rng.random() < 0.6 else uri_like(uri, rng),
            "cursor": cursor_like(rng.choice(targets.cursors), rng),
            "name": rng.choice(["find_skills", "tea", "vault", "plain-0", "acme/billing/refunds", uri]),
            "arguments": Members(
                [
                    ("query", rng.choice(["tea", "vault", "*", '"', ""])),
                    ("limit", rng.choice([1, 0])),
                ]
            ),
            "ref": Members(
                [("type", rng.choice(["ref/resource", "ref/prompt"])), ("uri", "skill://{+path}")]
            ),
            "argument": Members([("name", "path"), ("value", rng.choice(["", "te", "%", "\x00"]))]),
            "protocolVersion": rng.choice(VERSIONS),
            "capabilities": Members(),
            "clientInfo": Members([("name", "x"), ("version", "1")]),
            "level": "debug",
            "requestId": 1,
            "path": rng.choice(["references/a.md", "../x"]),
        }
        value = plausible[key] if rng.random() < 0.7 else rng.choice(VALUES)
        params.put(key, draw(json_values) if rng.random() < 0.1 else value)
    is_modern = draw(st.booleans())
    if is_modern:
        params.put("_meta", envelope())
    members = Members([("jsonrpc", "2.0"), ("method", method), ("params", params)])
    if not method.startswith("notifications/") or rng.random() < 0.2:
        members.insert(1, ("id", rng.choice([1, "a", 0, *VALUES] if rng.random() < 0.2 else [7])))
    message: object = members
    if rng.random() < 0.1:
        message = rng.choice(
            [[members], [members] * 3, Raw("[" * 50_000), Raw('{"a":' * 5000), Raw("1" * 6000), []]
        )
    body = write(message, is_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        body = rng.choice(
            [b"\xef\xbb\xbf" + body, body.decode("utf-8", "replace").encode("utf-16"), body + b"\x00", b""]
        )
    headers = _usual(method, params, is_modern=is_modern)
    return _sent(draw, HttpRequest(tuple(headers), (body,)))


@st.composite
def fetches(draw: st.DrawFn) -> Hostile:
    """Draw a request for a path, with any verb and hardly ever a body."""
    rng = draw(st.randoms(use_true_random=False))
    path = draw(st.sampled_from(PATHS))
    for part in draw(st.lists(st.sampled_from(_INSIDE), max_size=2)):
        path = f"{path}{rng.choice(['', '/'])}{part}"
    if rng.random() < 0.2:
        path += rng.choice(
            ["?q=tea", "?q=%00&page=-1", "?" + "a=b&" * 500, "?q=\u00e9", "#x", "?q=" + "%22" * 100, "?%"]
        )
    if rng.random() < 0.05:
        path = rng.choice(
            ["*", "http://evil.example/mcp", "mcp", "/" + "a/" * 3000, "/" + "x" * 9000, "http://[::1/"]
        )
    verb = draw(st.sampled_from(_VERBS)) if rng.random() < 0.4 else "GET"
    headers: list[Header] = [(b"host", b"127.0.0.1:80"), (b"accept", b"*/*")]
    body = rng.choice([b"", b"x" * 10, b"{}"]) if verb not in ("GET", "HEAD") else b""
    return _sent(draw, HttpRequest(tuple(headers), (body,), verb, path))


def _usual(method: str, params: Members, *, is_modern: bool) -> list[Header]:
    headers: list[Header] = [
        (b"host", b"127.0.0.1:80"),
        (b"accept", b"application/json, text/event-stream"),
        (b"content-type", b"application/json"),
    ]
    if is_modern:
        headers += [(b"mcp-protocol-version", MODERN.encode()), (b"mcp-method", method.encode())]
        name = params.find("uri" if method == "resources/read" else "name")
        if isinstance(name, str) and not isinstance(name, Raw):
            headers.append((b"mcp-name", header_value(name)))
    return headers


def _sent(draw: st.DrawFn, request: HttpRequest) -> Hostile:
    """Change headers and the way the body comes, now and then."""
    rng = draw(st.randoms(use_true_random=False))
    headers = list(request.headers)
    body = b"".join(request.pieces)
    if rng.random() < 0.15:
        name, values = rng.choice(
            [(b"accept", ACCEPTS), (b"content-type", CONTENT_TYPES), (b"host", HOSTS), (b"origin", ORIGINS)]
        )
        headers = [header for header in headers if header[0] != name] + [(name, rng.choice(values))]
    if rng.random() < 0.15:
        headers += rng.sample(list(_MORE_HEADERS), rng.randrange(1, 4))
    if rng.random() < 0.02:
        headers += [(b"x-%d" % number, b"y") for number in range(rng.choice([90, 150, 500]))]
    if body and rng.random() < 0.1:
        name, encode = rng.choice(_ENCODINGS)
        headers.append((b"content-encoding", name))
        body = encode(body)
    is_chunked = bool(body) and rng.random() < 0.1
    if body and not is_chunked:
        headers.append((b"content-length", b"%d" % len(body)))
    return Hostile(replace(request, headers=tuple(headers), pieces=(body,)), is_chunked)


_KEYS = (
    *(
        "uri",
        "cursor",
        "name",
        "arguments",
        "ref",
        "argument",
        "protocolVersion",
        "capabilities",
        "clientInfo",
    ),
    *("level", "requestId", "path"),
)
