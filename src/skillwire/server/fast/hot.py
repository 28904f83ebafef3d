"""`HotAnswers`: the most common answers as bytes that are ready to be sent.

The plain path builds a value for each request, validates it and writes it as
JSON. Here everything is written once for each snapshot and then joined. A
request that is unusual, or fails, gets no answer here: the plain path answers
it, and returns all errors.
"""

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

from skillwire.core import SkillError, SkillUri, encode
from skillwire.server.answers import FileContent
from skillwire.server.fast.requests import FastRequest, Parts, RequestReader
from skillwire.server.parameters import ListSkillsRequestParams
from skillwire.server.skills import Skills
from skillwire.wire.core import EXTENSION, READ_RESOURCE, file_contents, write_entry

MODERN_VERSION: Final = LATEST_MODERN_VERSION

_MAX_KNOWN_ENVELOPES = 1024
_LARGEST_ENVELOPE = 8 * 1024
# Every JSON parser accepts this nesting; some refuse 200 levels, others 1000.
_MOST_BRACKETS = 100


class HotAnswers:
    """Prepared answers about the skills of one server. Thread-safe."""

    def __init__(self, skills: Skills, server: Server[Any]) -> None:
        self._skills = skills
        self._stamp = b',"_meta":' + encode({SERVER_INFO_META_KEY: server.server_info_stamp}) + b"}"
        fields = skills.result_settings.cache_fields
        self._tail = b"," + encode(fields)[1:-1] + self._stamp
        # The SDK writes results of the base protocol with sorted keys.
        read = encode(dict(sorted({**fields, "contents": [0]}.items())))
        self._read_head, _, rest = read.partition(b"0")
        self._read_tail = rest[:-1] + self._stamp
        self._known_envelopes: set[bytes] = set()

    @property
    def state(self) -> object:
        """The object that all answers depend on; while it is the same, answers are the same."""
        return self._skills.state

    @property
    def is_shared(self) -> bool:
        """Whether `catch_up` is needed before `state` and `result`."""
        return self._skills.is_shared

    async def catch_up(self) -> None:
        """Serve what sources that are shared with other processes contain at this moment."""
        await self._skills.catch_up()

    def new_reader(self) -> RequestReader:
        """Return a reader of requests for one connection or one server."""
        return RequestReader(self.is_valid_envelope)

    def result(self, request: FastRequest, *, modern: bool) -> Parts | None:
        """Return the result as JSON, or None when the plain path should answer."""
        if self._skills.annotator.annotate is not None:
            return None  # The author's function is called for every result.
        try:
            match request.method:
                case "skills/list" if self._skills.has_by_name_dialect and not _declares(request):
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

    async def fetch(self, request: FastRequest, *, modern: bool) -> Parts | None:
        """Return the result of reading a file that is large or has changed, or None as `result` does."""
        uri = request.params["uri"]
        if self._skills.annotator.annotate is not None:
            return None
        try:
            if self._skills.source.snapshot.locate(uri)[1] is None:
                return None  # A dynamic skill may take any time.
            file = await self._skills.answers.read(uri)
        except SkillError:
            return None
        return self._read_result(file, modern=modern) if file.digest else None

    def is_valid_envelope(self, meta: object) -> bool:
        """Return whether the SDK accepts a modern request with this `_meta`.

        Clients repeat the same `_meta`, so each is validated once, by the SDK:
        that takes 18 us, and to find it again 0.2 us.
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
            ListSkillsRequestParams.model_validate({"_meta": envelope}, by_name=False)
        except ValidationError:
            return False
        if len(self._known_envelopes) >= _MAX_KNOWN_ENVELOPES:
            self._known_envelopes.clear()
        self._known_envelopes.add(key)
        return True

    def _list(self, cursor: str | None, *, modern: bool) -> Parts:
        return b"{", self._skills.answers.page_of_skills(cursor), self._tail if modern else b"}"

    def _get(self, uri: str, *, modern: bool) -> Parts | None:
        entry = self._skills.source.snapshot.by_uri.get(SkillUri.parse(uri).text)
        if entry is None:
            return None
        return b'{"skill":', write_entry(entry), self._tail if modern else b"}"

    def _read(self, uri: str, *, modern: bool) -> Parts | None:
        file = self._skills.answers.read_small(uri)
        return None if file is None else self._read_result(file, modern=modern)

    def _read_result(self, file: FileContent, *, modern: bool) -> Parts:
        item = encode(file_contents(file.uri, media_type=file.media_type, content=file.content))
        return (self._read_head, item, self._read_tail) if modern else (b'{"contents":[', item, b"]}")


def _declares(request: FastRequest) -> bool:
    """Return whether the client of a modern request declares the extension."""
    if not request.has_envelope:
        return False  # An older client declares it in the handshake.
    capabilities = request.params["_meta"][CLIENT_CAPABILITIES_META_KEY]
    return EXTENSION in (capabilities.get("extensions") or {})
