"""Listings in pages: `skills/list`, `skills/get`, and the items of a directory."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, cast

from mcp.client import Client
from mcp.types import (
    CONNECTION_CLOSED,
    PaginatedRequestParams,
    Request,
)

from skillwire.core import (
    DIRECTORY_MEDIA_TYPE,
    INVALID_PARAMS,
    MAX_JSON_SIZE,
    Dialect,
    Finding,
    InvalidEntryError,
    InvalidUriError,
    SkillEntry,
    SkillError,
    SkillUri,
    canonical_uri,
    check_entries,
    check_entry,
    encode,
    gc_paused,
    quoted,
    segment_of,
)
from skillwire.host.calls.exchange import (
    DEFAULT_BYTES,
    DEFAULT_ENTRIES,
    DEFAULT_PAGES,
    DEFAULT_SECONDS,
    Answer,
    DirectoryParams,
    GetSkillRequest,
    ListingLimits,
    ListSkillsRequest,
    ReadDirectoryRequest,
    UriParams,
    not_found_errors,
    require_directory_read,
    require_skills,
    send_request,
    within,
)
from skillwire.host.model import (
    EndlessListingError,
    InvalidAnswerError,
    PeerError,
    TooSlowError,
)
from skillwire.wire.core import GET_SKILL, LIST_SKILLS, READ_DIRECTORY, CacheScope
from skillwire.wire.index import SkillTemplate

# Walking the pages of an untrusted listing, with limits for one that does not end.


MAX_CURSOR_LENGTH = 65_536


@dataclass(frozen=True, slots=True)
class ResultPage:
    """One page: its items, and the whole result around them.

    `is_first` is also true when the walk started again; then earlier pages are
    to be discarded.
    """

    items: list[object]
    answer: Answer
    is_first: bool


class Pager:
    """One walk through a paginated method.

    `member` is the member of the result that holds the items. If the server
    refuses a cursor, the walk starts again once, because the listing changed
    meanwhile (LIST-13). The limits include the pages before that.
    """

    def __init__(
        self,
        client: Client,
        request_for: Callable[[str | None], Request[Any, Any]],
        *,
        member: str,
        limits: ListingLimits,
    ) -> None:
        self._client = client
        self._request_for = request_for
        self._member = member
        self._limits = limits
        self._method = str(request_for(None).method)
        self._cursor: str | None = None
        self._used: set[str] = set()
        self._pages = self._entries = self._bytes = 0
        self._has_restarted = self._is_over = False
        self._problem: EndlessListingError | None = None

    async def next_page(self) -> ResultPage | None:
        """Fetch the next page; None after the last.

        Raises:
            EndlessListingError: A cursor was repeated, or a limit is reached.
            InvalidAnswerError: The page is invalid.
            PeerError: The server answered with an error, or the connection ended.
        """
        if self._is_over:
            return None
        if self._problem is not None:
            raise self._problem
        answer = await self._fetch()
        page = ResultPage(self._items_of(answer), answer, self._cursor is None)
        self._set_cursor(answer.get("nextCursor"))
        return page

    async def _fetch(self) -> Answer:
        try:
            return await self._ask()
        except PeerError as error:
            if error.peer_code != INVALID_PARAMS or self._cursor is None:
                raise
            if self._has_restarted:
                message = f"the server refuses its own cursors for {self._method}"
                raise InvalidAnswerError(message, violates="LIST-13") from error
        self._has_restarted = True
        self._cursor = None
        self._used.clear()
        return await self._ask()

    async def _ask(self) -> Answer:
        if self._pages >= self._limits.max_pages:
            raise self._endless(f"more than {self._limits.max_pages} pages")
        self._pages += 1
        return await send_request(self._client, self._request_for(self._cursor))

    def _items_of(self, answer: Answer) -> list[object]:
        value = answer.get(self._member)
        if not isinstance(value, list):
            raise InvalidAnswerError(f"the server's answer to {self._method} has no list `{self._member}`")
        items = cast(list[object], value)
        self._entries += len(items)
        if self._entries > self._limits.max_entries:
            raise self._endless(f"more than {self._limits.max_entries} entries")
        self._bytes += _size_of(items)
        if self._bytes > self._limits.max_bytes:
            raise self._endless(f"more than {self._limits.max_bytes} bytes")
        return items

    def _set_cursor(self, cursor: object) -> None:
        if cursor is None:
            self._is_over = True
            return
        if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR_LENGTH:
            raise InvalidAnswerError(
                f"the server's answer to {self._method} has a cursor that is not a short text"
            )
        if cursor in self._used:
            # This page is still valid; only the next one is not fetched.
            self._problem = self._endless("a repeated cursor")
        self._used.add(cursor)
        self._cursor = cursor

    def _endless(self, what: str) -> EndlessListingError:
        return EndlessListingError(f"the server's answer to {self._method} has {what}")


def _size_of(items: list[object]) -> int:
    """Return the size of items as JSON; those without a JSON form count as 0 and are refused later."""
    try:
        return len(encode(items))
    except (TypeError, ValueError, RecursionError):
        return sum(_size_of([item]) for item in items) if len(items) > 1 else 0


# `skills/list` and `skills/get`.


MAX_TTL_MS: Final = 2**53 - 1

CheckEntries: TypeAlias = Callable[[Sequence[object]], Iterable[tuple[SkillEntry | None, list[Finding]]]]
"""Checks the items of one page; yields the entry, if it is valid, and the findings for each."""

_MAX_FINDINGS = 10
_SMALL_PAGE = 20
_MAX_MESSAGE_LENGTH = 500


@dataclass(frozen=True, slots=True)
class RefusedEntry:
    """An entry that is not used, with the findings against it.

    `position` counts from 0 through all pages. `uri` is canonical, and None if
    the entry has no valid skill URI.
    """

    position: int
    uri: str | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """What a server listed, in its order; it may list less than it serves.

    `ttl_ms` is the shortest time that any page may be cached, and `cache_scope`
    is "private" as soon as one page is. Both are None if no page states them, as
    before revision 2026-07-28. `problem` says why the listing is incomplete, if
    it is. `dialect` is the protocol version in which it was sent. `templates`
    are URI templates of skills that are not listed, and `remarks` are warnings
    about used entries, by their URI.
    """

    entries: tuple[SkillEntry, ...]
    refused: tuple[RefusedEntry, ...] = ()
    ttl_ms: int | None = None
    cache_scope: CacheScope | None = None
    problem: SkillError | None = None
    dialect: Dialect = Dialect.CORE
    templates: tuple[SkillTemplate, ...] = ()
    remarks: tuple[tuple[str, Finding], ...] = ()


async def list_skills(
    client: Client,
    *,
    max_pages: int = DEFAULT_PAGES,
    max_entries: int = DEFAULT_ENTRIES,
    max_bytes: int = DEFAULT_BYTES,
    max_seconds: float | None = DEFAULT_SECONDS,
    keep_partial: bool = False,
    check: CheckEntries = check_entries,
) -> Listing:
    """Request all skills that a server lists, page by page, within `max_seconds`.

    An invalid entry does not affect the others. If a URI is listed twice, all
    entries with it are refused, because none can be trusted. With `keep_partial`,
    a listing that does not end, is invalid, fails or takes too long after its
    first page is returned incomplete, with the problem. `check` replaces the
    rules of the released extension, for servers of another draft.

    Raises:
        NotDeclaredError: The server has not declared the extension; nothing was sent.
        EndlessListingError: The listing repeats itself or is larger than allowed.
        InvalidAnswerError: A page is invalid.
        PeerError: The server answered with an error, or the connection ended.
        TooSlowError: The server took too long.
    """
    require_skills(client, LIST_SKILLS)
    limits = ListingLimits(max_pages, max_entries, max_bytes)
    pager = Pager(client, _page_request, member="skills", limits=limits)
    reading = ListingBuilder(check, _uri_of)
    return await walk(pager, reading, LIST_SKILLS, max_seconds=max_seconds, keep_partial=keep_partial)


async def walk(
    pager: Pager, reading: "ListingBuilder", method: str, *, max_seconds: float | None, keep_partial: bool
) -> Listing:
    """Read all pages of a listing in any dialect; see `list_skills`."""
    try:
        with within(max_seconds, method):
            while (page := await pager.next_page()) is not None:
                if page.is_first:
                    reading.reset()
                with gc_paused() if len(page.items) > _SMALL_PAGE else nullcontext():
                    reading.add(page)
    except (EndlessListingError, InvalidAnswerError, PeerError, TooSlowError) as error:
        if not keep_partial or reading.is_empty or _is_closed(error):
            raise
        return replace(reading.listing(), problem=error)
    return reading.listing()


def _is_closed(error: SkillError) -> bool:
    """Return whether the connection ended, which says nothing about the listing."""
    return isinstance(error, PeerError) and error.peer_code == CONNECTION_CLOSED


class Freshness:
    """The cache lifetime and cache scope of the pages of one listing."""

    def __init__(self) -> None:
        self._ttls: list[int | None] = []
        self._scopes: set[CacheScope | None] = set()

    def add(self, answer: Answer) -> None:
        """Add the values of one page."""
        self._ttls.append(_ttl_of(answer))
        self._scopes.add(_scope_of(answer))

    @property
    def is_empty(self) -> bool:
        """Whether no page has come."""
        return not self._ttls

    @property
    def ttl_ms(self) -> int | None:
        stated = [ttl for ttl in self._ttls if ttl is not None]
        if not stated:
            return None
        return min(stated) if len(stated) == len(self._ttls) else 0

    @property
    def cache_scope(self) -> CacheScope | None:
        return next(iter(self._scopes)) if len(self._scopes) == 1 else "private"


class ListingBuilder:
    """Collects the entries of a listing page by page.

    `check` checks the items of a page like `check_entries`, and `uri_of` returns
    the skill URI of a refused item.
    """

    def __init__(
        self, check: CheckEntries, uri_of: Callable[[object], str | None], dialect: Dialect = Dialect.CORE
    ) -> None:
        self._check = check
        self._uri_of = uri_of
        self._dialect = dialect
        self.reset()

    def reset(self) -> None:
        """Forget all pages, before the first page or when the walk starts again."""
        self._position = 0
        self._copies: Counter[str] = Counter()
        self._valid: list[tuple[int, SkillEntry]] = []
        self._refused: list[RefusedEntry] = []
        self._freshness = Freshness()

    @property
    def is_empty(self) -> bool:
        """Whether no page has come."""
        return self._freshness.is_empty

    def add(self, page: ResultPage) -> None:
        self._freshness.add(page.answer)
        uris: list[str | None] = []
        for position, (entry, findings) in enumerate(self._check(page.items)):
            errors = [finding for finding in findings if finding.is_error] if findings else findings
            if entry is not None and not errors:
                uris.append(entry.uri.text)
                self._valid.append((self._position + position, entry))
            else:
                uris.append(uri := self._uri_of(page.items[position]))
                self._refused.append(RefusedEntry(self._position + position, uri, shortened(errors)))
        self._copies.update(uri for uri in uris if uri is not None)
        self._position += len(page.items)

    def listing(self) -> Listing:
        refused = self._refused
        valid = [entry for _, entry in self._valid]
        if len(self._copies) < self._copies.total():
            refused = sorted(
                [*map(self._with_duplicate_finding, refused), *self._duplicates()],
                key=lambda entry: entry.position,
            )
            valid = [entry for entry in valid if self._copies[entry.uri.text] == 1]
        ttl, scope = self._freshness.ttl_ms, self._freshness.cache_scope
        return Listing(tuple(valid), tuple(refused), ttl, scope, dialect=self._dialect)

    def _duplicates(self) -> Iterable[RefusedEntry]:
        for position, entry in self._valid:
            if self._copies[entry.uri.text] > 1:
                yield self._with_duplicate_finding(RefusedEntry(position, entry.uri.text, ()))

    def _with_duplicate_finding(self, entry: RefusedEntry) -> RefusedEntry:
        """Return the entry with a finding added if other entries have its URI."""
        copies = self._copies[entry.uri] if entry.uri is not None else 1
        if copies == 1:
            return entry
        finding = Finding("duplicate-uri", f"the server lists {entry.uri} {copies} times", file="")
        return replace(entry, findings=(*entry.findings, *shortened([finding])))


def shortened(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the first few findings, each with a message of bounded length."""
    return tuple(
        replace(finding, message=finding.message[:_MAX_MESSAGE_LENGTH] + "…")
        if len(finding.message) > _MAX_MESSAGE_LENGTH
        else finding
        for finding in list(findings)[:_MAX_FINDINGS]
    )


