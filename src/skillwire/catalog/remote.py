"""`RemoteCatalog`: a catalog that a server publishes to on behalf of its callers, over HTTP.

It has those methods of `Catalog` that publishers use. No redirect is followed,
answers have a maximum size, and their texts are not trusted.
"""

import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, TypeVar, cast

import anyio
import anyio.to_thread
import httpx2

from skillwire.catalog.catalog import ReportProgress, upload
from skillwire.catalog.drafts import namespace_of
from skillwire.catalog.model import (
    FOREVER,
    CatalogConflictError,
    CatalogError,
    Draft,
    Publication,
    PublishPlan,
    Revision,
    SkillChange,
    SkillChangeKind,
    SkillRow,
    SkillVersion,
)
from skillwire.core import (
    MAX_TOTAL_SIZE,
    InvalidSkillError,
    JsonDict,
    NotFoundError,
    SkillError,
    SkillUri,
    encode,
    is_loopback,
    literal,
    parse_strictly,
    visible,
)

CONNECT_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 320.0
"""The deadline of a request, including the time that the server asks to wait before it is repeated."""

_MAX_SIZE = MAX_TOTAL_SIZE
_MAX_TEXT = 500
_MAX_WAIT = 10.0
_UPLOADS = 3
_REPETITIONS = 12
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,8192}")
_INVALID = "the server's answer is not that of a catalog"

_T = TypeVar("_T")


class _MissingFilesError(Exception):
    def __init__(self, digests: frozenset[str]) -> None:
        self.digests = digests


@dataclass(frozen=True, slots=True)
class RemotePlan(PublishPlan):
    """A plan of a server, with the drafts that it is about."""

    drafts: tuple[Draft, ...] = ()


@asynccontextmanager
async def open_remote(url: str, *, token: str) -> AsyncGenerator["RemoteCatalog"]:
    """Use the catalog of the server at `https://…`; `http://` is for this machine only.

    Raises:
        CatalogError: The URL or the token cannot be used.
    """
    base = _base(url)
    if not _TOKEN.fullmatch(token):
        raise CatalogError("the token cannot be used", fix="create one with `skillwire token`")
    client = httpx2.AsyncClient(
        headers={"authorization": f"Bearer {token}", "accept-encoding": "identity"},
        timeout=httpx2.Timeout(REQUEST_SECONDS, connect=CONNECT_SECONDS),
        follow_redirects=False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )
    async with client:
        yield RemoteCatalog(client, base)


def _base(url: str) -> str:
    """Return the URL of a server without its endpoint."""
    try:
        parsed = httpx2.URL(url)
        host = parsed.host
        is_usable = bool(host) and not (parsed.userinfo or parsed.query or parsed.fragment)
    except (httpx2.InvalidURL, ValueError):
        parsed, host, is_usable = httpx2.URL(), "", False
    address = literal(host) if is_usable else None
    is_here = host == "localhost" if address is None else is_loopback(address)
    if not is_usable or not (parsed.scheme == "https" or (parsed.scheme == "http" and is_here)):
        raise CatalogError(
            "this is not the URL of a server with a catalog",
            fix="write it like https://skills.example.com; http:// is for this machine only",
        )
    return str(parsed).rstrip("/").removesuffix("/mcp")


