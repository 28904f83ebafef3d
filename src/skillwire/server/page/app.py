"""`PageApp`: serves the web page to browsers."""

import json
import logging
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from skillwire.core import (
    SKILL_FILE,
    ByteCache,
    Manifest,
    NotFoundError,
    SkillEntry,
    SkillError,
    SkillUri,
    SourceError,
    digest_of,
    segment_of,
)
from skillwire.server.answers import Answers, FileContent, etag_matches
from skillwire.server.fast.hot import MODERN_VERSION
from skillwire.server.page import templates as addresses
from skillwire.server.page.catalog import (
    MAX_FOUND,
    PAGE_SIZE,
    PageIndex,
    folder_values,
    page_number,
    search_values,
)
from skillwire.server.page.skill import file_values, instruction_values, skill_values
from skillwire.server.page.templates import asset_at, etag_of, render_template, shortened
from skillwire.server.search import MAX_QUERY, ServerSearch
from skillwire.sources.snapshot import Report, possible_skills
from skillwire.wire.core import LIST_SKILLS

# The response headers of the page: security policy and caching.


# Our own style, script and icon, and nothing else: no frame, no plug-in, no request to another host.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "img-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_NOTHING_ALLOWED = "default-src 'none'; frame-ancestors 'none'; sandbox"

SAFE: Final = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""The headers of every response."""

FOREVER: Final = "public, max-age=31536000, immutable"
NEVER: Final = "no-store"
_FRESH_SECONDS = 10


def freshness(ttl_ms: int, *, is_private: bool) -> str:
    """Return the `Cache-Control` of a page: a few seconds if it is public, no caching if private."""
    if is_private:
        return "private, no-store"
    seconds = min(_FRESH_SECONDS, ttl_ms // 1000)
    return f"public, max-age={seconds}" if seconds else "public, no-cache"


def download(name: str) -> dict[str, str]:
    """Return the headers of a download, which a browser must save and never render."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._- ") else "_" for c in name)
    return {
        **SAFE,
        "content-security-policy": _NOTHING_ALLOWED,
        "content-type": "application/octet-stream",
        "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
    }


# Configuration snippets for MCP clients.


LABEL: Final = "skills"
"""The label of a server without a name, in the snippets."""
VARIABLE: Final = "SKILLS_TOKEN"
"""The environment variable with the token, in the snippets."""

_NO_LABEL = re.compile(r"[^a-z0-9]+")
_MAX_LABEL = 40


@dataclass(frozen=True, slots=True)
class Snippet:
    """A text for one client, and the file it belongs in; without a file it is a command.

    `key` is its ID within the page.
    """

    key: str
    client: str
    text: str
    file: str = ""
    is_in_project: bool = True


def label_of(name: str) -> str:
    """Return the label of a server in the snippets: letters, digits and hyphens."""
    return _NO_LABEL.sub("-", name.lower())[:_MAX_LABEL].strip("-") or LABEL


def snippets(url: str, *, has_token: bool, label: str = LABEL) -> list[Snippet]:
    """Return the snippets to connect to `url`, with a token from the environment if one is required."""
    return [
        Snippet("mcp-json", "Claude Code and others", _mcp_json(url, label, has_token), ".mcp.json"),
        Snippet("claude", "Claude Code", _claude(url, label, has_token)),
        Snippet("vscode", "VS Code", _vscode(url, label, has_token), ".vscode/mcp.json"),
        Snippet("cursor", "Cursor", _cursor(url, label, has_token), ".cursor/mcp.json"),
        Snippet("codex", "Codex", _codex(url, label, has_token), "~/.codex/config.toml", is_in_project=False),
        Snippet("curl", "curl", _curl(url, has_token)),
    ]


def skill_snippets(url: str, uri: SkillUri, *, has_token: bool, label: str = LABEL) -> list[Snippet]:
    """Return the snippets to use one skill of the server at `url`: for MCP clients, and for `skillwire`."""
    config = _mcp_json(url, label, has_token, indent=None)
    reference = shlex.quote(f"{label}/{uri.root}")
    # `add` writes no headers, so a server that needs a token is used as the line above configures it.
    command = f"skillwire load --config .mcp.json {reference}"
    if not has_token:
        command = f"skillwire add {label} {shlex.quote(url)} && skillwire load {reference}"
    return [
        Snippet("use-server", "Clients", config, ".mcp.json"),
        Snippet("use-skill", "skillwire", command),
    ]


def _mcp_json(url: str, label: str, has_token: bool, *, indent: int | None = 2) -> str:
    server = {"type": "http", "url": url, **_headers(has_token, f"${{{VARIABLE}}}")}
    return json.dumps({"mcpServers": {label: server}}, indent=indent)