def _page_request(cursor: str | None) -> ListSkillsRequest:
    return ListSkillsRequest(params=PaginatedRequestParams(cursor=cursor))


def _uri_of(item: object) -> str | None:
    uri = cast(Mapping[str, object], item).get("uri") if isinstance(item, dict) else None
    try:
        return SkillUri.parse(uri).text if isinstance(uri, str) else None
    except InvalidUriError:
        return None


def _ttl_of(answer: Answer) -> int | None:
    """Return how long a page may be cached; an invalid value counts as 0 (LIST-15)."""
    ttl = answer.get("ttlMs")
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int):
        return 0
    return max(0, min(ttl, MAX_TTL_MS))


def _scope_of(answer: Answer) -> CacheScope | None:
    """Return the cache scope of a page; an unknown value counts as "private"."""
    scope = answer.get("cacheScope")
    if scope is None:
        return None
    return "public" if scope == "public" else "private"


# `skills/get`: the entry of one skill, listed or not.


async def get_skill(
    client: Client,
    uri: SkillUri | str,
    *,
    max_seconds: float | None = DEFAULT_SECONDS,
    check: Callable[[object], tuple[SkillEntry | None, list[Finding]]] = check_entry,
) -> SkillEntry:
    """Request the current entry of the skill at `uri`, the URI of a `SKILL.md`.

    The URI is sent as it is spelled, because some servers accept only one
    spelling. The URI in the answer must be equivalent. `check` replaces the
    rules of the released extension, for servers of another draft.

    Raises:
        InvalidUriError: The URI is not valid for a skill; nothing was sent.
        NotDeclaredError: The server has not declared the extension; nothing was sent.
        NotFoundError: The server does not serve such a skill.
        InvalidEntryError: The entry is invalid.
        InvalidAnswerError: The answer has another skill, or none.
        PeerError: The server answered with an error, or the connection ended.
        TooSlowError: The server took too long.
    """
    wanted = uri if isinstance(uri, SkillUri) else SkillUri.parse(uri)
    require_skills(client, GET_SKILL)
    request = GetSkillRequest(params=UriParams(uri=wanted.published))
    with within(max_seconds, GET_SKILL), not_found_errors(wanted.published):
        answer = await send_request(client, request)
    if "skill" not in answer:
        raise InvalidAnswerError(f"the server's answer to {GET_SKILL} has no `skill`")
    entry = _checked(wanted, *check(answer["skill"]))
    if entry.uri != wanted:
        raise InvalidAnswerError(
            f"the server was asked for {quoted(wanted.text)} and returned {quoted(entry.uri.text)}",
            violates="GET-06",
        )
    return entry