class RemoteCatalog:
    """The catalog of a server, as one of its callers may use it."""

    def __init__(self, client: httpx2.AsyncClient, url: str) -> None:
        self.url = url
        self._client = client
        self._revision = 0

    async def revision(self) -> int:
        """Return the newest revision of the answers so far."""
        return self._revision

    async def plan(self, drafts: Sequence[Draft], *, source: str = "", prune: bool = False) -> RemotePlan:
        """Return what publishing the drafts would change.

        Raises:
            InvalidSkillError: A draft breaks a rule.
            CatalogConflictError: What is in the catalog does not allow it.
            CatalogError: This caller may not, or the server does not answer.
        """
        if source or prune:
            raise CatalogError("sources are managed with the database", fix="use the URL of the database")
        answer = await self._post("plan", {"drafts": [_draft_json(draft) for draft in drafts]})
        files = {
            line.digest: (draft, line)
            for draft in drafts
            for line in (draft.entry.manifest.files if draft.entry.manifest else ())
        }
        missing = _parsed(lambda: frozenset(map(str, answer["missing"])))
        if not missing <= files.keys():
            raise CatalogError(_INVALID)
        seen = _parsed(lambda: {str(uri): int(since) for uri, since in answer["seen"].items()})
        return RemotePlan(_changes(answer), missing, seen=seen, files=files, drafts=tuple(drafts))

    async def publish(
        self, plan: PublishPlan, *, actor: str = "", note: str = "", progress: ReportProgress | None = None
    ) -> Publication:
        """Upload the files that are missing, and publish; the server decides who the actor is.

        Raises:
            CatalogConflictError: Another publisher changed one of the skills since the plan was made.
            CatalogError: A file is not as its draft says, or the server does not accept it.
        """
        assert isinstance(plan, RemotePlan), "a plan of this catalog"
        if not plan.changes:
            return Publication(self._revision, ())
        receipts: dict[str, str] = {}

        async def put(digest: str, content: bytes) -> None:
            answer = await self._request("PUT", f"blobs/{digest}", content=content)
            receipts[digest] = _parsed(lambda: str(answer["receipt"]))

        document = {"drafts": [_draft_json(draft) for draft in plan.drafts], "seen": plan.seen, "note": note}
        missing = plan.missing
        for _ in range(2):  # The files of a plan may have been removed meanwhile.
            await upload(plan, missing, put, progress, at_once=_UPLOADS)
            try:
                return _publication(await self._post("publish", {**document, "uploads": receipts}))
            except _MissingFilesError as error:
                missing = error.digests & plan.files.keys()
        raise CatalogError("the server did not store the files", fix="try again later")

    async def rollback(self, uri: SkillUri, revision: int, *, actor: str = "") -> Publication:
        """Make the state that a skill had at a revision its current one, as a new revision."""
        return _publication(await self._post("rollback", {"uri": uri.text, "revision": revision}))

    async def unpublish(self, uris: Collection[SkillUri], *, actor: str = "") -> Publication:
        """Remove skills, or immutable versions, from the current state; their history stays."""
        return _publication(await self._post("unpublish", {"uris": [uri.text for uri in uris]}))

    async def history(
        self, uri: SkillUri | None = None, *, limit: int = 100, before: int | None = None
    ) -> list[SkillVersion]:
        """Return the states of a skill, newest first, without their entries."""
        if uri is None:
            raise CatalogError("a server has the history of skills only", fix="name a skill")
        page: dict[str, str | int] = {"uri": uri.text, "limit": limit}
        answer = await self._request(
            "GET", "history", params=page if before is None else {**page, "before": before}
        )
        return _parsed(lambda: [_version(uri, item) for item in answer["versions"]])

    async def named(self, name: str) -> list[SkillUri]:
        """Raise an error: a server does not find skills by their names alone."""
        raise CatalogError("this server needs the path of a skill", fix="write it like acme/billing/refunds")

    async def _post(self, route: str, document: JsonDict) -> JsonDict:
        content = await anyio.to_thread.run_sync(encode, document)
        if len(content) > _MAX_SIZE:
            raise CatalogError("these are too many skills at once", fix="publish them in several parts")
        return await self._request("POST", route, content=content)

    async def _request(
        self, method: str, route: str, *, content: bytes = b"", params: Mapping[str, str | int] | None = None
    ) -> JsonDict:
        """Send a request until the server has time for it, and return the document of its answer."""
        try:
            with anyio.fail_after(REQUEST_SECONDS):
                status, wait, body = await self._send(method, route, content, params)
                for _ in range(_REPETITIONS):
                    if status not in (429, 503) or wait is None:
                        break
                    await anyio.sleep(wait)
                    status, wait, body = await self._send(method, route, content, params)
        except TimeoutError as error:
            raise CatalogError("the server did not answer in time", fix="try again later") from error
        document = await anyio.to_thread.run_sync(_document, body)
        if status != 200:
            raise _error_for(status, document)
        if document is None:
            raise CatalogError(_INVALID, fix="check the URL of the server")
        revision = document.get("revision", 0)
        self._revision = max(self._revision, revision if type(revision) is int else 0)
        return document

    async def _send(
        self, method: str, route: str, content: bytes, params: Mapping[str, str | int] | None
    ) -> tuple[int, float | None, bytes]:
        """Return the status of a response, the seconds to wait before a repetition, and the body."""
        url = f"{self.url}/catalog/{route}"
        body = bytearray()
        try:
            async with self._client.stream(method, url, content=content, params=params) as response:
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise CatalogError(_INVALID)
                async for part in response.aiter_raw():
                    body += part
                    if len(body) > _MAX_SIZE:
                        raise CatalogError("the server's answer is too large")
        except httpx2.HTTPError as error:
            raise CatalogError(
                f"the server of the catalog cannot be reached ({type(error).__name__})", fix="check its URL"
            ) from error
        wait = response.headers.get("retry-after", "")
        is_number = len(wait) < 5 and wait.isascii() and wait.isdecimal()
        return response.status_code, min(float(wait), _MAX_WAIT) if is_number else None, bytes(body)