def _claude(url: str, label: str, has_token: bool) -> str:
    words = f"claude mcp add --transport http {label} {shlex.quote(url)}"
    return words + (f' \\\n  --header "Authorization: Bearer ${VARIABLE}"' if has_token else "")


def _vscode(url: str, label: str, has_token: bool) -> str:
    server = {"type": "http", "url": url, **_headers(has_token, f"${{input:{label}-token}}")}
    asked = {"type": "promptString", "id": f"{label}-token", "description": "Token", "password": True}
    return _json({**({"inputs": [asked]} if has_token else {}), "servers": {label: server}})


def _cursor(url: str, label: str, has_token: bool) -> str:
    return _json({"mcpServers": {label: {"url": url, **_headers(has_token, f"${{env:{VARIABLE}}}")}}})


def _codex(url: str, label: str, has_token: bool) -> str:
    # A JSON string of a plain URL is also valid TOML.
    lines = [f"[mcp_servers.{label}]", f"url = {json.dumps(url)}"]
    return "\n".join([*lines, f'bearer_token_env_var = "{VARIABLE}"'] if has_token else lines)


def _curl(url: str, has_token: bool) -> str:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "curl", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": LIST_SKILLS, "params": {"_meta": meta}}
    headers = [
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        f"MCP-Protocol-Version: {MODERN_VERSION}",
        f"Mcp-Method: {LIST_SKILLS}",
    ]
    lines = [f"curl {shlex.quote(url)}"]
    if has_token:
        lines.append(f'-H "Authorization: Bearer ${VARIABLE}"')
    lines += [f"-H {shlex.quote(header)}" for header in headers]
    return " \\\n  ".join([*lines, f"--data {shlex.quote(json.dumps(request))}"])


def _headers(has_token: bool, token: str) -> Mapping[str, Any]:
    return {"headers": {"Authorization": f"Bearer {token}"}} if has_token else {}


def _json(value: object) -> str:
    return json.dumps(value, indent=2)


logger = logging.getLogger(__name__)

METHODS: Final = ("GET", "HEAD")

_SECONDS = 30
_RETRY_SECONDS = 5
_MAX_THREADS = 2
_MAX_QUERY_STRING = 4096
_CACHE_BYTES = 4 * 1024 * 1024
_MAX_CALLER = 80
_ATTEMPTS = 3
_TITLE = "Agent Skills"
_HTML = {"content-type": "text/html; charset=utf-8"}

Value = TypeVar("Value")


