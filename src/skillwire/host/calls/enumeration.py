"""`skills/list`: every skill a server lists, and every entry of it that is not used."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, cast

from mcp.client import Client
from mcp.types import CONNECTION_CLOSED, PaginatedRequestParams

from skillwire.core.entry import SkillEntry, check_entries
from skillwire.core.finding import Finding
from skillwire.core.uri import SkillUri
from skillwire.errors import InvalidUriError, SkillError
from skillwire.host.calls.declaration import require_skills
from skillwire.host.calls.exchange import DEFAULT_SECONDS, Answer, ListSkillsRequest, within
from skillwire.host.calls.paging import DEFAULT_BYTES, DEFAULT_ENTRIES, DEFAULT_PAGES, Limits, Page, Pager
from skillwire.host.failures import EndlessListingError, InvalidAnswerError, PeerError, TooSlowError
from skillwire.sources.garbage import collector_paused
from skillwire.sources.templates import SkillTemplate
from skillwire.wire.core import LIST_SKILLS, CacheScope
from skillwire.wire.dialect import Dialect

MAX_TTL_MS: Final = 2**53 - 1

Check: TypeAlias = Callable[[Sequence[object]], Iterable[tuple[SkillEntry | None, list[Finding]]]]
"""Reads the items of one page: for each the entry, if it is one, and what is wrong with it."""

_MOST_FINDINGS = 10
_FEW = 20
_LONGEST_FINDING = 500


@dataclass(frozen=True, slots=True)
class RefusedEntry:
    """An entry that is not used, and each rule it breaks.

    `position` counts from 0 through all pages. `uri` is canonical, and None
    when the entry has no URI a skill may have.
    """

    position: int
    uri: str | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """What a server listed, in its order; it may list less than it serves.

    `ttl_ms` is the shortest time any page may be kept, and `cache_scope` is
    "private" as soon as one page is. Both are None when no page says
    anything, as before revision 2026-07-28. `problem` says why the listing
    breaks off here, when the pages that came were kept all the same. `dialect` is
    the generation of the wire it came in. `templates` tell people how to name skills
    that nobody lists, and `remarks` are warnings about entries, by their URI, that are
    used all the same.
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
    check: Check = check_entries,
) -> Listing:
    """Ask a server for all skills it lists, page by page, within `max_seconds`.

    An entry that breaks a rule costs only itself. A URI that is listed twice
    costs every entry with it, because none of them can be believed. With
    `keep_partial`, a listing that does not end, breaks the rules, fails or takes
    too long after its first page costs only what has not come yet. `check` is
    for a server that keeps to other rules than the released ones.

    Raises:
        NotDeclaredError: The server has not declared the extension; nothing was sent.
        EndlessListingError: The listing repeats itself or is larger than allowed.
        InvalidAnswerError: A page is not one.
        PeerError: The server answered with an error, or the connection ended.
        TooSlowError: The server took too long.
    """
    require_skills(client, LIST_SKILLS)
    limits = Limits(max_pages, max_entries, max_bytes)
    pager = Pager(client, _page_request, member="skills", limits=limits)
    reading = Reading(check, _uri_of)
    return await walk(pager, reading, LIST_SKILLS, max_seconds=max_seconds, keep_partial=keep_partial)


async def walk(
    pager: Pager, reading: "Reading", method: str, *, max_seconds: float | None, keep_partial: bool
) -> Listing:
    """Read all pages of a listing in whatever dialect, and return it as `list_skills` does."""
    try:
        with within(max_seconds, method):
            while (page := await pager.next_page()) is not None:
                if page.is_first:
                    reading.begin()
                with collector_paused() if len(page.items) > _FEW else nullcontext():
                    reading.take(page)
    except (EndlessListingError, InvalidAnswerError, PeerError, TooSlowError) as error:
        if not keep_partial or reading.is_empty or _is_closed(error):
            raise
        return replace(reading.listing(), problem=error)
    return reading.listing()


def _is_closed(error: SkillError) -> bool:
    """Tell whether the connection ended, which says nothing about the listing."""
    return isinstance(error, PeerError) and error.peer_code == CONNECTION_CLOSED


class Freshness:
    """How long the pages of one listing may be kept, and who may share them."""

    def __init__(self) -> None:
        self._ttls: list[int | None] = []
        self._scopes: set[CacheScope | None] = set()

    def take(self, answer: Answer) -> None:
        """Add what one page says."""
        self._ttls.append(_ttl_of(answer))
        self._scopes.add(_scope_of(answer))

    @property
    def is_empty(self) -> bool:
        """Whether no page has come."""
        return not self._ttls

    @property
    def ttl_ms(self) -> int | None:
        told = [ttl for ttl in self._ttls if ttl is not None]
        if not told:
            return None
        return min(told) if len(told) == len(self._ttls) else 0

    @property
    def cache_scope(self) -> CacheScope | None:
        return next(iter(self._scopes)) if len(self._scopes) == 1 else "private"


class Reading:
    """The entries of a listing while its pages come in.

    `check` reads the items of a page, each as `check_entries` does, and
    `uri_of` says for one that is refused whose entry it would have been.
    """

    def __init__(
        self, check: Check, uri_of: Callable[[object], str | None], dialect: Dialect = Dialect.CORE
    ) -> None:
        self._check = check
        self._uri_of = uri_of
        self._dialect = dialect
        self.begin()

    def begin(self) -> None:
        """Forget what came so far: the first page comes, perhaps once more."""
        self._position = 0
        self._copies: Counter[str] = Counter()
        self._valid: list[tuple[int, SkillEntry]] = []
        self._refused: list[RefusedEntry] = []
        self._freshness = Freshness()

    @property
    def is_empty(self) -> bool:
        """Whether no page has come."""
        return self._freshness.is_empty

    def take(self, page: Page) -> None:
        self._freshness.take(page.answer)
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
                [*map(self._doubted, refused), *self._repeated()], key=lambda entry: entry.position
            )
            valid = [entry for entry in valid if self._copies[entry.uri.text] == 1]
        ttl, scope = self._freshness.ttl_ms, self._freshness.cache_scope
        return Listing(tuple(valid), tuple(refused), ttl, scope, dialect=self._dialect)

    def _repeated(self) -> Iterable[RefusedEntry]:
        for position, entry in self._valid:
            if self._copies[entry.uri.text] > 1:
                yield self._doubted(RefusedEntry(position, entry.uri.text, ()))

    def _doubted(self, entry: RefusedEntry) -> RefusedEntry:
        """Add to an entry's findings that others have its URI, if so."""
        copies = self._copies[entry.uri] if entry.uri is not None else 1
        if copies == 1:
            return entry
        finding = Finding("duplicate-uri", f"the server lists {entry.uri} {copies} times", file="")
        return replace(entry, findings=(*entry.findings, *shortened([finding])))


def shortened(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the first few findings, each short enough to be read, however much a stranger wrote."""
    return tuple(
        replace(finding, message=finding.message[:_LONGEST_FINDING] + "…")
        if len(finding.message) > _LONGEST_FINDING
        else finding
        for finding in list(findings)[:_MOST_FINDINGS]
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
    """Return how long a page may be kept; what is no such time counts as no time at all (LIST-15)."""
    ttl = answer.get("ttlMs")
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int):
        return 0
    return max(0, min(ttl, MAX_TTL_MS))


def _scope_of(answer: Answer) -> CacheScope | None:
    """Return who may share a page; what is neither of the two words counts as the narrower one."""
    scope = answer.get("cacheScope")
    if scope is None:
        return None
    return "public" if scope == "public" else "private"
