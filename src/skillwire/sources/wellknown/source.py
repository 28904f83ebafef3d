"""`WellKnownSource`: the skills of a web site, to be served by an MCP server."""

import logging
import ssl
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Final

import anyio

from skillwire.core import Finding, LimitError, SkillError, SkillUri, quoted
from skillwire.core.archive_tree import UnpackBudget
from skillwire.sources.background import run_in_background
from skillwire.sources.snapshot import Report, Snapshot, SnapshotSource
from skillwire.sources.wellknown.client import SiteClient, SiteIndex, SkillCopy, complete
from skillwire.sources.wellknown.web import DEFAULT_SECONDS, Resolve, resolve_host
from skillwire.wire.wellknown import AnyEntry

FIRST_SECONDS: Final = 10.0
"""How long opening waits for a site; skills that take longer are added later."""
MAX_BYTES: Final = 256 * 1024 * 1024
"""The default limit of a site's files in memory."""

_MIN_POLL_SECONDS = 60.0
_MAX_POLL_SECONDS = 3600.0
_DEFAULT_POLL_SECONDS = 300.0
_RETRY_SECONDS = 5.0
_AT_ONCE = 4
_BATCH = 50
_MAX_REPORTS = 1_000
_MAX_MESSAGE = 500

logger = logging.getLogger(__name__)