def _checked(wanted: SkillUri, entry: SkillEntry | None, findings: list[Finding]) -> SkillEntry:
    """Return a valid entry.

    Raises:
        InvalidEntryError: It is invalid.
    """
    errors = [finding for finding in findings if finding.is_error]
    if entry is None or errors:
        messages = "; ".join(finding.message for finding in shortened(errors))
        raise InvalidEntryError(messages, uri=wanted.text)
    return entry


# `resources/directory/read`: the items of a directory on a server.


_MEDIA_TYPE = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?")


@dataclass(frozen=True, slots=True)
class DirectoryItem:
    """One direct child of a directory.

    `uri` is canonical and `name` its decoded last segment, whatever name the
    server gives it. `spelling` is the server's own form of the URI, for requests.
    """

    uri: str
    name: str
    media_type: str | None
    size: int | None
    is_directory: bool
    spelling: str = field(default="", compare=False)

    @property
    def published(self) -> str:
        """The spelling to use when asking the server for this item."""
        return self.spelling or self.uri


async def read_directory(
    client: Client,
    uri: str,
    *,
    max_pages: int = DEFAULT_PAGES,
    max_entries: int = DEFAULT_ENTRIES,
    max_bytes: int = DEFAULT_BYTES,
    max_seconds: float | None = DEFAULT_SECONDS,
) -> tuple[DirectoryItem, ...]:
    """Request the direct children of the directory at `uri`, in the server's order.

    The answer adds no files to a skill: only its manifest defines them. One item
    that is not a direct child makes the whole answer invalid.

    Raises:
        InvalidUriError: The URI is invalid for a directory, as with a trailing slash; nothing was sent.
        NotDeclaredError: The server has not declared `directoryRead`; nothing was sent.
        NotFoundError: The server has no such directory.
        EndlessListingError: The listing repeats itself or is larger than allowed.
        InvalidAnswerError: A page is invalid, or has an item that is not in this directory.
        PeerError: The server answered with an error, or the connection ended.
        TooSlowError: The server took too long.
    """
    directory = canonical_uri(uri)
    require_directory_read(client)

    def page_request(cursor: str | None) -> ReadDirectoryRequest:
        return ReadDirectoryRequest(params=DirectoryParams(uri=uri, cursor=cursor))

    limits = ListingLimits(max_pages, max_entries, max_bytes)
    pager = Pager(client, page_request, member="resources", limits=limits)
    found: dict[str, DirectoryItem] = {}
    with within(max_seconds, READ_DIRECTORY), not_found_errors(uri):
        while (page := await pager.next_page()) is not None:
            if page.is_first:
                found = {}
            for value in page.items:
                item = _item_of(value, directory)
                if item.uri in found:
                    raise InvalidAnswerError(f"the server lists {quoted(item.uri)} twice in one directory")
                found[item.uri] = item
    return tuple(found.values())


