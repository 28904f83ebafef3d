"""`HotAnswers`: the answers that are asked for all the time, as bytes that are ready to be sent.

The plain path makes a value for each request, validates it and writes it as
JSON. Here everything is written once for each snapshot and then put together.
Whatever is not plainly a good request for something we have gets no answer
here: the plain path answers it, and gives every error.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard, cast

import orjson
from mcp.server.lowlevel import Server
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
)
from mcp_types.methods import validate_client_request
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import ValidationError

from skillwire.core.uri import SkillUri, canonical_uri
from skillwire.errors import SkillError
from skillwire.server.answers import FileContent
from skillwire.server.bytecache import ByteCache
from skillwire.server.handlers import ListSkillsParams
from skillwire.server.skills import Skills
from skillwire.sources import Catalog
from skillwire.wire.core import (
    GET_SKILL,
    LIST_SKILLS,
    READ_DIRECTORY,
    READ_RESOURCE,
    file_contents,
    write_entry,
)
from skillwire.wire.cursor import read_cursor, write_cursor
from skillwire.wire.encoding import encode

MODERN_VERSION: Final = LATEST_MODERN_VERSION
METHODS: Final = frozenset({LIST_SKILLS, GET_SKILL, READ_RESOURCE, READ_DIRECTORY})

_KEPT_BYTES = 16 * 1024 * 1024
_LARGEST_KEPT = 256 * 1024
_MAX_KNOWN_ENVELOPES = 1024
_LARGEST_ENVELOPE = 8 * 1024
# No reader refuses a message for nesting this deep; some refuse 200 levels, others a thousand.
_MOST_BRACKETS = 100
_MAX_INTEGER_ID = 2**53
_REQUEST_KEYS = frozenset({"jsonrpc", "id", "method", "params"})
_PARAMS = {
    LIST_SKILLS: frozenset({"_meta", "cursor"}),
    GET_SKILL: frozenset({"_meta", "uri"}),
    READ_RESOURCE: frozenset({"_meta", "uri"}),
    READ_DIRECTORY: frozenset({"_meta", "uri", "cursor"}),
}

Parts: TypeAlias = tuple[bytes, ...]
"""Pieces of a JSON text, to be joined once."""


class Request(NamedTuple):
    """A request that is plainly well-formed: its id as JSON, its method, its parameters."""

    id: bytes
    method: str
    params: dict[str, Any]


@dataclass(slots=True)
class _HotFile:
    """The item of a `resources/read` result, and the snapshot in which it was last found current."""

    item: bytes
    digest: str
    revision: int


class HotAnswers:
    """Ready answers about the skills of one server. Safe to ask from any thread."""

    def __init__(self, skills: Skills, server: Server[Any]) -> None:
        self._skills = skills
        stamp = b',"_meta":' + encode({SERVER_INFO_META_KEY: server.server_info_stamp}) + b"}"
        terms = skills.terms
        freshness = f',"ttlMs":{terms.ttl_ms},"cacheScope":"{terms.cache_scope}","resultType":"complete"'
        self._tail = freshness.encode() + stamp
        # The SDK writes the results of the base protocol in the order of the alphabet.
        self._read_head = f'{{"cacheScope":"{terms.cache_scope}","contents":['.encode()
        self._read_tail = f'],"resultType":"complete","ttlMs":{terms.ttl_ms}'.encode() + stamp
        self._stamp = stamp
        self._files: ByteCache[str, _HotFile] = ByteCache(_KEPT_BYTES)
        self._catalog: Catalog | None = None
        self._known_envelopes: set[bytes] = set()

    def result(self, request: Request, *, modern: bool) -> Parts | None:
        """Return the result as JSON, or None when the plain path should answer."""
        try:
            match request.method:
                case "skills/list":
                    return self._list(request.params.get("cursor"), modern=modern)
                case "resources/read":
                    return self._read(request.params["uri"], modern=modern)
                case "skills/get":
                    return self._get(request.params["uri"], modern=modern)
                case _:
                    answers, params = self._skills.answers, request.params
                    cursor = params.get("cursor")
                    listing = encode(answers.read_directory(params["uri"], cursor, modern=modern))
                    return (listing[:-1], self._stamp) if modern else (listing,)
        except SkillError:
            return None

    async def fetch(self, request: Request, *, modern: bool) -> Parts | None:
        """Return the result of reading a file that is not at hand yet, or None as above."""
        uri = request.params["uri"]
        try:
            if self._skills.catalog.snapshot.locate(uri)[1] is None:
                return None  # Nobody knows how long a dynamic skill takes.
            file = await self._skills.answers.read(uri)
        except SkillError:
            return None
        return self._read_result(self._keep(file), modern=modern) if file.digest else None

    def knows_envelope(self, meta: object) -> bool:
        """Tell whether the SDK accepts a modern request with this `_meta`.

        Clients send the same one again and again, so each is judged once, by
        the SDK's own rules.
        """
        if not isinstance(meta, dict):
            return False
        try:
            key = orjson.dumps(meta)
        except TypeError:
            return False  # It nests deeper than orjson writes.
        if key in self._known_envelopes:
            return True
        if len(key) > _LARGEST_ENVELOPE or key.count(b"{") + key.count(b"[") > _MOST_BRACKETS:
            return False
        envelope = cast(dict[str, Any], meta)
        if envelope.get(PROTOCOL_VERSION_META_KEY) != MODERN_VERSION:
            return False
        if CLIENT_CAPABILITIES_META_KEY not in envelope:
            return False
        try:
            validate_client_request(READ_RESOURCE, MODERN_VERSION, {"_meta": envelope, "uri": "skill://x"})
            ListSkillsParams.model_validate({"_meta": envelope}, by_name=False)
        except ValidationError:
            return False
        if len(self._known_envelopes) >= _MAX_KNOWN_ENVELOPES:
            self._known_envelopes.clear()
        self._known_envelopes.add(key)
        return True

    def _list(self, cursor: str | None, *, modern: bool) -> Parts:
        after = None if cursor is None else read_cursor(LIST_SKILLS, cursor)
        page = self._skills.answers.pages.after(after)
        more = (
            b"]"
            if page.is_last
            else b'],"nextCursor":"%b"' % write_cursor(LIST_SKILLS, page.last_uri).encode()
        )
        return b'{"skills":[', page.items, more, self._tail if modern else b"}"

    def _get(self, uri: str, *, modern: bool) -> Parts | None:
        entry = self._skills.catalog.snapshot.by_uri.get(SkillUri.parse(uri).text)
        if entry is None:
            return None
        return b'{"skill":', write_entry(entry), self._tail if modern else b"}"

    def _read(self, uri: str, *, modern: bool) -> Parts | None:
        catalog = self._skills.catalog
        if catalog is not self._catalog:  # The skills were closed and opened again.
            self._catalog, self._files = catalog, ByteCache(_KEPT_BYTES)
        held = self._files.get(uri)
        if held is None:
            return None
        snapshot = catalog.snapshot
        if held.revision != snapshot.revision:
            file = snapshot.locate(uri)[1]
            if file is None or file.digest != held.digest:
                self._files.discard(uri)
                return None
            held.revision = snapshot.revision
        return self._read_result(held.item, modern=modern)

    def _read_result(self, item: bytes, *, modern: bool) -> Parts:
        return (self._read_head, item, self._read_tail) if modern else (b'{"contents":[', item, b"]}")

    def _keep(self, file: FileContent) -> bytes:
        item = encode(file_contents(file.uri, media_type=file.media_type, content=file.content))
        if len(item) <= _LARGEST_KEPT and canonical_uri(file.uri) == file.uri:
            self._files.put(file.uri, _HotFile(item, file.digest, 0), len(item) + len(file.uri))
        return item


def parse_request(body: bytes) -> Request | None:
    """Read a request that is plainly good: what the SDK would take without a remark."""
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(message, dict):
        return None
    fields = cast(dict[str, Any], message)
    method = fields.get("method")
    if fields.keys() != _REQUEST_KEYS or fields["jsonrpc"] != "2.0":
        return None
    if not isinstance(method, str) or method not in METHODS:
        return None
    identifier, params = fields["id"], fields["params"]
    if not _is_plain_id(identifier) or not isinstance(params, dict):
        return None
    arguments = cast(dict[str, Any], params)
    if not arguments.keys() <= _PARAMS[method]:
        return None
    if not isinstance(arguments.get("cursor", ""), str) or not isinstance(arguments.get("uri", ""), str):
        return None
    if method != LIST_SKILLS and "uri" not in arguments:
        return None
    return Request(orjson.dumps(identifier), method, arguments)


def _is_plain_id(value: object) -> TypeGuard[int | str]:
    if isinstance(value, str):
        return True
    return type(value) is int and -_MAX_INTEGER_ID < value < _MAX_INTEGER_ID


def response(request: Request, result: Parts) -> bytes:
    """Put a whole response together."""
    return b"".join((b'{"jsonrpc":"2.0","id":', request.id, b',"result":', *result, b"}"))
