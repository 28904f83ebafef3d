"""`Upstream`: the skills of one server, as a source."""

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final

import anyio
import anyio.to_thread

from skillwire.core.archive import ArchiveFormat, UnpackBudget
from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.finding import Finding
from skillwire.core.manifest import MAX_TOTAL_SIZE, Coverage
from skillwire.core.uri import SkillUri, canonical_uri
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import NotFoundError, SkillError, SourceError
from skillwire.gateway.completing import Completer, Digests
from skillwire.gateway.naming import Prefix
from skillwire.host.attention import Attention, Attentions
from skillwire.host.calls.enumeration import Listing
from skillwire.host.connections.endpoints import ServerConfig
from skillwire.host.connections.opening import connection_for
from skillwire.host.failures import NotDeclaredError, UnavailableError
from skillwire.host.origin import SkillId
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.naming import full_reference, references_for
from skillwire.host.registry.served import fresh_seconds
from skillwire.host.state.cache import ContentCache
from skillwire.sources.background import running
from skillwire.sources.live import SnapshotSource
from skillwire.sources.snapshot import Report, Snapshot, nest, over_limits
from skillwire.wire.dialect import Dialect

FIRST_LISTING_SECONDS: Final = 10.0
"""How long a start waits for each upstream; slower ones come when they come."""

_RETRY_SECONDS = 5.0
_SLOWEST_RETRY_SECONDS = 300.0
_UNPROMISED_SECONDS = 60.0
"""How often content that nobody promises anything about is read again."""
_AT_ONCE = 4

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    """What is known of one skill: the upstream's entry, and the entry that is served."""

    original: SkillEntry
    whole: SkillEntry
    served: SkillEntry
    digests: Digests


@dataclass(slots=True)
class _State:
    """One listing's worth of skills, by the URI they are served at."""

    held: dict[str, _Held] = field(default_factory=dict[str, _Held])
    failed: dict[str, str] = field(default_factory=dict[str, str])


