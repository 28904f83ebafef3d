"""`SiteConnection`: one web site of skills, with the interface of a `Connection`.

There is no permanent connection: each call is a separate HTTP request. Only the
index is fetched until a skill is needed, and then only the files of that skill.
"""

import re
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Final, TypeVar

import anyio
import anyio.abc
import anyio.to_thread

from skillwire.core import (
    ArchiveFormat,
    Dialect,
    Finding,
    InvalidEntryError,
    InvalidUriError,
    LimitError,
    NotFoundError,
    SkillEntry,
    SkillError,
    SkillUri,
    gc_paused,
)
from skillwire.host.calls import (
    MAX_TTL_MS,
    Backoff,
    ConnectionLimits,
    ConnectionState,
    Declaration,
    DirectoryItem,
    Listing,
    RefusedEntry,
    ResourceContent,
    Session,
    SharedCall,
    SharedCalls,
    shortened,
)
from skillwire.host.dialects.base import (
    NO_ARGUMENTS,
    Arguments,
    DialectClient,
    DialectOptions,
    archives_off,
    require_no_arguments,
)
from skillwire.host.model import (
    EndlessListingError,
    InvalidAnswerError,
    NotDeclaredError,
    Origin,
    ServerConfig,
    SiteEndpoint,
    TooSlowError,
    UnavailableError,
)
from skillwire.sources.wellknown.client import SiteClient, SiteIndex, name_in, skill_entry
from skillwire.sources.wellknown.web import (
    Resolve,
    SiteAnswerError,
    SiteTooSlowError,
    SiteUnavailableError,
    resolve_host,
)
from skillwire.wire.wellknown import AnyEntry, ArtifactType, SiteEntry

_INDEX: Final = ("index",)
_SMALL_INDEX = 100
_UNUSABLE = frozenset({"site-invalid", "site-form-unknown"})
_UNVERIFIABLE = "site-unverifiable"
_POSITION = re.compile(r"entry ([0-9]+) ")

T = TypeVar("T")


