"""`SiteConnection`: one web site of skills, seen like any server as a place to list, get and read.

There is no connection to hold: each question is a request of its own. Nothing
but the index is fetched before a skill is needed, and then its artifact alone.
"""

import re
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Final, TypeVar

import anyio
import anyio.abc
import anyio.to_thread

from skillwire.core.archive import ArchiveFormat
from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding
from skillwire.core.uri import SkillUri
from skillwire.errors import InvalidEntryError, InvalidUriError, LimitError, NotFoundError, SkillError
from skillwire.host.calls.declaration import Declaration
from skillwire.host.calls.directories import DirectoryItem
from skillwire.host.calls.enumeration import MAX_TTL_MS, Listing, RefusedEntry, shortened
from skillwire.host.calls.resources import ResourceContent
from skillwire.host.connections.connection import ConnectionState
from skillwire.host.connections.endpoints import ServerConfig, SiteEndpoint
from skillwire.host.connections.flights import Flights
from skillwire.host.connections.throttle import Backoff, ConnectionLimits
from skillwire.host.dialects.packed import archives_off
from skillwire.host.failures import (
    EndlessListingError,
    InvalidAnswerError,
    NotDeclaredError,
    TooSlowError,
    UnavailableError,
)
from skillwire.host.origin import Origin
from skillwire.sources.garbage import collector_paused
from skillwire.sources.wellknown.client import SiteClient, SiteIndex
from skillwire.sources.wellknown.entries import name_in, skill_entry
from skillwire.sources.wellknown.failures import SiteAnswerError, SiteTooSlowError, SiteUnavailableError
from skillwire.sources.wellknown.web import Resolve, resolve_host
from skillwire.wire.dialect import Dialect
from skillwire.wire.wellknown import AnyEntry, ArtifactType, SiteEntry

_INDEX: Final = ("index",)
_FEW = 100
_USELESS = frozenset({"site-invalid", "site-form-unknown"})
_UNVERIFIABLE = "site-unverifiable"
_POSITION = re.compile(r"entry ([0-9]+) ")

T = TypeVar("T")