def _item_of(value: object, directory: str) -> DirectoryItem:
    """Parse one untrusted item of `directory`."""
    raw = cast(Mapping[str, object], value if isinstance(value, dict) else {})
    spelling, media_type, size = raw.get("uri"), raw.get("mimeType"), raw.get("size")
    if not isinstance(spelling, str):
        raise InvalidAnswerError(f"the server lists an item without a URI in {quoted(directory)}")
    uri = _child_of(directory, spelling)
    if media_type is not None and not (isinstance(media_type, str) and _MEDIA_TYPE.fullmatch(media_type)):
        raise InvalidAnswerError(f"{quoted(uri)} has an invalid media type")
    if size is not None and (
        isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_JSON_SIZE
    ):
        raise InvalidAnswerError(f"{quoted(uri)} has an invalid size")
    is_directory = media_type == DIRECTORY_MEDIA_TYPE
    return DirectoryItem(uri, segment_of(uri), media_type, size, is_directory, spelling)


def _child_of(directory: str, spelling: str) -> str:
    """Return the canonical URI of a direct child.

    Raises:
        InvalidAnswerError: It is not one.
    """
    try:
        uri = canonical_uri(spelling)
    except InvalidUriError as error:
        raise InvalidAnswerError(
            f"the server lists an invalid URI in {quoted(directory)}: {error}", violates="DIR-13"
        ) from error
    if uri.rpartition("/")[0] != directory:
        raise InvalidAnswerError(
            f"the server lists {quoted(uri)}, which is not in {quoted(directory)}", violates="DIR-13"
        )
    return uri