class PageSkills(Protocol):
    """The skills that one caller may see, with what the page needs."""

    @property
    def answers(self) -> Answers: ...

    @property
    def reports(self) -> Sequence[Report]: ...

    @property
    def search(self) -> ServerSearch: ...


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request, with the caller and the visible skills."""

    request: Request
    skills: PageSkills
    public_url: str
    caller: str
    is_private: bool

    @property
    def path(self) -> str:
        """The requested path.

        Raises:
            NotFoundError: It is not a valid path of the page.
        """
        return addresses.path_of(self.request.scope)

    @property
    def base(self) -> str:
        """The relative path to the root of the application."""
        return addresses.base_of(self.request.scope)

    def query_param(self, name: str) -> str | None:
        """Return a query parameter."""
        return self.request.query_params.get(name)


class PageApp:
    """The catalog, its skills and their files as pages, for any number of views.

    Each request brings the skills that its caller may see. Rendering happens in
    a few threads, and is bounded in size and time.
    """

    def __init__(self, *, name: str = "", endpoint: str = "/mcp") -> None:
        """Show the skills of the server named `name`."""
        self._title = name or _TITLE
        self._label = label_of(name)
        self._endpoint = endpoint
        self._indexes: WeakKeyDictionary[Answers, PageIndex] = WeakKeyDictionary()
        self._bodies: ByteCache[tuple[str, Manifest, str], Mapping[str, Any]] = ByteCache(_CACHE_BYTES)
        self._threads: anyio.CapacityLimiter | None = None

    def owns(self, path: str) -> bool:
        """Return whether the page serves a path (relative to the application's mount point)."""
        return addresses.owns(path)

    async def respond(
        self,
        request: Request,
        skills: PageSkills,
        *,
        public_url: str = "",
        caller: str = "",
        is_private: bool = False,
    ) -> Response:
        """Answer a request for a path that the page `owns`.

        `public_url` is the external URL of the server. With `is_private`, the
        response is for this `caller` alone, and not cached.
        """
        if request.method not in METHODS:
            return _text_response(405, "Method not allowed; use GET or HEAD", allow=", ".join(METHODS))
        visit = PageRequest(request, skills, public_url, caller, is_private)
        response = await self._respond(visit)
        if request.method == "HEAD":
            response.body = b""  # The headers stay those of the GET response.
        return response

    async def explain_endpoint(
        self, request: Request, *, public_url: str, status: int, is_private: bool
    ) -> Response:
        """Answer a browser at the MCP endpoint with a page that explains the URL.

        The caller is not authenticated, so a private server does not reveal its name.
        """
        url = addresses.endpoint_of(request, public_url, self._endpoint)
        title = _TITLE if is_private else self._title
        frame = {"base": addresses.base_of(request.scope), "title": title, "kind": _TITLE}
        values = {**frame, "caller": "", "query": "", "url": url}
        body = await self._in_thread(lambda: render_template("endpoint.html", values))
        headers = {**SAFE, **_HTML, "cache-control": NEVER, "vary": "accept"}
        if request.method == "HEAD":
            headers["content-length"] = str(len(body))
            body = b""
        return Response(body, status_code=status, headers=headers)

    async def _respond(self, visit: PageRequest) -> Response:
        try:
            with anyio.fail_after(_SECONDS):
                return await self._route(visit)
        except NotFoundError:
            return await self._error_page(visit, 404, "Page not found")
        except (SkillError, TimeoutError) as error:
            logger.warning("the page cannot be rendered: %s", error or "timed out")
        except Exception:
            logger.exception("unexpected failure while rendering the page")
        return await self._error_page(visit, 503, "The skills are temporarily unavailable")

    async def _route(self, visit: PageRequest) -> Response:
        path = visit.path
        if len(visit.request.scope["query_string"]) > _MAX_QUERY_STRING:
            raise NotFoundError("the query is too long", uri=path)
        if path == addresses.HOME:
            return await self._catalog(visit)
        if path == addresses.CONNECT:
            url = addresses.endpoint_of(visit.request, visit.public_url, self._endpoint)
            needs_token = visit.is_private
            ways = snippets(url, has_token=needs_token, label=self._label)
            values = {"url": url, "ways": ways, "needs_token": needs_token, "variable": VARIABLE}
            return await self._page(visit, "connect.html", values)
        if path == addresses.ROBOTS:
            rest = "/" if visit.is_private else addresses.FILES
            return _text_response(200, f"User-agent: *\nDisallow: {rest}\n")
        if path.startswith(addresses.STATIC):
            return _asset(path.removeprefix(addresses.STATIC))
        if path.startswith(addresses.SKILLS):
            return await self._skill(visit, addresses.uri_at(path.removeprefix(addresses.SKILLS)))
        if path.startswith(addresses.FILES):
            return await self._file(visit, addresses.uri_at(path.removeprefix(addresses.FILES)))
        raise NotFoundError("there is no such page", uri=path)

    async def _catalog(self, visit: PageRequest) -> Response:
        query = " ".join((visit.query_param("q") or "").split())[:MAX_QUERY]
        if not query:
            is_shown = not visit.is_private
            held_back = sum(report.uri is None for report in visit.skills.reports) if is_shown else 0
            return await self._folder(visit, "", held_back)
        number = page_number(visit.query_param("page"))
        snapshot, reports = visit.skills.answers.source.snapshot, visit.skills.reports
        found = await visit.skills.search.find(snapshot, query, limit=min(number * PAGE_SIZE, MAX_FOUND))
        values = await self._in_thread(lambda: search_values(found, reports, number=number))
        return await self._page(visit, "catalog.html", {**values, "query": query, "held_back": 0})

    async def _folder(self, visit: PageRequest, directory: str, held_back: int = 0) -> Response:
        snapshot, reports = visit.skills.answers.source.snapshot, visit.skills.reports
        index, number = self._index(visit.skills.answers), page_number(visit.query_param("page"))
        values = await self._in_thread(
            lambda: folder_values(index, snapshot, reports, directory=directory, number=number)
        )
        return await self._page(visit, "catalog.html", {**values, "held_back": held_back})

    async def _skill(self, visit: PageRequest, uri: str) -> Response:
        """Answer with the page of a skill, or of a folder."""
        catalog, reports = visit.skills.answers.source, visit.skills.reports
        try:
            entry, file = await self._read_skill(visit.skills.answers, uri)
        except NotFoundError:
            return await self._folder(visit, uri)
        snapshot, index = catalog.snapshot, self._index(visit.skills.answers)
        modified = catalog.modified_at(entry.uri)
        body = await self._instructions(visit, entry, file)
        facts = await self._in_thread(
            lambda: skill_values(
                entry, snapshot, reports, index.graph(snapshot), findings=body["findings"], modified=modified
            )
        )
        is_private = visit.is_private or file.is_private or not file.digest
        url = addresses.endpoint_of(visit.request, visit.public_url, self._endpoint)
        ways = skill_snippets(url, entry.uri, has_token=visit.is_private, label=self._label)
        return await self._page(visit, "skill.html", {**body, **facts, "ways": ways}, is_private=is_private)

    async def _read_skill(self, answers: Answers, uri: str) -> tuple[SkillEntry, FileContent]:
        """Return the entry of a skill and the matching `SKILL.md`.

        Raises:
            NotFoundError: There is no such skill.
            SourceError: It cannot be read as published.
        """
        wanted = SkillUri(f"{uri}/{SKILL_FILE}")
        for _ in range(_ATTEMPTS):
            entry = await answers.source.get_skill(wanted)
            file = await answers.read(wanted.text)
            promised = None if entry.files is None else entry.files.find(wanted.text)
            if promised is None or promised.digest == (file.digest or digest_of(file.content)):
                return entry, file
        raise SourceError(f"{wanted.text} keeps changing and cannot be read as published")

    async def _instructions(
        self, visit: PageRequest, entry: SkillEntry, file: FileContent
    ) -> Mapping[str, Any]:
        base, manifest = visit.base, entry.manifest
        if manifest is None or not file.digest:
            return await self._in_thread(lambda: instruction_values(entry, file.content, base))
        key = (entry.uri.text, manifest, base)
        body = self._bodies.get(key)
        if body is None:
            body = await self._in_thread(lambda: instruction_values(entry, file.content, base))
            self._bodies.put(key, body, len(body["body"]))
        return body

    async def _file(self, visit: PageRequest, uri: str) -> Response:
        answers = visit.skills.answers
        file = await answers.read(uri)
        entry = await _skill_with(answers, uri)
        is_private = visit.is_private or file.is_private or not file.digest
        if visit.query_param("download") is not None:
            kept = freshness(answers.settings.ttl_ms, is_private=is_private)
            return _body_response(
                visit.request, file.content, {**download(segment_of(uri)), "cache-control": kept}
            )
        values = await self._in_thread(lambda: file_values(entry, uri, file))
        return await self._page(visit, "file.html", values, is_private=is_private)

    async def _page(
        self, visit: PageRequest, template: str, values: Mapping[str, Any], *, is_private: bool | None = None
    ) -> Response:
        """Answer with a page; private and dynamic pages are not cached."""
        is_private = visit.is_private if is_private is None else is_private
        body = await self._in_thread(
            lambda: render_template(template, {**self._common_values(visit), **values})
        )
        kept = freshness(visit.skills.answers.settings.ttl_ms, is_private=is_private)
        return _body_response(visit.request, body, {**SAFE, **_HTML, "cache-control": kept})

    async def _error_page(self, visit: PageRequest, status: int, words: str) -> Response:
        """Answer with an error page, without details of the cause."""
        headers = {**SAFE, **_HTML, "cache-control": NEVER}
        if status == 503:
            headers["retry-after"] = str(_RETRY_SECONDS)
        values = {**self._common_values(visit), "status": status, "words": words}
        body = await self._in_thread(lambda: render_template("problem.html", values))
        return Response(body, status_code=status, headers=headers)

    def _common_values(self, visit: PageRequest) -> dict[str, Any]:
        """Return the template values of every page."""
        caller = shortened(visit.caller, _MAX_CALLER)
        return {"base": visit.base, "title": self._title, "kind": _TITLE, "caller": caller, "query": ""}

    def _index(self, answers: Answers) -> PageIndex:
        index = self._indexes.get(answers)
        if index is None:
            index = self._indexes[answers] = PageIndex()
        return index

    async def _in_thread(self, work: Callable[[], Value]) -> Value:
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_MAX_THREADS)
        # After a timeout the thread runs to its end; its input is bounded.
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)


