"""`Honest`: a server that does everything right, and the class every scenario derives from.

A scenario overrides what it lies about and leaves the rest alone. What a test
may change while the peer runs comes from the control file, read anew for each
request.
"""

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from hostile.catalog import Json, Published, content, media_type, refunds, reports
from hostile.wire import Wire, encoded

EXTENSION = "io.modelcontextprotocol/skills"
MODERN = "2026-07-28"
LEGACY = "2025-11-25"
INVALID_PARAMS = -32602
UNKNOWN_METHOD = -32601
UNSUPPORTED_VERSION = -32022
DEFAULT_PAGE = 100
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"

Control: TypeAlias = Mapping[str, Any]
SCENARIOS: dict[str, type["Honest"]] = {}
"""Every scenario by name."""


class RpcError(Exception):
    """An error the peer answers with."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error: Json = {"code": code, "message": message} | ({} if data is None else {"data": data})


@dataclass(frozen=True, slots=True)
class Call:
    """One message from the host. `era` is how it speaks: "modern" with an envelope, else "legacy"."""

    method: str
    params: Json
    id: Any
    era: str

    @classmethod
    def of(cls, message: Json) -> "Call":
        params: Json = message.get("params") or {}
        is_modern = VERSION_KEY in params.get("_meta", {})
        return cls(
            str(message.get("method", "")), params, message.get("id"), "modern" if is_modern else "legacy"
        )


class Honest:
    """Lists, gets and serves its skills as the extension says, in both generations.

    `version` in the control file chooses what `refunds` contains, and
    `page` how many entries make a page.
    """

    instructions: ClassVar[str] = ""
    cache: ClassVar[Json] = {"ttlMs": 60_000, "cacheScope": "public"}
    server_info: ClassVar[Json] = {"name": "peer", "version": "1"}
    directory_read: ClassVar[bool] = True
    change: ClassVar[str] = "notifications/resources/list_changed"
    changed: ClassVar[Json] = {}

    def __init_subclass__(cls) -> None:
        SCENARIOS[re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()] = cls

    def __init__(self, era: str) -> None:
        self.era = era
        self.control: Control = {}
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()

    # What is published

    @property
    def version(self) -> int:
        return int(self.control.get("version", 1))

    @property
    def form(self) -> str:
        """Which variant of a scenario the test asked for."""
        return str(self.control.get("form", ""))

    def skills(self) -> list[Published]:
        return [refunds(self.version), reports()]

    def listed(self) -> list[Published]:
        """The skills `skills/list` names; all are served."""
        return self.skills()

    def find(self, uri: str) -> Published:
        for skill in self.skills():
            if uri in (skill.uri, skill.entry.get("uri")):
                return skill
        raise RpcError(INVALID_PARAMS, f"No skill is served at {uri}", {"uri": uri})

    def file(self, uri: str) -> bytes:
        for skill in self.skills():
            for path, data in skill.files.items():
                if uri == f"{skill.root}/{path}":
                    return data
        raise RpcError(INVALID_PARAMS, f"Resource not found: {uri}", {"uri": uri})

    # What is answered

    def answer(self, call: Call) -> Json:
        """Return the whole result of a request, as its generation wants it.

        Raises:
            RpcError: The request is answered with an error.
        """
        handler = self._handlers().get(call.method)
        if handler is None or not self._speaks(call):
            raise RpcError(UNKNOWN_METHOD, f"Method not found: {call.method}")
        result = handler(call)
        if call.era == "modern":
            result = {
                "resultType": "complete",
                **self.cache,
                "_meta": {SERVER_INFO_KEY: self.server_info},
            } | result
        return result

    def deliver(self, call: Call, message: Json, wire: Wire) -> None:
        """Put an answer on the wire; scenarios of slowness, floods and broken messages override this."""
        wire.send(encoded(message))

    def greet(self, wire: Wire) -> None:
        """Do something before the first message arrives; only stdio has such a moment."""

    def count(self, what: str) -> int:
        """Count one more of something, and return how many there were before."""
        with self._lock:
            self._calls[what] = self._calls.get(what, 0) + 1
            return self._calls[what] - 1

    def _speaks(self, call: Call) -> bool:
        if call.method == "initialize" and self.era == "modern":
            data = {"supported": [MODERN], "requested": call.params.get("protocolVersion", "")}
            raise RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
        return call.method != "server/discover" or self.era != "legacy"

    def _handlers(self) -> dict[str, Callable[[Call], Json]]:
        return {
            "initialize": self.initialize,
            "server/discover": self.discover,
            "ping": lambda _call: {},
            "skills/list": self.list_skills,
            "skills/get": self.get_skill,
            "resources/read": self.read,
            "resources/directory/read": self.read_directory,
            "resources/list": self.list_resources,
            "resources/templates/list": lambda _call: {"resourceTemplates": []},
            "tools/list": self.list_tools,
            "tools/call": self.call_tool,
        }

    def capabilities(self) -> Json:
        settings = {"directoryRead": True} if self.directory_read else {}
        return {"resources": {"listChanged": True}, "tools": {}, "extensions": {EXTENSION: settings}}

    def _introduction(self) -> Json:
        said = {"capabilities": self.capabilities()}
        return said | ({"instructions": self.instructions} if self.instructions else {})

    def initialize(self, call: Call) -> Json:
        return {"protocolVersion": LEGACY, "serverInfo": self.server_info, **self._introduction()}

    def discover(self, call: Call) -> Json:
        return {"supportedVersions": [MODERN], **self._introduction()}

    def list_skills(self, call: Call) -> Json:
        return self.page(call, "skills", [skill.entry for skill in self.listed()])

    def get_skill(self, call: Call) -> Json:
        return {"skill": self.find(str(call.params.get("uri"))).entry}

    def read(self, call: Call) -> Json:
        uri = str(call.params.get("uri"))
        return {"contents": [content(uri, self.file(uri))]}

    def read_directory(self, call: Call) -> Json:
        uri = str(call.params.get("uri"))
        children: dict[str, Json] = {}
        for skill in self.skills():
            for path, data in skill.files.items():
                inner = f"{skill.root}/{path}"
                if not inner.startswith(f"{uri}/"):
                    continue
                name, _, deeper = inner[len(uri) + 1 :].partition("/")
                child = {"uri": f"{uri}/{name}", "name": name}
                kind = (
                    {"mimeType": "inode/directory"}
                    if deeper
                    else {"mimeType": media_type(name), "size": len(data)}
                )
                children[name] = child | kind
        if not children:
            raise RpcError(INVALID_PARAMS, f"{uri} is not a directory resource", {"uri": uri})
        return self.page(call, "resources", [children[name] for name in sorted(children)])

    def list_resources(self, call: Call) -> Json:
        items = [
            {"uri": skill.uri, "name": skill.path.rpartition("/")[2], "mimeType": "text/markdown"}
            for skill in self.listed()
        ]
        return self.page(call, "resources", items)

    def list_tools(self, call: Call) -> Json:
        return {"tools": []}

    def call_tool(self, call: Call) -> Json:
        raise RpcError(INVALID_PARAMS, "Unknown tool")

    def page(self, call: Call, member: str, items: list[Json]) -> Json:
        """Return the page of `items` that the call's cursor leads to."""
        size = int(self.control.get("page", DEFAULT_PAGE))
        cursor = call.params.get("cursor")
        start = int(cursor.removeprefix("from-")) if isinstance(cursor, str) else 0
        end = start + size
        return {member: items[start:end]} | ({"nextCursor": f"from-{end}"} if end < len(items) else {})


SCENARIOS["honest"] = Honest