def _document(body: bytes) -> JsonDict | None:
    try:
        value = parse_strictly(body)
    except ValueError:
        return None
    return cast("JsonDict", value) if isinstance(value, dict) else None


def _error_for(status: int, document: JsonDict | None) -> Exception:
    """Return the error that a response means."""
    found = document or {}
    message, fix = (visible(str(found.get(key, "")), most=_MAX_TEXT) for key in ("error", "fix"))
    if status == 401:
        return CatalogError("the server does not accept the token", fix="check it, or ask for another one")
    if document is None:
        return CatalogError(
            f"the server answered with status {status}", fix="check the URL, and that it serves a catalog"
        )
    if status == 409 and "missing" in found:
        return _MissingFilesError(_parsed(lambda: frozenset(map(str, found["missing"]))))
    if status == 409:
        return CatalogConflictError(
            message, uris=_parsed(lambda: [str(uri) for uri in found["uris"]]), fix=fix
        )
    if status == 404:
        return NotFoundError(message, uri="", fix=fix)
    return (InvalidSkillError if status == 400 else CatalogError)(message or f"status {status}", fix=fix)


def _parsed(parse: Callable[[], _T]) -> _T:
    try:
        return parse()
    except (KeyError, TypeError, ValueError, AttributeError, SkillError) as error:
        raise CatalogError(_INVALID) from error


def _publication(answer: JsonDict) -> Publication:
    return Publication(_parsed(lambda: int(answer["revision"])), _changes(answer))


def _changes(answer: JsonDict) -> tuple[SkillChange, ...]:
    return _parsed(lambda: tuple([_change(item) for item in answer["changes"]]))


def _change(item: Mapping[str, Any]) -> SkillChange:
    uri = SkillUri(SkillUri.parse(item["uri"]).text)
    files = tuple(uri.relative_path(uri.join(file)) for file in item["files"])
    before, after = (visible(str(item[key]), most=_MAX_TEXT) for key in ("before", "after"))
    return SkillChange(uri, SkillChangeKind(item["change"]), before, after, files, bool(item["isVersion"]))


def _version(uri: SkillUri, item: Mapping[str, Any]) -> SkillVersion:
    actor, action, note, digest, version = (
        visible(str(item[key]), most=_MAX_TEXT) for key in ("actor", "action", "note", "digest", "version")
    )
    made = Revision(int(item["number"]), float(item["at"]), actor, action, note)
    row = SkillRow(
        uri=uri.text,
        since=made.number,
        until=FOREVER if item["until"] is None else int(item["until"]),
        namespace=namespace_of(uri),
        name=uri.name,
        entry=b"",
        digest=digest,
        details="{}",
        modified=None,
        listed=0,
        pinned=0,
        is_pin=int(bool(item["isVersion"])),
        version=version,
        source="",
    )
    return SkillVersion(row, made)


def _draft_json(draft: Draft) -> JsonDict:
    details = {"mediaTypes": dict(draft.media_types), "folders": draft.folders, "order": draft.order}
    found: JsonDict = {"entry": draft.entry.to_json(), "version": draft.version, "details": details}
    return found if draft.modified is None else {**found, "modified": draft.modified}
