"""`PageApp`: answers the requests of people's browsers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from skillwire.core.entry import SkillEntry
from skillwire.core.manifest import Manifest, digest_of
from skillwire.core.uri import SKILL_FILE, SkillUri, segment_of
from skillwire.errors import NotFoundError, SkillError, SourceError
from skillwire.server.answers import Answers, FileContent
from skillwire.server.bytecache import ByteCache
from skillwire.server.etags import is_known
from skillwire.server.page import addresses
from skillwire.server.page.assets import asset_at
from skillwire.server.page.catalog import MAX_FOUND, PAGE_SIZE, browsed, page_number, searched
from skillwire.server.page.clients import VARIABLE, snippets
from skillwire.server.page.file import shown_file
from skillwire.server.page.headers import FOREVER, NEVER, SAFE, download, freshness
from skillwire.server.page.rendering import etag_of, fill, shortened
from skillwire.server.page.shelf import Shelf
from skillwire.server.page.skill import described, instructions
from skillwire.server.search import MAX_QUERY, SkillSearch
from skillwire.sources import Report

logger = logging.getLogger(__name__)

METHODS: Final = ("GET", "HEAD")

_SECONDS = 30
_RETRY_SECONDS = 5
_AT_ONCE = 2
_LONGEST_QUERY_STRING = 4096
_KEPT_BYTES = 4 * 1024 * 1024
_LONGEST_CALLER = 80
_ATTEMPTS = 3
_HTML = {"content-type": "text/html; charset=utf-8"}

Value = TypeVar("Value")


class Published(Protocol):
    """The skills that one caller may see, as far as the page needs to know them."""

    @property
    def answers(self) -> Answers: ...

    @property
    def reports(self) -> Sequence[Report]: ...

    @property
    def search(self) -> SkillSearch: ...


@dataclass(frozen=True, slots=True)
class Visit:
    """One request, and everything that was decided about it before."""

    request: Request
    skills: Published
    public_url: str
    caller: str
    is_private: bool

    @property
    def path(self) -> str:
        """The path that was asked for.

        Raises:
            NotFoundError: It can be none of ours.
        """
        return addresses.path_of(self.request.scope)

    @property
    def base(self) -> str:
        """The way from here to where all paths begin."""
        return addresses.base_of(self.request.scope)

    def asked(self, name: str) -> str | None:
        """Return a parameter of the query."""
        return self.request.query_params.get(name)


class PageApp:
    """The catalog, its skills and their files as pages, for any number of views.

    It knows no skill by itself: each request brings the ones its caller may
    see. Rendering happens in threads, a few at once, and is bounded in size
    and time.
    """

    def __init__(self, *, title: str = "Agent Skills", endpoint: str = "/mcp") -> None:
        self._title = title
        self._endpoint = endpoint
        self._shelves: WeakKeyDictionary[Answers, Shelf] = WeakKeyDictionary()
        self._bodies: ByteCache[tuple[str, Manifest, str], Mapping[str, Any]] = ByteCache(_KEPT_BYTES)
        self._threads: anyio.CapacityLimiter | None = None

    def owns(self, path: str) -> bool:
        """Tell whether a path, without what the application is mounted at, is one of the page's."""
        return addresses.owns(path)

    async def respond(
        self,
        request: Request,
        skills: Published,
        *,
        public_url: str = "",
        caller: str = "",
        is_private: bool = False,
    ) -> Response:
        """Answer a request for a path that the page `owns`.

        `public_url` is how clients reach the server from outside. What
        `is_private` is for this `caller` alone, and nobody keeps it.
        """
        if request.method not in METHODS:
            return _words(405, "Only GET and HEAD are answered here", allow=", ".join(METHODS))
        visit = Visit(request, skills, public_url, caller, is_private)
        response = await self._respond(visit)
        if request.method == "HEAD":
            response.body = b""  # The headers are still those of the whole.
        return response

    async def _respond(self, visit: Visit) -> Response:
        try:
            with anyio.fail_after(_SECONDS):
                return await self._found(visit)
        except NotFoundError:
            return await self._problem(visit, 404, "There is nothing here")
        except (SkillError, TimeoutError) as error:
            logger.warning("the page cannot be shown: %s", error or "it takes too long")
        except Exception:
            logger.exception("unexpected failure while showing the page")
        return await self._problem(visit, 503, "The skills cannot be read now")

    async def _found(self, visit: Visit) -> Response:
        path = visit.path
        if len(visit.request.scope["query_string"]) > _LONGEST_QUERY_STRING:
            raise NotFoundError("the query is too long", uri=path)
        if path == addresses.HOME:
            return await self._catalog(visit)
        if path == addresses.CONNECT:
            url = addresses.endpoint_of(visit.request, visit.public_url, self._endpoint)
            needs_token = visit.is_private
            ways = snippets(url, has_token=needs_token)
            values = {"url": url, "ways": ways, "needs_token": needs_token, "variable": VARIABLE}
            return await self._page(visit, "connect.html", values)
        if path == addresses.ROBOTS:
            rest = "/" if visit.is_private else addresses.FILES
            return _words(200, f"User-agent: *\nDisallow: {rest}\n")
        if path.startswith(addresses.STATIC):
            return _asset(path.removeprefix(addresses.STATIC))
        if path.startswith(addresses.SKILLS):
            return await self._skill(visit, addresses.uri_at(path.removeprefix(addresses.SKILLS)))
        if path.startswith(addresses.FILES):
            return await self._file(visit, addresses.uri_at(path.removeprefix(addresses.FILES)))
        raise NotFoundError("no page is there", uri=path)

    async def _catalog(self, visit: Visit) -> Response:
        query = " ".join((visit.asked("q") or "").split())[:MAX_QUERY]
        if not query:
            is_told = not visit.is_private
            held_back = sum(report.uri is None for report in visit.skills.reports) if is_told else 0
            return await self._folder(visit, "", held_back)
        number = page_number(visit.asked("page"))
        snapshot, reports = visit.skills.answers.catalog.snapshot, visit.skills.reports
        found = await visit.skills.search.find(snapshot, query, limit=min(number * PAGE_SIZE, MAX_FOUND))
        values = await self._in_thread(lambda: searched(found, reports, number=number))
        return await self._page(visit, "catalog.html", {**values, "query": query, "held_back": 0})

    async def _folder(self, visit: Visit, directory: str, held_back: int = 0) -> Response:
        snapshot, reports = visit.skills.answers.catalog.snapshot, visit.skills.reports
        shelf, number = self._shelf(visit.skills.answers), page_number(visit.asked("page"))
        values = await self._in_thread(
            lambda: browsed(shelf, snapshot, reports, directory=directory, number=number)
        )
        return await self._page(visit, "catalog.html", {**values, "held_back": held_back})

    async def _skill(self, visit: Visit, uri: str) -> Response:
        """Answer with the page of a skill, or of the folder that is there."""
        catalog, reports = visit.skills.answers.catalog, visit.skills.reports
        try:
            entry, file = await self._read_skill(visit.skills.answers, uri)
        except NotFoundError:
            return await self._folder(visit, uri)
        snapshot, shelf = catalog.snapshot, self._shelf(visit.skills.answers)
        modified = catalog.modified_at(entry.uri)
        body = await self._instructions(visit, entry, file)
        facts = await self._in_thread(
            lambda: described(
                entry, snapshot, reports, shelf.graph(snapshot), findings=body["findings"], modified=modified
            )
        )
        is_private = visit.is_private or file.is_private or not file.digest
        return await self._page(visit, "skill.html", {**body, **facts}, is_private=is_private)

    async def _read_skill(self, answers: Answers, uri: str) -> tuple[SkillEntry, FileContent]:
        """Return the entry of a skill and its `SKILL.md`, of the same moment.

        Raises:
            NotFoundError: No skill is there.
            SourceError: It cannot be read as published.
        """
        wanted = SkillUri(f"{uri}/{SKILL_FILE}")
        for _ in range(_ATTEMPTS):
            entry = await answers.catalog.get_skill(wanted)
            file = await answers.read(wanted.text)
            promised = None if entry.files is None else entry.files.find(wanted.text)
            if promised is None or promised.digest == (file.digest or digest_of(file.content)):
                return entry, file
        raise SourceError(f"{wanted.text} is changing and cannot be shown as published")

    async def _instructions(self, visit: Visit, entry: SkillEntry, file: FileContent) -> Mapping[str, Any]:
        base, manifest = visit.base, entry.manifest
        if manifest is None or not file.digest:
            return await self._in_thread(lambda: instructions(entry, file.content, base))
        key = (entry.uri.text, manifest, base)
        body = self._bodies.get(key)
        if body is None:
            body = await self._in_thread(lambda: instructions(entry, file.content, base))
            self._bodies.put(key, body, len(body["body"]))
        return body

    async def _file(self, visit: Visit, uri: str) -> Response:
        answers = visit.skills.answers
        file = await answers.read(uri)
        entry = await _skill_with(answers, uri)
        is_private = visit.is_private or file.is_private or not file.digest
        if visit.asked("download") is not None:
            kept = freshness(answers.terms.ttl_ms, is_private=is_private)
            return _answer(visit.request, file.content, {**download(segment_of(uri)), "cache-control": kept})
        values = await self._in_thread(lambda: shown_file(entry, uri, file))
        return await self._page(visit, "file.html", values, is_private=is_private)

    async def _page(
        self, visit: Visit, template: str, values: Mapping[str, Any], *, is_private: bool | None = None
    ) -> Response:
        """Answer with a page; one that is for nobody else, or differs each time, is not kept."""
        is_private = visit.is_private if is_private is None else is_private
        body = await self._in_thread(lambda: fill(template, {**self._frame(visit), **values}))
        kept = freshness(visit.skills.answers.terms.ttl_ms, is_private=is_private)
        return _answer(visit.request, body, {**SAFE, **_HTML, "cache-control": kept})

    async def _problem(self, visit: Visit, status: int, words: str) -> Response:
        """Answer with a page that says what went wrong, and nothing about why."""
        headers = {**SAFE, **_HTML, "cache-control": NEVER}
        if status == 503:
            headers["retry-after"] = str(_RETRY_SECONDS)
        values = {**self._frame(visit), "status": status, "words": words}
        body = await self._in_thread(lambda: fill("problem.html", values))
        return Response(body, status_code=status, headers=headers)

    def _frame(self, visit: Visit) -> dict[str, Any]:
        """Return what every page shows."""
        caller = shortened(visit.caller, _LONGEST_CALLER)
        return {"base": visit.base, "title": self._title, "caller": caller, "query": ""}

    def _shelf(self, answers: Answers) -> Shelf:
        shelf = self._shelves.get(answers)
        if shelf is None:
            shelf = self._shelves[answers] = Shelf()
        return shelf

    async def _in_thread(self, work: Callable[[], Value]) -> Value:
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_AT_ONCE)
        # Work that takes too long is left to end by itself; its inputs are bounded.
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)


