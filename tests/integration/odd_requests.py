"""Requests of every kind: good ones, and ones that are odd or wrong in one respect or in several.

All randomness comes from the `Random` that is handed in, so a seed repeats a
request, and Hypothesis can make one smaller.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import TypeAlias, cast

from hypothesis import strategies as st

from skillwire.server.limits import MAX_MESSAGE_BYTES

LIST, GET = "skills/list", "skills/get"
READ, BROWSE = "resources/read", "resources/directory/read"
MODERN = "2026-07-28"
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"

Header: TypeAlias = tuple[bytes, bytes]


class Raw(str):
    """JSON text that goes in as it is."""


class Members(list[tuple[str, object]]):
    """The members of an object, in which a key may come twice."""

    def put(self, key: str, value: object) -> None:
        """Set the first member of that name, or add one."""
        for position, (known, _) in enumerate(self):
            if known == key:
                self[position] = (key, value)
                return
        self.append((key, value))

    def drop(self, key: str) -> None:
        self[:] = [(known, value) for known, value in self if known != key]

    def find(self, key: str) -> object:
        return next((value for known, value in self if known == key), None)


def write(value: object, *, is_ascii: bool = True, is_spaced: bool = False) -> str:
    """Write JSON, with `Raw` texts and `Members` as they are."""
    comma, colon = (", ", ": ") if is_spaced else (",", ":")
    if isinstance(value, Raw):
        return value
    if isinstance(value, Members):
        members = [
            json.dumps(key) + colon + write(item, is_ascii=is_ascii, is_spaced=is_spaced)
            for key, item in value
        ]
        return "{" + comma.join(members) + "}"
    if isinstance(value, list):
        items = [write(item, is_ascii=is_ascii, is_spaced=is_spaced) for item in cast(list[object], value)]
        return "[" + comma.join(items) + "]"
    return json.dumps(value, ensure_ascii=is_ascii, separators=(comma, colon))


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What a client sends: header lines as they are, the body in the pieces in which it arrives.

    With `leaves`, the client is gone before the last piece.
    """

    headers: tuple[Header, ...]
    pieces: tuple[bytes, ...]
    method: str = "POST"
    path: str = "/mcp"
    leaves: bool = False
    query: bytes = b""


@dataclass(frozen=True, slots=True)
class Targets:
    """What there is to ask for."""

    skills: tuple[str, ...]
    files: tuple[str, ...]
    directories: tuple[str, ...]
    cursors: tuple[str, ...]
    directory_cursors: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Draft:
    """A request that can still be changed. `message` is what the body says, mostly `members`."""

    method: str
    members: Members
    params: Members
    meta: Members
    headers: list[Header]
    message: object = None
    is_ascii: bool = True
    is_spaced: bool = False
    remake: list[Callable[[bytes], bytes]] = field(default_factory=list[Callable[[bytes], bytes]])
    splits: int = 0
    leaves: bool = False
    http_method: str = "POST"
    path: str = "/mcp"
    declared_length: bytes | None = None
    has_length: bool = True

    def header(self, name: bytes, value: bytes | None) -> None:
        """Set a header, or take it away."""
        self.headers = [header for header in self.headers if header[0] != name]
        if value is not None:
            self.headers.append((name, value))

    def name_in_header(self, uri: object) -> None:
        if self.method == READ and isinstance(uri, str) and not isinstance(uri, Raw):
            self.header(b"mcp-name", header_value(uri))

    @property
    def body(self) -> bytes:
        text = write(self.message, is_ascii=self.is_ascii, is_spaced=self.is_spaced)
        body = text.encode("utf-8", "surrogatepass")
        for change in self.remake:
            body = change(body)
        return body

    def finish(self, rng: Random) -> HttpRequest:
        body = self.body
        headers = list(self.headers)
        if self.has_length:
            headers.append((b"content-length", self.declared_length or b"%d" % len(body)))
        cuts = sorted(rng.randrange(len(body) + 1) for _ in range(self.splits))
        edges = [0, *cuts, len(body)]
        pieces = tuple(body[start:stop] for start, stop in pairwise(edges))
        return HttpRequest(tuple(headers), pieces, self.http_method, self.path, self.leaves)


Change: TypeAlias = Callable[[Draft, Random, Targets], None]