class SiteConnection:
    """A connection to one web site. `async with` owns its requests; entering sends none.

    All errors are `SkillError`s, raised within the site's timeout. After a
    failure there is a growing backoff. `formats` are the archive formats that
    may be unpacked. Sites send no notifications of changes.
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
        assert isinstance(endpoint, SiteEndpoint), "the endpoint of a site connection is a site"
        self._server = server
        self._limits = limits = limits or ConnectionLimits()
        self._formats = formats
        self._client = SiteClient(endpoint.url, hosts=endpoint.hosts, seconds=server.seconds, resolve=resolve)
        self._backoff = Backoff(limits.backoff_base, limits.backoff_most)
        self._limiter = anyio.CapacityLimiter(limits.in_flight)
        self._calls = SharedCalls()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._index: SiteIndex | None = None
        self._is_answering = False
        self._is_closed = False
        self.last_failure: SkillError | None = None
        self.dialect = Dialect.WELL_KNOWN
        # Values that only MCP servers have. There is no connection to be lost, so there is one epoch.
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
        return ConnectionState.BACKING_OFF if self._backoff.remaining else ConnectionState.IDLE

    async def __aenter__(self) -> "SiteConnection":
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        self.begin_closing()
        # The tasks raise nothing, and an error of the block should not be wrapped in a group.
        await self._tasks.__aexit__(None, None, None)

    def begin_closing(self) -> None:
        """Cancel all requests, without waiting."""
        self._is_closed = True
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    async def connect(self, *, at_once: bool = False) -> None:
        """Check that a request is allowed now; nothing is sent. `at_once` skips the backoff.

        Raises:
            UnavailableError: A backoff is in progress.
        """
        if at_once:
            self._backoff.reset()
        self._require_retry_allowed()

    async def list_skills(self) -> Listing:
        """Return the listing in the index of the site.

        Raises:
            SkillError: The site cannot be reached, or has no index.
        """
        index = await self._share(_INDEX, self._fetch_index)
        if len(index.site.entries) <= _SMALL_INDEX:
            return listing_of(index, self._formats, self._limits.max_entries)
        return await anyio.to_thread.run_sync(listing_of, index, self._formats, self._limits.max_entries)

    async def get_skill(self, uri: SkillUri | str, *, arguments: Arguments = NO_ARGUMENTS) -> SkillEntry:
        """Return the current entry of the skill at `uri`, from an index that is fetched now.

        Raises:
            SkillError: There is no such skill, it cannot be used, or the site cannot be reached.
        """
        require_no_arguments(arguments, Dialect.WELL_KNOWN)
        wanted = uri if isinstance(uri, SkillUri) else SkillUri.parse(uri)
        index = await self._share(_INDEX, self._fetch_index)
        entry = index.by_name.get(name_in(wanted.text))
        if entry is None or SkillUri.build(entry.name) != wanted:
            raise NotFoundError(f"the site has no skill at {wanted.text}", uri=wanted.text)
        found = _usable(entry, self._formats)
        if isinstance(found, Finding):
            raise InvalidEntryError(found.message, fix=found.fix)
        return found

    async def read_file(self, uri: str, *, max_bytes: int, arguments: Arguments = NO_ARGUMENTS) -> bytes:
        """Return the current bytes of a skill's file, or of its archive.

        If the last index has a digest, they match it.

        Raises:
            SkillError: There is no such file, it is larger than `max_bytes`, or the site cannot be reached.
        """
        require_no_arguments(arguments, Dialect.WELL_KNOWN)

        async def call() -> bytes:
            index = self._index or await self._fetch_index()
            return await self._client.read(index, uri, max_bytes=max_bytes)

        return await self._share((uri, max_bytes), call)

    async def read_resource(self, uri: str) -> ResourceContent:
        """Raise an error: a site has no resources besides the files of its skills.

        Raises:
            NotDeclaredError: Always.
        """
        raise NotDeclaredError("a web site has skills and no other resources", violates="NEG-09")

    async def read_directory(self, uri: str) -> tuple[DirectoryItem, ...]:
        """Raise an error: a site lists the files of a skill only in its index or in an archive.

        Raises:
            NotDeclaredError: Always.
        """
        raise NotDeclaredError("a web site has no directories to read", violates="NEG-06")

    async def query(
        self, key: Hashable, method: str, call: Callable[[Session, DialectOptions], Awaitable[T]]
    ) -> T:
        """Raise an error: a site does not answer MCP requests.

        Raises:
            NotDeclaredError: Always.
        """
        raise NotDeclaredError(f"a web site does not answer {method}", violates="NEG-05")

    async def call_once(self, method: str, call: Callable[[Session, DialectClient], Awaitable[T]]) -> T:
        """Raise an error: a site does not answer MCP requests.

        Raises:
            NotDeclaredError: Always.
        """
        raise NotDeclaredError(f"a web site does not answer {method}", violates="NEG-05")

    # One request

    async def _fetch_index(self) -> SiteIndex:
        try:
            self._index = await self._client.index()
        except LimitError as error:
            raise EndlessListingError(f"the index of the site is too large: {error}") from error
        return self._index

    async def _share(self, key: Hashable, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, or share an identical one in progress."""
        if self._tasks is None or self._is_closed:
            raise UnavailableError("the connection is not open")
        return await self._calls.share(self._tasks, key, lambda shared: self._run(shared, call))

    async def _run(self, shared: SharedCall, call: Callable[[], Awaitable[object]]) -> None:
        with shared.running() as values:
            self._require_retry_allowed()
            try:
                async with self._limiter:
                    values.append(await call())
            except SiteUnavailableError as error:
                raise self._failed(UnavailableError(str(error), fix=error.fix)) from error
            except SiteTooSlowError as error:
                raise self._failed(TooSlowError(str(error), fix=error.fix)) from error
            except SiteAnswerError as error:
                raise InvalidAnswerError(str(error), violates=error.violates, fix=error.fix) from error
            self._is_answering = True
            self.last_failure = None
            self._backoff.reset()

    def _failed(self, failure: SkillError) -> SkillError:
        """Record a failure of the site, and start the backoff."""
        self._is_answering = False
        self.last_failure = failure
        self._backoff.record_failure()
        return failure

    def _require_retry_allowed(self) -> None:
        if wait := self._backoff.remaining:
            failed = f": {self.last_failure}" if self.last_failure is not None else ""
            raise UnavailableError(f"backing off after a failure of the site{failed}", retry_in=wait)


def listing_of(index: SiteIndex, formats: frozenset[ArchiveFormat], most: int) -> Listing:
    """Return the listing of an index, with its entries and the refused ones.

    An index that is invalid, or of an unknown form, gives an empty listing with
    a problem (DISC-03).
    """
    useless = next((finding for finding in index.findings if finding.code in _UNUSABLE), None)
    if useless is not None:
        problem = InvalidAnswerError(
            useless.message, violates=useless.rule, fix="ask the site's author for an index of version 0.2.0"
        )
        return Listing((), problem=problem, dialect=Dialect.WELL_KNOWN)
    about_all = [finding for finding in index.findings if finding.code == _UNVERIFIABLE]
    refused = [_refused(finding) for finding in index.findings if finding.code != _UNVERIFIABLE]
    entries: list[SkillEntry] = []
    with gc_paused():
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
    """Return the entry of a skill, or the finding against it."""
    if isinstance(entry, SiteEntry) and entry.type is ArtifactType.ARCHIVE:
        # The media type is known only after the download; until then the suffix of the URL decides.
        ending = ArchiveFormat.of_path(entry.url)
        wanted = frozenset(ArchiveFormat) if ending is None else {ending}
        if formats.isdisjoint(wanted):
            return archives_off(sorted(wanted))
    try:
        return skill_entry(entry)
    except InvalidUriError as error:
        return Finding("uri-invalid", str(error), file="")


def _refused(finding: Finding) -> RefusedEntry:
    """Return the refused entry for a finding, whose message starts with the position."""
    place = _POSITION.match(finding.message)
    return RefusedEntry(int(place[1]) if place else 0, None, shortened([finding]))