async def _skill_with(answers: Answers, uri: str) -> SkillEntry:
    """Return the innermost skill that contains a file, listed or not.

    Raises:
        NotFoundError: No skill contains it.
    """
    try:
        return answers.source.snapshot.locate(uri)[0]
    except NotFoundError:
        for skill in possible_skills(uri.rpartition("/")[0]):
            with suppress(NotFoundError):
                return await answers.source.get_skill(skill)
        raise


def _asset(name: str) -> Response:
    asset = asset_at(name)
    if asset is None:
        raise NotFoundError("there is no such file", uri=name)
    headers = {**SAFE, "content-type": asset.media_type, "cache-control": FOREVER}
    return Response(asset.content, headers=headers)


def _body_response(request: Request, body: bytes, headers: Mapping[str, str]) -> Response:
    """Answer with a body, or with status 304 if the client has it cached."""
    if NEVER in headers["cache-control"]:
        return Response(body, headers=dict(headers))
    headers = {**headers, "etag": etag_of(body), "vary": "authorization"}
    if etag_matches(request, headers["etag"]):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers)


def _text_response(status: int, words: str, **headers: str) -> Response:
    every = {**SAFE, "cache-control": NEVER, **headers}
    return Response(words, status_code=status, headers=every, media_type="text/plain; charset=utf-8")
