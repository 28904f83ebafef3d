"""`WellKnownSource`: the skills of a web site, to be served again by a server of our own."""

import logging
import ssl
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Final

import anyio

from skillwire.core.archive import UnpackBudget
from skillwire.core.characters import quoted
from skillwire.core.finding import Finding
from skillwire.core.uri import SkillUri
from skillwire.errors import LimitError, SkillError
from skillwire.sources.background import running
from skillwire.sources.live import SnapshotSource
from skillwire.sources.snapshot import Report, Snapshot
from skillwire.sources.wellknown.client import SiteClient, SiteIndex
from skillwire.sources.wellknown.completing import Copy, complete
from skillwire.sources.wellknown.web import DEFAULT_SECONDS, Resolve, resolve_host
from skillwire.wire.wellknown import AnyEntry

FIRST_SECONDS: Final = 10.0
"""How long opening waits for a site; what is slower comes when it comes."""
MAX_BYTES: Final = 256 * 1024 * 1024
"""How much of a site is held in memory by default."""

_LEAST_SECONDS = 60.0
_MOST_SECONDS = 3600.0
_UNTOLD_SECONDS = 300.0
_RETRY_SECONDS = 5.0
_AT_ONCE = 4
_BATCH = 50
_MOST_REPORTED = 1_000
_LONGEST_MESSAGE = 500

logger = logging.getLogger(__name__)


class WellKnownSource(SnapshotSource):
    """The skills of a web site, as copies in memory that are kept up to date while it is open.

        add_skills(mcp, WellKnownSource("https://example.org"))

    A server publishes the digest of every file, so each artifact is fetched
    when the index first names it, and again when its digest changes. The site
    is asked as often as its headers say, within a minute and an hour. What
    cannot be had is reported, and what was known stays. `hosts` are those the
    site may use beside its own, `prefix` goes before every skill's path, and
    at most `max_bytes` of files are held. A site that is away when the source
    is opened is no error: it is asked again.

    Raises:
        SourceError: `url` is no address of a site, or one of `hosts` is no host.
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
        self._copies: dict[str, Copy] = {}
        self._served: dict[str, Copy] = {}
        self._failed: dict[str, str] = {}
        self._problem = ""
        self._refreshing = anyio.Lock()
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> "WellKnownSource":
        """Fetch the site's skills, for a few seconds; the rest comes while the source is open."""
        first = anyio.Event()

        async def follow() -> None:
            await self._follow(first)

        async with AsyncExitStack() as stack:
            await stack.enter_async_context(running(follow))
            with anyio.move_on_after(FIRST_SECONDS):
                await first.wait()
            self._opened = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, trace)

    async def read_file(self, uri: str) -> bytes:
        """Return a file's bytes as the snapshot promises them.

        Raises:
            NotFoundError: No skill has such a file.
        """
        entry, line = self.snapshot.locate(uri)
        assert line is not None, "copies have digests"
        return self._served[entry.name].contents[line.uri]

    def place_of(self, uri: SkillUri) -> str:
        """Say where a published skill comes from, for people who run the server."""
        return f"{uri.path} (from {self._client.address.url})"

    async def refresh(self) -> Snapshot:
        """Ask the site now, and publish what differs.

        Raises:
            SkillError: It cannot be asked, or its index is of no use; what was known stays.
        """
        await self._refresh()
        return self.snapshot

    # Keeping up with the site

    async def _follow(self, first: anyio.Event) -> None:
        pause = _RETRY_SECONDS
        while True:
            try:
                wait, pause = _wait_after(await self._refresh()), _RETRY_SECONDS
            except SkillError as error:
                logger.warning("%s cannot be asked for its skills: %s", self._client.address.url, error)
                wait, pause = pause, min(2 * pause, _UNTOLD_SECONDS)
            except Exception:
                logger.exception("%s is asked again later", self._client.address.url)
                wait = _UNTOLD_SECONDS
            finally:
                first.set()
            await anyio.sleep(wait)

    async def _refresh(self) -> SiteIndex:
        async with self._refreshing:
            try:
                index = await self._client.index()
                _require_useful(index)
            except SkillError as error:
                self._problem = f"the site cannot be asked: {error}"
                self._publish()
                raise
            await self._take(index)
            return index

    async def _take(self, index: SiteIndex) -> None:
        """Fetch what is new, in batches that are published as they come, and forget what is gone."""
        items = sorted(index.site.entries, key=lambda item: item.name)
        names = {item.name for item in items}
        self._copies = {name: copy for name, copy in self._copies.items() if name in names}
        self._failed = {f"entry {n + 1}": finding.message for n, finding in enumerate(_remarks(index))}
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
        return copy is not None and copy.is_of(item)

    async def _complete(
        self, index: SiteIndex, item: AnyEntry, budget: UnpackBudget, limiter: anyio.CapacityLimiter
    ) -> None:
        uri = SkillUri.build(f"{self._prefix}{item.name}")
        try:
            async with limiter:
                copy = await complete(self._client, index, item, uri, budget)
            before = self._copies.get(item.name)
            others = sum(held.size for name, held in self._copies.items() if name != item.name)
            if others + copy.size > self._max_bytes:
                raise LimitError(f"the site's skills have more than {self._max_bytes} bytes together")
            if before is not None and before.entry == copy.entry:
                copy = replace(copy, entry=before.entry)  # Who follows changes goes by identity.
            self._copies[item.name] = copy
        except SkillError as error:
            logger.warning("%s is not taken from %s: %s", item.name, self._client.address.url, error)
            self._failed[item.name] = str(error)

    def _publish(self) -> None:
        """Publish what is held, if it differs from what is published."""
        entries = sorted((copy.entry for copy in self._copies.values()), key=lambda entry: entry.uri.text)
        place = self._client.address.url
        failed = list(self._failed.items())[:_MOST_REPORTED]
        reports = [_report(f"{place} {quoted(name)}", "upstream-entry", message) for name, message in failed]
        if self._problem:
            reports.append(_report(place, "upstream-failed", self._problem))
        snapshot = Snapshot.of(entries, reports=reports, revision=self.snapshot.revision + 1)
        if (snapshot.entries, snapshot.reports) != (self.snapshot.entries, self.snapshot.reports):
            self._served = dict(self._copies)
            self._replace_snapshot(snapshot)


def _require_useful(index: SiteIndex) -> None:
    for finding in index.findings:
        if finding.code in ("site-invalid", "site-form-unknown"):
            raise SkillError(finding.message)


def _remarks(index: SiteIndex) -> list[Finding]:
    return [finding for finding in index.findings if finding.code != "site-unverifiable"]


def _wait_after(index: SiteIndex) -> float:
    """Return when the site is asked again: as it says, within bounds, and rarely where it has no digests."""
    told = _UNTOLD_SECONDS if index.fresh_seconds is None else index.fresh_seconds
    is_verifiable = all(item.digest for item in index.site.entries)
    return max(_LEAST_SECONDS if is_verifiable else _UNTOLD_SECONDS, min(told, _MOST_SECONDS))


def _report(place: str, code: str, message: str) -> Report:
    return Report(place, (Finding(code, message[:_LONGEST_MESSAGE], file=""),))