class Upstream(SnapshotSource):
    """All skills of one server, below a prefix, kept up to date while it is open.

    A server that is slow, broken or away costs nobody else anything: what was
    known of it stays, a report says what is wrong, and it is asked again.
    """

    def __init__(self, server: ServerConfig, cache: ContentCache, *, archives: bool = False) -> None:
        super().__init__(Snapshot.of(()))
        self._server = server
        self._cache = cache
        self._prefix = Prefix.of(server.label)
        self._attention = Attentions({server.label: server.skills})
        self._asked_again = anyio.Event()
        self._listed = anyio.Event()
        formats = frozenset(ArchiveFormat) if archives else frozenset[ArchiveFormat]()
        self.connection = connection_for(server, formats=formats, on_change=self._note_change)
        self._completer = Completer(self.connection, UnpackBudget())
        self._state = _State()
        self._problem = ""
        self._opened = AsyncExitStack()

    @property
    def prefix(self) -> Prefix:
        return self._prefix

    async def __aenter__(self) -> "Upstream":
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.connection)
            await stack.enter_async_context(running(self._follow))
            with anyio.move_on_after(FIRST_LISTING_SECONDS):
                await self._listed.wait()
            self._opened = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, trace)

    async def read_file(self, uri: str) -> bytes:
        """Return the bytes of a served file, from the copy at hand or from the server.

        Raises:
            NotFoundError: No served skill has such a file.
            SourceError: The server cannot be asked, or does not keep its promise.
        """
        entry, line = self.snapshot.locate(uri)
        held = self._state.held[entry.uri.text]
        if line is None:
            wanted = self._original_uri(held, canonical_uri(uri))
            own = held.original.uri
            return await self._read(own.published if wanted == own.text else wanted, MAX_TOTAL_SIZE)
        content = await anyio.to_thread.run_sync(self._cache.get, self._server.origin, line)
        if content is not None:
            return content
        original = (
            held.whole.manifest.find(self._original_uri(held, line.uri)) if held.whole.manifest else None
        )
        if held.digests == "computed" or original is None:
            # The copy was dropped to make room; whatever is read now must still be the same.
            contents = (await self._completer.complete(held.original)).contents
            await self._keep(held.served, contents)
            content = contents.get(self._original_uri(held, line.uri))
        else:
            content = await self._read(original.published, original.most_bytes)
        if content is None:
            raise NotFoundError(f"nothing is served at {uri} any more", uri=uri)
        line.verify(content)
        await anyio.to_thread.run_sync(self._cache.put, self._server.origin, line, content)
        return content

    def place_of(self, uri: SkillUri) -> str:
        """Say where a published skill comes from, for people who run the server."""
        return f"{uri.path} (from {self._server.label})"

    def provenance(self, uri: str, dialect: Dialect, digests: Digests) -> dict[str, JsonValue]:
        """Return what an entry says about where it comes from."""
        return {"server": self._server.label, "uri": uri, "dialect": dialect.value, "digests": digests}

    def _original_uri(self, held: _Held, served: str) -> str:
        """Return the upstream's canonical URI of a file of a skill that is served."""
        return held.original.uri.root + served[len(held.served.uri.root) :]

    async def _read(self, uri: str, most: int) -> bytes:
        try:
            return await self.connection.read_file(uri, max_bytes=most)
        except (NotFoundError, SourceError):
            raise
        except SkillError as error:
            raise SourceError(f"{self._server.label} does not give the file: {error}") from error

    # Keeping up with the server

    def _note_change(self) -> None:
        self._asked_again.set()

    async def _follow(self) -> None:
        pause = _RETRY_SECONDS
        while True:
            self._asked_again = anyio.Event()
            try:
                listing = await self.connection.list_skills()
                await self._take(listing)
                wait, pause = self._fresh_for(listing), _RETRY_SECONDS
            except NotDeclaredError:
                await self._publish(_State(), "the server serves no skills")
                wait = _SLOWEST_RETRY_SECONDS
            except SkillError as error:
                logger.warning("%s cannot be asked for its skills: %s", self._server.label, error)
                await self._publish(self._state, f"the server cannot be asked: {error}")
                wait = max(pause, _retry_in(error))
                pause = min(2 * pause, _SLOWEST_RETRY_SECONDS)
            except Exception:
                logger.exception("%s is asked again later", self._server.label)
                wait = _SLOWEST_RETRY_SECONDS
            finally:
                self._listed.set()
            with anyio.move_on_after(wait):
                await self._asked_again.wait()

    def _fresh_for(self, listing: Listing) -> float:
        fresh = fresh_seconds(listing.ttl_ms)
        if listing.dialect is Dialect.CORE or all(map(_is_promised, listing.entries)):
            return fresh
        return max(fresh, _UNPROMISED_SECONDS)

    async def _take(self, listing: Listing) -> None:
        shown = self._visible(listing)
        state = _State(
            failed={
                refused.uri or f"entry {refused.position + 1}": "; ".join(
                    finding.message for finding in refused.findings
                )
                for refused in listing.refused
            }
        )
        if listing.dialect is Dialect.CORE:
            state.held = await anyio.to_thread.run_sync(self._renamed, shown)
        else:
            await self._complete_all(shown, listing.dialect, state)
        problem = ""
        if listing.problem is not None:
            # What did not come this time may still be there.
            state.held = {**self._state.held, **state.held}
            problem = f"the listing came only in part: {listing.problem}"
        await self._publish(state, problem)

    def require_visible(self, entry: SkillEntry) -> None:
        """Check that the settings of this upstream do not hide a skill.

        Raises:
            NotFoundError: They do, and then it answers like one that is not there.
        """
        if self._attention.of(self._record(entry, full_reference)) is Attention.OFF:
            uri = self._prefix.served(entry.uri.text)
            raise NotFoundError(f"no skill is served at {uri}", uri=uri)

    def _visible(self, listing: Listing) -> list[SkillEntry]:
        """Return the entries that the settings of this upstream do not hide."""
        references = references_for(self._server.label, {entry.uri.text: entry for entry in listing.entries})
        shown = (self._record(entry, lambda _, uri: references[uri]) for entry in listing.entries)
        return [skill.entry for skill in shown if self._attention.of(skill) is not Attention.OFF]

    def _record(self, entry: SkillEntry, reference: Callable[[str, str], str]) -> KnownSkill:
        origin, uri = self._server.origin, entry.uri.text
        return KnownSkill(SkillId(origin, uri), reference(origin.label, uri), entry)

    def _renamed(self, entries: list[SkillEntry]) -> dict[str, _Held]:
        """Rename entries of the released extension; those that did not change keep their identity."""
        found: dict[str, _Held] = {}
        for entry in entries:
            held = self._state.held.get(self._prefix.served(entry.uri.text))
            if held is None or held.original != entry:
                said = self.provenance(entry.uri.text, Dialect.CORE, "upstream")
                held = _Held(entry, entry, self._prefix.entry(entry, said), "upstream")
            found[held.served.uri.text] = held
        return found

    async def _complete_all(self, entries: list[SkillEntry], dialect: Dialect, state: _State) -> None:
        limiter = anyio.CapacityLimiter(_AT_ONCE)
        async with anyio.create_task_group() as group:
            for entry in entries:
                group.start_soon(partial(self._complete, entry, dialect, state, limiter))

    async def _complete(
        self, entry: SkillEntry, dialect: Dialect, state: _State, limiter: anyio.CapacityLimiter
    ) -> None:
        uri = self._prefix.served(entry.uri.text)
        held = self._state.held.get(uri)
        if held is not None and held.original == entry and _is_promised(entry):
            state.held[uri] = held
            return
        try:
            async with limiter:
                completed = await self._completer.complete(entry)
        except SkillError as error:
            if held is not None and isinstance(error, SourceError):
                logger.info("%s is served as it was: %s", uri, error)
                state.held[uri] = held
            else:
                logger.warning("%s is not served: %s", uri, error)
                state.failed[entry.uri.text] = str(error)
            return
        said = self.provenance(entry.uri.text, dialect, completed.digests)
        served = self._prefix.entry(completed.entry, said)
        await self._keep(served, completed.contents)
        if held is not None and held.served == served:
            served = held.served  # Who follows changes goes by identity.
        state.held[uri] = _Held(entry, completed.entry, served, completed.digests)

    async def _keep(self, served: SkillEntry, contents: Mapping[str, bytes]) -> None:
        """Keep the copies that digests were computed from; what finds no room is read again when needed."""
        assert served.manifest is not None
        for uri, content in contents.items():
            line = served.manifest.find(self._prefix.served(uri))
            if line is not None:
                await anyio.to_thread.run_sync(self._cache.put, self._server.origin, line, content)

    async def _publish(self, state: _State, problem: str) -> None:
        try:
            entries = nest(held.served for held in state.held.values())
        except SkillError as error:
            # A dynamic skill lies inside one with digests, and cannot be served there.
            problem, entries = (
                f"{problem}; {error}".lstrip("; "),
                [held.served for held in state.held.values() if not held.served.is_dynamic],
            )
        refused = over_limits(entries)
        reports = [
            Report(
                f"{self._server.label}: {quoted(uri)}", (Finding("upstream-entry", message[:500], file=""),)
            )
            for uri, message in state.failed.items()
        ]
        reports += [
            Report(entry.uri.path, refused[entry.uri.text]) for entry in entries if entry.uri.text in refused
        ]
        if problem:
            reports.append(Report(self._server.label, (Finding("upstream-failed", problem[:500], file=""),)))
        served = [entry for entry in entries if entry.uri.text not in refused]
        self._state = state
        unchanged = [entry.uri.text for entry in served] == [*self.snapshot.by_uri] and all(
            entry == self.snapshot.by_uri[entry.uri.text] for entry in served
        )
        if not unchanged or problem != self._problem or tuple(reports) != self.snapshot.reports:
            self._problem = problem
            self._replace_snapshot(Snapshot.of(served, reports=reports, revision=self.snapshot.revision + 1))


def _is_promised(entry: SkillEntry) -> bool:
    """Tell whether an entry that did not change means files that did not change."""
    return entry.coverage in (Coverage.FILES, Coverage.ARCHIVE)


def _retry_in(error: SkillError) -> float:
    wait = error.retry_in if isinstance(error, UnavailableError) else 0.0
    return wait if wait is not None and math.isfinite(wait) else 0.0