async def _skill_with(answers: Answers, uri: str) -> SkillEntry:
    """Return the innermost skill around a file, listed or not.

    Raises:
        NotFoundError: There is none.
    """
    try:
        return answers.catalog.snapshot.locate(uri)[0]
    except NotFoundError:
        root = uri.rpartition("/")[0]
        while root.count("/") >= 2:
            try:
                return await answers.catalog.get_skill(SkillUri(f"{root}/{SKILL_FILE}"))
            except NotFoundError:
                root = root.rpartition("/")[0]
        raise


def _asset(name: str) -> Response:
    asset = asset_at(name)
    if asset is None:
        raise NotFoundError("there is no such file", uri=name)
    headers = {**SAFE, "content-type": asset.media_type, "cache-control": FOREVER}
    return Response(asset.content, headers=headers)


def _answer(request: Request, body: bytes, headers: Mapping[str, str]) -> Response:
    """Answer with a body, unless the client has the same already."""
    if NEVER in headers["cache-control"]:
        return Response(body, headers=dict(headers))
    headers = {**headers, "etag": etag_of(body), "vary": "authorization"}
    if is_known(request, headers["etag"]):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers)


def _words(status: int, words: str, **headers: str) -> Response:
    every = {**SAFE, "cache-control": NEVER, **headers}
    return Response(words, status_code=status, headers=every, media_type="text/plain; charset=utf-8")