def header_value(uri: str) -> bytes:
    """Write a URI as clients put it into `Mcp-Name`: as it is, or wrapped where it would not survive."""
    if uri.isascii() and uri.isprintable() and uri == uri.strip() and not uri.startswith("=?base64?"):
        return uri.encode()
    return sentinel(uri)


def sentinel(text: str) -> bytes:
    return b"=?base64?" + b64encode(text.encode("utf-8", "surrogatepass")) + b"?="


def envelope() -> Members:
    client = Members([("name", "tester"), ("version", "1.0")])
    return Members([(VERSION_KEY, MODERN), (CAPABILITIES_KEY, Members()), (CLIENT_KEY, client)])


def good(rng: Random, targets: Targets, method: str | None = None) -> Draft:
    """Draft a request with which nothing is wrong."""
    method = method or rng.choice([LIST, GET, READ, READ, BROWSE])
    identifier = rng.choice([rng.randrange(10_000), f"id-{rng.randrange(10_000)}", 0, -7, "", "é\u2028\x7f"])
    params, meta = Members(), envelope()
    if method == LIST:
        if rng.random() < 0.7:
            params.put("cursor", rng.choice(targets.cursors))
    elif method == GET:
        params.put("uri", rng.choice(targets.skills))
    elif method == READ:
        params.put("uri", rng.choice(targets.files))
    elif rng.random() < 0.3:
        uri, cursor = rng.choice(targets.directory_cursors)
        params.extend([("uri", uri), ("cursor", cursor)])
    else:
        params.put("uri", rng.choice(targets.directories))
    params.insert(rng.randrange(len(params) + 1), ("_meta", meta))
    members = Members([("jsonrpc", "2.0"), ("id", identifier), ("method", method), ("params", params)])
    headers = [
        (b"host", b"127.0.0.1:8000"),
        (b"accept", b"application/json, text/event-stream"),
        (b"content-type", b"application/json"),
        (b"mcp-protocol-version", MODERN.encode()),
        (b"mcp-method", method.encode()),
    ]
    draft = Draft(method, members, params, meta, headers, message=members)
    draft.name_in_header(params.find("uri"))
    rng.shuffle(draft.headers)
    # Most clients begin with the id or end with it.
    order = rng.randrange(3)
    if order == 1:
        members.append(members.pop(1))
    elif order == 2:
        rng.shuffle(members)
    draft.is_spaced = rng.random() < 0.3
    return draft


# What an id, a parameter or anything else may be instead of what it should be.
VALUES: tuple[object, ...] = (
    *(None, True, False, 0, 1, -1, 1.5, 1.0, "", "0", " ", "true", [], [1], {}, {"a": 1}, "x" * 3000),
    *(
        Raw(text)
        for text in ("-0", "1e3", "1E400", "-1e-400", "NaN", "Infinity", "01", "1.", "+1", "'x'", "")
    ),
    *(Raw(text) for text in ('"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\x"', '"\t"', '"é😀"', "nul")),
    *(
        2**53 - 1,
        2**53,
        1 - 2**53,
        -(2**53),
        2**63,
        2**64,
        -(2**63) - 1,
        10**30,
        Raw("9" * 400),
        Raw("1" * 5000),
    ),
    *(MODERN, LIST, "skill://tea/SKILL.md"),
)
PROGRESS: tuple[object, ...] = (
    *(1, "token", "", -1, 0, 2**63, 2**70, 1.5, 2.0, True, None, [], {}),
    *(Raw("1e2"), Raw("1" * 400)),
)
OTHER_METHODS = (
    *("ping", "resources/list", "resources/templates/list", "server/discover", "tools/list", "tools/call"),
    *("initialize", "prompts/get", "skills/read", "skills/List", "SKILLS/LIST", "", "rpc.discover"),
    *("notifications/initialized", "notifications/cancelled", "completion/complete", "resources/subscribe"),
    *("skills/list ", "skills/list\u0000"),
)
VERSIONS = (
    *HANDSHAKE_VERSIONS,
    MODERN,
    "2026-07-29",
    "2099-01-01",
    "DRAFT",
    "",
    " 2026-07-28",
    "2026-07-28 ",
)
ACCEPTS = (
    *(
        b"application/json",
        b"*/*",
        b"application/*",
        b"text/event-stream",
        b"text/*",
        b"",
        b"text/html",
        b",",
    ),
    *(b"Application/JSON", b"application/json;q=0", b"application/json; q=0.5, text/html", b" */* ;q=1"),
    *(b"application/jsonp", b"application/json, */*", b"*", b"\xe9", b"application/ json", b"a\x80,*/*"),
)
CONTENT_TYPES = (
    *(b"application/json; charset=utf-8", b"APPLICATION/JSON", b"application/jsonp", b"text/plain", b""),
    *(
        b" application/json",
        b"application/json, text/plain",
        b"application/vnd.api+json",
        b"multipart/form-data",
    ),
    *(b"application/json;charset=utf-16", b"application/\xfcjson"),
)
HOSTS = (
    *(
        b"localhost:1",
        b"127.0.0.1",
        b"[::1]:80",
        b"localhost",
        b"evil.example",
        b"127.0.0.1:*",
        b"127.0.0.1:",
    ),
    *(b"127.0.0.1.evil:80", b"", b"LOCALHOST:80", b"localhost:80@evil", b"0.0.0.0:80", b"\xff:1"),
)
ORIGINS = (
    *(b"http://localhost:5000", b"http://127.0.0.1:8000", b"https://evil.example", b"null", b""),
    *(b"http://127.0.0.1", b"https://127.0.0.1:8000", b"http://[::1]:1"),
)
LENGTHS = (
    b"0",
    b"5",
    b"99999",
    b"100000",
    b"4194304",
    b"4194305",
    b"-1",
    b"1_0",
    b" 12",
    b"x",
    b"\xb2",
    b"9" * 30,
)
PATHS = ("/", "/mcp/", "/MCP", "//mcp", "/mcp/x", "", "/.well-known/agent-skills/index.json", "/healthz")


