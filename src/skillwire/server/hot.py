"""`HotAnswers`: the answers that are asked for all the time, as bytes that are ready to be sent.

The plain path makes a value for each request, validates it and writes it as
JSON. Here everything is written once for each snapshot and then put together.
Whatever is not plainly a good request for something we have gets no answer
here: the plain path answers it, and gives every error.
"""

from dataclasses import dataclass
from typing import Any, Final, cast

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
from skillwire.server.requests import Parts, Request, RequestReader
from skillwire.server.skills import Skills
from skillwire.sources import Catalog
from skillwire.wire.core import (
    EXTENSION,
    LIST_SKILLS,
    READ_RESOURCE,
    file_contents,
    write_entry,
)
from skillwire.wire.cursor import read_cursor
from skillwire.wire.encoding import encode

MODERN_VERSION: Final = LATEST_MODERN_VERSION

_LARGEST_KEPT = 256 * 1024
_MAX_KNOWN_ENVELOPES = 1024
_LARGEST_ENVELOPE = 8 * 1024
# No reader refuses a message for nesting this deep; some refuse 200 levels, others a thousand.
_MOST_BRACKETS = 100


@dataclass(slots=True)
class _HotFile:
    """The item of a `resources/read` result, and the snapshot in which it was last found current."""

    item: bytes
    digest: str
    catalog: Catalog
    revision: int = 0


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
        self._files: ByteCache[str, _HotFile] = ByteCache(terms.kept_bytes * 2 // 5)
        self._known_envelopes: set[bytes] = set()

    @property
    def state(self) -> object:
        """What all answers depend on: as long as it is the same object, so are they."""
        return self._skills.state

    def new_reader(self) -> RequestReader:
        """Return a reader of requests that may be asked for here, for one connection or one server."""
        return RequestReader(self.knows_envelope)

    def result(self, request: Request, *, modern: bool) -> Parts | None:
        """Return the result as JSON, or None when the plain path should answer."""
        if self._skills.notes.annotate is not None:
            return None  # Someone wants a look at every result.
        try:
            match request.method:
                case "skills/list" if self._skills.is_known_by_name and not _declares(request):
                    return None
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
        if self._skills.notes.annotate is not None:
            return None
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
        return b'{"skills":[', page.items, page.ending, self._tail if modern else b"}"

    def _get(self, uri: str, *, modern: bool) -> Parts | None:
        entry = self._skills.catalog.snapshot.by_uri.get(SkillUri.parse(uri).text)
        if entry is None:
            return None
        return b'{"skill":', write_entry(entry), self._tail if modern else b"}"

    def _read(self, uri: str, *, modern: bool) -> Parts | None:
        catalog = self._skills.answers.catalog
        held = self._files.get(uri)
        if held is None or held.catalog is not catalog:
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
            self._files.put(
                file.uri, _HotFile(item, file.digest, self._skills.catalog), len(item) + len(file.uri)
            )
        return item


def _declares(request: Request) -> bool:
    """Tell whether a modern request says that its client knows the extension."""
    if not request.has_envelope:
        return False  # An older client said so, or not, when it shook hands.
    capabilities = request.params["_meta"][CLIENT_CAPABILITIES_META_KEY]
    return EXTENSION in (capabilities.get("extensions") or {})