class WellKnownSource(SnapshotSource):
    """The skills of a web site, as copies in memory that are kept up to date while it is open.

        add_skills(mcp, WellKnownSource("https://example.org"))

    A server publishes the digest of every file, so each artifact is fetched
    when the index first lists it, and again when its digest changes. The site
    is polled as often as its headers say, between a minute and an hour. What
    cannot be fetched is reported, and earlier copies stay. `hosts` are further
    hosts the site may use, `prefix` goes before every skill's path, and at most
    `max_bytes` of files are kept. A site that is unavailable when the source is
    opened is not an error: it is polled again.

    Raises:
        SourceError: `url` is not a valid site address, or one of `hosts` is not a host.
        InvalidUriError: `prefix` cannot be part of a URI.
    """

    def __init__(
        self,
        url: str,
        *,
        hosts: Iterable[str] = (),
        prefix: str = "",
        max_bytes: int = MAX_BYTES,
        seconds: float = DEFAULT_SECONDS,
        resolve: Resolve = resolve_host,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(Snapshot.of(()))
        self._client = SiteClient(url, hosts=hosts, seconds=seconds, resolve=resolve, tls=tls)
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        SkillUri.build(f"{self._prefix}name")
        self._max_bytes = max_bytes
        self._copies: dict[str, SkillCopy] = {}
        self._served: dict[str, SkillCopy] = {}
        self._failed: dict[str, str] = {}
        self._problem = ""
        self._refreshing = anyio.Lock()
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> "WellKnownSource":
        """Fetch the site's skills, for a few seconds; the rest is fetched while the source is open."""
        first = anyio.Event()

        async def follow() -> None:
            await self._poll(first)

        async with AsyncExitStack() as stack:
            await stack.enter_async_context(run_in_background(follow))
            with anyio.move_on_after(FIRST_SECONDS):
                await first.wait()
            self._opened = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, trace)

    async def read_file(self, uri: str) -> bytes:
        """Return a file's bytes, which match the digest in the snapshot.

        Raises:
            NotFoundError: No skill has such a file.
        """
        entry, line = self.snapshot.locate(uri)
        assert line is not None, "copies have digests"
        return self._served[entry.name].contents[line.uri]

    def place_of(self, uri: SkillUri) -> str:
        """Return where a published skill comes from, for the operator of the server."""
        return f"{uri.path} (from {self._client.address.url})"

    async def refresh(self) -> Snapshot:
        """Poll the site now, and publish what differs.

        Raises:
            SkillError: It cannot be reached, or its index cannot be used; earlier copies stay.
        """
        await self._refresh()
        return self.snapshot

    # Polling the site

    async def _poll(self, first: anyio.Event) -> None:
        pause = _RETRY_SECONDS
        while True:
            try:
                wait, pause = _poll_seconds(await self._refresh()), _RETRY_SECONDS
            except SkillError as error:
                logger.warning("%s: cannot fetch the index of skills: %s", self._client.address.url, error)
                wait, pause = pause, min(2 * pause, _DEFAULT_POLL_SECONDS)
            except Exception:
                logger.exception("%s: unexpected error; retrying later", self._client.address.url)
                wait = _DEFAULT_POLL_SECONDS
            finally:
                first.set()
            await anyio.sleep(wait)

    async def _refresh(self) -> SiteIndex:
        async with self._refreshing:
            try:
                index = await self._client.index()
                _require_usable(index)
            except SkillError as error:
                self._problem = f"the site's index cannot be fetched: {error}"
                self._publish()
                raise
            await self._update(index)
            return index

    async def _update(self, index: SiteIndex) -> None:
        """Fetch new skills, in batches that are published as they arrive, and drop removed ones."""
        items = sorted(index.site.entries, key=lambda item: item.name)
        names = {item.name for item in items}
        self._copies = {name: copy for name, copy in self._copies.items() if name in names}
        self._failed = {f"entry {n + 1}": finding.message for n, finding in enumerate(_entry_findings(index))}
        self._problem = ""
        budget = UnpackBudget()
        due = [item for item in items if not self._is_known(item)]
        limiter = anyio.CapacityLimiter(_AT_ONCE)
        for start in range(0, len(due), _BATCH):
            async with anyio.create_task_group() as group:
                for item in due[start : start + _BATCH]:
                    group.start_soon(self._complete, index, item, budget, limiter)
            self._publish()
        self._publish()

    def _is_known(self, item: AnyEntry) -> bool:
        copy = self._copies.get(item.name)
        return copy is not None and copy.matches(item)

    async def _complete(
        self, index: SiteIndex, item: AnyEntry, budget: UnpackBudget, limiter: anyio.CapacityLimiter
    ) -> None:
        uri = SkillUri.build(f"{self._prefix}{item.name}")
        try:
            async with limiter:
                copy = await complete(self._client, index, item, uri, budget)
            before = self._copies.get(item.name)
            others = sum(other.size for name, other in self._copies.items() if name != item.name)
            if others + copy.size > self._max_bytes:
                raise LimitError(f"the site's skills have more than {self._max_bytes} bytes together")
            if before is not None and before.entry == copy.entry:
                copy = replace(copy, entry=before.entry)  # Change detection compares identity.
            self._copies[item.name] = copy
        except SkillError as error:
            logger.warning("%s is not served from %s: %s", item.name, self._client.address.url, error)
            self._failed[item.name] = str(error)

    def _publish(self) -> None:
        """Publish the current copies, if they differ from the snapshot."""
        entries = sorted((copy.entry for copy in self._copies.values()), key=lambda entry: entry.uri.text)
        place = self._client.address.url
        failed = list(self._failed.items())[:_MAX_REPORTS]
        reports = [_report(f"{place} {quoted(name)}", "upstream-entry", message) for name, message in failed]
        if self._problem:
            reports.append(_report(place, "upstream-failed", self._problem))
        snapshot = Snapshot.of(entries, reports=reports, revision=self.snapshot.revision + 1)
        if (snapshot.entries, snapshot.reports) != (self.snapshot.entries, self.snapshot.reports):
            self._served = dict(self._copies)
            self._replace_snapshot(snapshot)


def _require_usable(index: SiteIndex) -> None:
    for finding in index.findings:
        if finding.code in ("site-invalid", "site-form-unknown"):
            raise SkillError(finding.message)


def _entry_findings(index: SiteIndex) -> list[Finding]:
    return [finding for finding in index.findings if finding.code != "site-unverifiable"]


def _poll_seconds(index: SiteIndex) -> float:
    """Return when to poll again: as the site says, within bounds, and rarely where it has no digests."""
    fresh = _DEFAULT_POLL_SECONDS if index.fresh_seconds is None else index.fresh_seconds
    is_verifiable = all(item.digest for item in index.site.entries)
    return max(_MIN_POLL_SECONDS if is_verifiable else _DEFAULT_POLL_SECONDS, min(fresh, _MAX_POLL_SECONDS))


def _report(place: str, code: str, message: str) -> Report:
    return Report(place, (Finding(code, message[:_MAX_MESSAGE], file=""),))