def uri_like(uri: str, rng: Random) -> str:
    """Spell a URI in another way: some of them mean the same, some something else, some nothing."""
    scheme, _, path = uri.partition("://")
    spot = rng.randrange(len(path) + 1)
    character = path[spot : spot + 1] or "x"
    inside = ["/", "//", "/./", "/../", "%2F", "%5c", "%00", "%"]
    return rng.choice(
        [
            f"{scheme.upper()}://{path}",
            f"{scheme}://{path[:spot]}%{ord(character) % 256:02x}{path[spot + 1 :]}",
            f"{scheme}://{path[:spot]}{rng.choice(inside)}{path[spot:]}",
            f"{scheme}://{path}{rng.choice(['/', '?', '?a=b', '#', '#x', ' ', '%20', '.', 'x', '/..'])}",
            f"{scheme}://{path[:spot]}",
            f"{scheme}://{path.upper()}",
            f"{scheme}://{path[:spot]}%25{ord(character) % 256:02X}{path[spot + 1 :]}",
            f"{scheme}:{path}",
            f"{scheme}://../{path}",
            f"other://{path}",
            f" {uri}",
            f"{scheme}://{path[:spot]}é\u202e{path[spot:]}",
            f"{scheme}://user@{path}",
            f"{scheme}://{path}:80",
            path,
            "file:///etc/passwd",
            "skill://nothing/SKILL.md",
            "skill://",
            "skill:///",
            "=?base64?c2tpbGw=?=",
            uri * rng.choice([2, 900]),
            "",
        ]
    )


def cursor_like(cursor: str, rng: Random) -> object:
    spot = rng.randrange(len(cursor) + 1)
    return rng.choice(
        [
            cursor[:spot],
            f"{cursor[:spot]}{rng.choice('AZaz09_-=+/ ')}{cursor[spot + 1 :]}",
            cursor + rng.choice(["=", "==", "A", "\n", "é"]),
            b64encode(b"skills/list:skill://b").decode(),
            b64encode(b"other:skill://b").decode().rstrip("="),
            b64encode(b"skills/list").decode().rstrip("="),
            "0",
            "",
            "A" * 40_000,
            rng.choice(VALUES),
        ]
    )


def nested(depth: int, rng: Random) -> Raw:
    """Write arrays or objects inside each other."""
    if rng.random() < 0.5:
        return Raw("[" * depth + "]" * depth)
    return Raw('{"a":' * depth + "1" + "}" * depth)


def odd_id(draft: Draft, rng: Random, targets: Targets) -> None:
    draft.members.put("id", rng.choice(VALUES))


def odd_member(draft: Draft, rng: Random, targets: Targets) -> None:
    draft.members.put(
        rng.choice(["jsonrpc", "method", "params", "extra", "result", "error"]), rng.choice(VALUES)
    )