class SiteConnection:
    """One web site. `async with` owns its requests; entering sends none.

    What goes wrong is always a `SkillError`, and always within the site's own
    time. A site that failed is left alone for a moment, which grows. `formats`
    are the archives that may be unpacked. Sites tell nobody of changes, so
    whoever wants to know asks again.
    """

    def __init__(
        self,
        server: ServerConfig,
        *,
        limits: ConnectionLimits | None = None,
        formats: frozenset[ArchiveFormat] = frozenset(),
        resolve: Resolve = resolve_host,
    ) -> None:
        endpoint = server.endpoint
        assert isinstance(endpoint, SiteEndpoint), "a site is at a web address"
        self._server = server
        self._limits = limits = limits or ConnectionLimits()
        self._formats = formats
        self._client = SiteClient(endpoint.url, hosts=endpoint.hosts, seconds=server.seconds, resolve=resolve)
        self._backoff = Backoff(limits.backoff_base, limits.backoff_most)
        self._limiter = anyio.CapacityLimiter(limits.in_flight)
        self._flights = Flights()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._index: SiteIndex | None = None
        self._is_answering = False
        self._is_closed = False
        self.last_failure: SkillError | None = None
        self.dialect = Dialect.WELL_KNOWN
        # What only a server that speaks MCP has. There is no connection to be lost, so there is one epoch.
        self.epoch = 1
        self.instructions = ""
        self.declaration: Declaration | None = None
        self.protocol_version: str | None = None

    @property
    def origin(self) -> Origin:
        return self._server.origin

    @property
    def state(self) -> ConnectionState:
        if self._is_closed:
            return ConnectionState.CLOSED
        if self._is_answering:
            return ConnectionState.READY
        return ConnectionState.RESTING if self._backoff.remaining else ConnectionState.IDLE

    async def __aenter__(self) -> "SiteConnection":
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        self.begin_closing()
        # The tasks keep their errors to themselves, and the block's own error should not come out in a group.
        await self._tasks.__aexit__(None, None, None)

    def begin_closing(self) -> None:
        """Give up whatever is under way, without waiting."""
        self._is_closed = True
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    async def connect(self, *, at_once: bool = False) -> None:
        """Check that the site may be asked now; nothing is sent. `at_once` forgets earlier failures.

        Raises:
            UnavailableError: It is left alone for a while.
        """
        if at_once:
            self._backoff.reset()
        self._require_rest()

    async def list_skills(self) -> Listing:
        """Return what the index of the site lists.

        Raises:
            SkillError: The site cannot be asked, or has no index.
        """
        index = await self._ask(_INDEX, self._fetch_index)
        if len(index.site.entries) <= _FEW:
            return listing_of(index, self._formats, self._limits.max_entries)
        return await anyio.to_thread.run_sync(listing_of, index, self._formats, self._limits.max_entries)

    async def get_skill(self, uri: SkillUri | str) -> SkillEntry:
        """Return the current entry of the skill at `uri`, which only an index of this moment can tell.

        Raises:
            SkillError: There is no such skill, it cannot be used, or the site cannot be asked.
        """
        wanted = uri if isinstance(uri, SkillUri) else SkillUri.parse(uri)
        index = await self._ask(_INDEX, self._fetch_index)
        entry = index.by_name.get(name_in(wanted.text))
        if entry is None or SkillUri.build(entry.name) != wanted:
            raise NotFoundError(f"the site has no skill at {wanted.text}", uri=wanted.text)
        found = _usable(entry, self._formats)
        if isinstance(found, Finding):
            raise InvalidEntryError(found.message, fix=found.fix)
        return found

    async def read_file(self, uri: str, *, max_bytes: int) -> bytes:
        """Return the bytes of a skill's file, or of its archive, as the site has them now.

        Where the last index that was read has a digest, they match it.

        Raises:
            SkillError: There is no such file, it is larger than `max_bytes`, or the site cannot be asked.
        """

        async def call() -> bytes:
            index = self._index or await self._fetch_index()
            return await self._client.read(index, uri, max_bytes=max_bytes)

        return await self._ask((uri, max_bytes), call)

    async def read_resource(self, uri: str) -> ResourceContent:
        """Refuse: a site has no resources beside the files of its skills.

        Raises:
            NotDeclaredError: Always.
        """
        raise NotDeclaredError("a web site has skills and no other resources", violates="NEG-09")

    async def read_directory(self, uri: str) -> tuple[DirectoryItem, ...]:
        """Refuse: a site tells the files of a skill in its index or in an archive, and nowhere else.

        Raises:
            NotDeclaredError: Always.
        """
        raise NotDeclaredError("a web site has no directories to read", violates="NEG-06")

    # One request

    async def _fetch_index(self) -> SiteIndex:
        try:
            self._index = await self._client.index()
        except LimitError as error:
            raise EndlessListingError(f"the index of the site is too large: {error}") from error
        return self._index

    async def _ask(self, key: Hashable, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, or share the one that is under way."""
        if self._tasks is None or self._is_closed:
            raise UnavailableError("the connection is not open")
        return await self._flights.share(self._tasks, key, lambda: self._make(call))

    async def _make(self, call: Callable[[], Awaitable[T]]) -> T:
        self._require_rest()
        try:
            async with self._limiter:
                answer = await call()
        except SiteUnavailableError as error:
            raise self._failed(UnavailableError(str(error), fix=error.fix)) from error
        except SiteTooSlowError as error:
            raise self._failed(TooSlowError(str(error), fix=error.fix)) from error
        except SiteAnswerError as error:
            raise InvalidAnswerError(str(error), violates=error.violates, fix=error.fix) from error
        self._is_answering = True
        self.last_failure = None
        self._backoff.reset()
        return answer

    def _failed(self, failure: SkillError) -> SkillError:
        """Note that the site could not be asked, and leave it alone for a while."""
        self._is_answering = False
        self.last_failure = failure
        self._backoff.failed()
        return failure

    def _require_rest(self) -> None:
        if wait := self._backoff.remaining:
            failed = f": {self.last_failure}" if self.last_failure is not None else ""
            raise UnavailableError(f"the site is left alone for a moment{failed}", retry_in=wait)


def listing_of(index: SiteIndex, formats: frozenset[ArchiveFormat], most: int) -> Listing:
    """Return what an index lists: entries, and why others are not used.

    An index that is none, or of a form that is not known, lists nothing, and
    that is a problem (DISC-03).
    """
    useless = next((finding for finding in index.findings if finding.code in _USELESS), None)
    if useless is not None:
        problem = InvalidAnswerError(
            useless.message, violates=useless.rule, fix="ask the site's author for an index of version 0.2.0"
        )
        return Listing((), problem=problem, dialect=Dialect.WELL_KNOWN)
    about_all = [finding for finding in index.findings if finding.code == _UNVERIFIABLE]
    refused = [_refused(finding) for finding in index.findings if finding.code != _UNVERIFIABLE]
    entries: list[SkillEntry] = []
    with collector_paused():
        for position, item in enumerate(index.site.entries[:most]):
            entry = _usable(item, formats)
            if isinstance(entry, SkillEntry):
                entries.append(entry)
            else:
                refused.append(RefusedEntry(position, SkillUri.build(item.name).text, (entry,)))
    is_cut = len(index.site.entries) > most
    fresh = index.fresh_seconds
    return Listing(
        tuple(entries),
        tuple(refused),
        ttl_ms=None if fresh is None else min(int(fresh * 1000), MAX_TTL_MS),
        problem=EndlessListingError(f"the index has more than {most} entries") if is_cut else None,
        dialect=Dialect.WELL_KNOWN,
        remarks=tuple((entry.uri.text, finding) for entry in entries for finding in about_all),
    )


def _usable(entry: AnyEntry, formats: frozenset[ArchiveFormat]) -> SkillEntry | Finding:
    """Return the entry of a skill, or say why it cannot be used here."""
    if isinstance(entry, SiteEntry) and entry.type is ArtifactType.ARCHIVE:
        # The site's answer tells how it is packed; before that, only how its URL ends.
        ending = ArchiveFormat.of_path(entry.url)
        wanted = frozenset(ArchiveFormat) if ending is None else {ending}
        if formats.isdisjoint(wanted):
            return archives_off(sorted(wanted))
    try:
        return skill_entry(entry)
    except InvalidUriError as error:
        return Finding("uri-invalid", str(error), file="")


def _refused(finding: Finding) -> RefusedEntry:
    """Return an entry that is not used; the finding about it begins with its position."""
    place = _POSITION.match(finding.message)
    return RefusedEntry(int(place[1]) if place else 0, None, shortened([finding]))