def lost_member(draft: Draft, rng: Random, targets: Targets) -> None:
    draft.members.drop(rng.choice(["jsonrpc", "id", "method", "params"]))


def repeated_key(draft: Draft, rng: Random, targets: Targets) -> None:
    members = rng.choice([draft.members, draft.params, draft.meta])
    if members:
        key, value = rng.choice(members)
        member = (key, rng.choice([value, rng.choice(VALUES)]))
        members.insert(rng.randrange(len(members) + 1), member)


def other_method(draft: Draft, rng: Random, targets: Targets) -> None:
    method = rng.choice(OTHER_METHODS)
    draft.members.put("method", method)
    if rng.random() < 0.7:
        draft.header(b"mcp-method", method.encode())


def other_known_method(draft: Draft, rng: Random, targets: Targets) -> None:
    """Ask with the parameters of one method for another."""
    method = rng.choice([LIST, GET, READ, BROWSE])
    draft.method = method
    draft.members.put("method", method)
    draft.header(b"mcp-method", method.encode())
    draft.name_in_header(draft.params.find("uri"))


def other_shape(draft: Draft, rng: Random, targets: Targets) -> None:
    draft.message = rng.choice(
        [
            [draft.members],
            [draft.members, draft.members],
            [],
            Members([("jsonrpc", "2.0"), ("id", 1), ("result", {})]),
            Members([("jsonrpc", "2.0"), ("id", 1), ("error", {"code": 1, "message": "no"})]),
            Members([("jsonrpc", "2.0"), ("method", "notifications/initialized")]),
            Members([*draft.members, ("result", {})]),
            *VALUES,
        ]
    )


def odd_param(draft: Draft, rng: Random, targets: Targets) -> None:
    key = rng.choice(["uri", "cursor", "name", "extra", "URI", "_meta"])
    draft.params.put(key, rng.choice(VALUES))


def lost_param(draft: Draft, rng: Random, targets: Targets) -> None:
    draft.params.drop(rng.choice(["uri", "cursor", "_meta"]))


def other_uri(draft: Draft, rng: Random, targets: Targets) -> None:
    uri = rng.choice([*targets.skills, *targets.files, *targets.directories])
    if rng.random() < 0.8:
        uri = uri_like(uri, rng)
    draft.params.put("uri", uri)
    if rng.random() < 0.8:
        draft.name_in_header(uri)


def other_cursor(draft: Draft, rng: Random, targets: Targets) -> None:
    cursors = [*targets.cursors, *(cursor for _, cursor in targets.directory_cursors)]
    cursor = rng.choice(cursors)
    draft.params.put("cursor", cursor if rng.random() < 0.3 else cursor_like(cursor, rng))


def lost_meta(draft: Draft, rng: Random, targets: Targets) -> None:
    draft.meta.drop(rng.choice([VERSION_KEY, CAPABILITIES_KEY, CLIENT_KEY]))


def odd_meta(draft: Draft, rng: Random, targets: Targets) -> None:
    draft.meta.put(
        rng.choice([VERSION_KEY, CAPABILITIES_KEY, CLIENT_KEY, "extra", "_meta"]), rng.choice(VALUES)
    )


def more_meta(draft: Draft, rng: Random, targets: Targets) -> None:
    """Add what clients put into `_meta`."""
    member = rng.choice(
        [
            ("progressToken", rng.choice(PROGRESS)),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("tracestate", rng.choice(VALUES)),
            ("io.modelcontextprotocol/logLevel", rng.choice(["debug", "loud", 1, None])),
            ("io.modelcontextprotocol/related-task", {"taskId": "1"}),
            ("example.com/note", rng.choice(VALUES)),
            ("progress_token", rng.choice(PROGRESS)),
        ]
    )
    draft.meta.put(*member)


def other_client(draft: Draft, rng: Random, targets: Targets) -> None:
    fields: dict[str, object] = {"name": "other", "version": "2", "title": "Other"}
    fields[rng.choice(["name", "version", "title", "icons", "extra"])] = rng.choice(VALUES)
    draft.meta.put(CLIENT_KEY, Members(fields.items()))


def other_capabilities(draft: Draft, rng: Random, targets: Targets) -> None:
    key = rng.choice(["extensions", "sampling", "elicitation", "roots", "experimental", "other"])
    plausible: list[object] = [{"io.modelcontextprotocol/skills": {}}, {"form": {}}, {"listChanged": 1}]
    value = rng.choice([*plausible, *VALUES])
    draft.meta.put(CAPABILITIES_KEY, Members([(key, value)]))


def deep_meta(draft: Draft, rng: Random, targets: Targets) -> None:
    depth = rng.choice(
        [10, 60, 190, 195, 196, 197, 198, 199, 200, 201, 252, 253, 254, 255, 300, 900, 1000, 1100]
    )
    draft.meta.put("example.com/deep", nested(depth, rng))


def long_meta(draft: Draft, rng: Random, targets: Targets) -> None:
    draft.meta.put("example.com/long", "x" * rng.choice([1000, 9000, 60_000, 64_800, 65_536, 70_000]))


def other_version(draft: Draft, rng: Random, targets: Targets) -> None:
    version = rng.choice(VERSIONS)
    if rng.random() < 0.7:
        draft.header(b"mcp-protocol-version", version.encode())
    if rng.random() < 0.6:
        draft.meta.put(VERSION_KEY, version)


def lost_header(draft: Draft, rng: Random, targets: Targets) -> None:
    draft.header(rng.choice(draft.headers)[0], None)


def repeated_header(draft: Draft, rng: Random, targets: Targets) -> None:
    name, value = rng.choice(draft.headers)
    other = rng.choice([value, b"", b"other", value.upper()])
    draft.headers.insert(rng.randrange(len(draft.headers) + 1), (name, other))


def unknown_header(draft: Draft, rng: Random, targets: Targets) -> None:
    name = rng.choice(
        [b"mcp-session-id", b"last-event-id", b"mcp-param-x", b"authorization", b"x-other", b"cookie"]
    )
    draft.headers.append((name, rng.choice([b"1", b"", b"\xe9", b"Bearer x"])))


def odd_header(draft: Draft, rng: Random, targets: Targets) -> None:
    name, values = rng.choice(
        [
            (b"accept", ACCEPTS),
            (b"content-type", CONTENT_TYPES),
            (b"host", HOSTS),
            (b"origin", ORIGINS),
            (
                b"mcp-method",
                (b"", b"Skills/List", b"skills/list ", b"resources/read", b"\xff", b"=?base64?eA==?="),
            ),
        ]
    )
    draft.header(name, rng.choice(values))


def odd_name_header(draft: Draft, rng: Random, targets: Targets) -> None:
    uri = draft.params.find("uri")
    text = uri if isinstance(uri, str) else "skill://x"
    wrapped = sentinel(text)
    draft.header(
        b"mcp-name",
        rng.choice(
            [
                wrapped,
                wrapped[:-3] + b"?=",
                wrapped.replace(b"base64", b"BASE64"),
                b"=?base64?!!?=",
                b"=?",
                b"",
                text.encode("utf-8", "replace"),
                text.encode("latin-1", "replace"),
                text.encode("utf-8", "replace") + b" ",
                uri_like(text, rng).encode("utf-8", "replace") if "://" in text else b"x",
            ]
        ),
    )


def odd_length(draft: Draft, rng: Random, targets: Targets) -> None:
    if rng.random() < 0.3:
        draft.has_length = False
    else:
        draft.declared_length = rng.choice(LENGTHS)


def odd_bytes(draft: Draft, rng: Random, targets: Targets) -> None:
    spot = rng.random()
    before = rng.choice([b" ", b"\n\t", b"\x0b", b"\x00", b"//\n", b"\xc2\xa0"])
    after = rng.choice([b"x", b"{}", b",", b"\x00", b"\r\n", b" \t", b"]"])

    def flipped(body: bytes) -> bytes:
        place = int(spot * len(body))
        return (
            body[:place] + bytes([body[place] ^ 0x80 if body[place : place + 1] else 0]) + body[place + 1 :]
        )

    changes: Sequence[Callable[[bytes], bytes]] = (
        lambda body: b"\xef\xbb\xbf" + body,
        lambda body: body.decode("utf-8", "replace").encode("utf-16"),
        lambda body: body.decode("utf-8", "replace").encode("utf-16-le"),
        lambda body: body.decode("utf-8", "replace").encode("utf-32"),
        lambda body: body + after,
        lambda body: before + body,
        lambda body: body[: int(spot * len(body))],
        lambda body: body.replace(b"method", b"\\u006dethod").replace(b"uri", b"u\\u0072i"),
        lambda body: body.replace(b'"', b"'"),
        lambda body: body.replace(b"}", b",}"),
        lambda body: body.replace(b":", b" :\n "),
        lambda body: b"",
        flipped,
    )
    draft.remake.append(rng.choice(changes))


def plain_unicode(draft: Draft, rng: Random, targets: Targets) -> None:
    draft.is_ascii = False


def long_body(draft: Draft, rng: Random, targets: Targets) -> None:
    size = rng.choice([60_000, 65_536, 66_000, 70_000])
    draft.remake.append(lambda body: body + b" " * (size - len(body)))


def huge_body(draft: Draft, rng: Random, targets: Targets) -> None:
    size = MAX_MESSAGE_BYTES + rng.choice([-1, 0, 1, 4096])
    draft.remake.append(lambda body: body + b" " * (size - len(body)))


def in_pieces(draft: Draft, rng: Random, targets: Targets) -> None:
    draft.splits = rng.randrange(1, 5)


def early_goodbye(draft: Draft, rng: Random, targets: Targets) -> None:
    draft.splits = rng.randrange(3)
    draft.leaves = True


def other_verb(draft: Draft, rng: Random, targets: Targets) -> None:
    draft.http_method = rng.choice(["PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "post", "GET"])
    # Asking for a stream is fine, and it has no end of its own.
    draft.leaves = draft.leaves or draft.http_method == "GET"


def other_path(draft: Draft, rng: Random, targets: Targets) -> None:
    draft.path = rng.choice(PATHS)


MESSAGE_CHANGES: tuple[Change, ...] = (
    *(odd_id, odd_member, lost_member, repeated_key, other_method, other_known_method, other_shape),
    *(odd_param, lost_param, other_uri, other_uri, other_uri, other_cursor, other_cursor),
    *(lost_meta, odd_meta, more_meta, more_meta, other_client, other_capabilities, deep_meta, long_meta),
    *(odd_bytes, plain_unicode),
)
"""What can be done to a message, whatever carries it."""

HTTP_CHANGES: tuple[Change, ...] = (
    *(*MESSAGE_CHANGES, other_version, lost_header, repeated_header, unknown_header, odd_header, odd_header),
    *(odd_name_header, odd_length, long_body, in_pieces, early_goodbye, other_verb, other_path),
)


def good_request(rng: Random, targets: Targets) -> HttpRequest:
    return good(rng, targets).finish(rng)


def odd_request(rng: Random, targets: Targets) -> HttpRequest:
    """Make a request that is good but for one to three changes."""
    draft = good(rng, targets)
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3])):
        rng.choice(HTTP_CHANGES)(draft, rng, targets)
    return draft.finish(rng)


def line(rng: Random, targets: Targets, number: int, *, is_modern: bool, is_odd: bool) -> bytes:
    """Make one message for standard input, without its line end, and mostly with `number` in its id."""
    draft = good(rng, targets)
    draft.members.put("id", rng.choice([number, f"q-{number}"]))
    if not is_modern:
        draft.params.drop("_meta")
    for _ in range(rng.choice([1, 1, 2]) if is_odd else 0):
        rng.choice(MESSAGE_CHANGES)(draft, rng, targets)
    return draft.body


_numbers = st.integers() | st.floats() | st.integers(-(2**70), 2**70)
json_values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | _numbers | st.text(max_size=20),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3)
    ),
    max_leaves=8,
)
"""Values as free as Hypothesis can make them, for the places where anything may come."""


@st.composite
def drafts(draw: st.DrawFn, targets: Targets, changes: Sequence[Change]) -> tuple[Draft, Random]:
    """Draft a good request, change it, and put free values into some places."""
    rng = draw(st.randoms(use_true_random=False))
    draft = good(rng, targets)
    for change in draw(st.lists(st.sampled_from(changes), max_size=3)):
        change(draft, rng, targets)
    places = {"id": draft.members, "uri": draft.params, "cursor": draft.params, "note": draft.meta}
    for key in draw(st.lists(st.sampled_from(sorted(places)), max_size=1)):
        value = draw(json_values)
        places[key].put(key, value)
        if key == "uri":
            draft.name_in_header(value)
    return draft, rng


@st.composite
def http_requests(draw: st.DrawFn, targets: Targets) -> HttpRequest:
    draft, rng = draw(drafts(targets, HTTP_CHANGES))
    return draft.finish(rng)
