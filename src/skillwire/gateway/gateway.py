"""`Upstream`: the skills of one server, as a source."""

import logging
import math
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

import anyio
import anyio.to_thread
import platformdirs

from skillwire.core import (
    DEFAULT_SCHEME,
    MAX_TOTAL_SIZE,
    ArchiveFormat,
    Coverage,
    Dialect,
    Finding,
    InvalidUriError,
    JsonValue,
    Manifest,
    ManifestFile,
    NotFoundError,
    SkillEntry,
    SkillError,
    SkillUri,
    SourceError,
    canonical_uri,
    quoted,
    visible,
)
from skillwire.core.archive_tree import UnpackBudget
from skillwire.gateway.complete import Completer, Digests
from skillwire.host import (
    ContentCache,
    KnownSkill,
    Listing,
    NotDeclaredError,
    PeerError,
    ServerConfig,
    ShowRule,
    ShowRules,
    SkillId,
    UnavailableError,
    connection_for,
    fresh_seconds,
    full_reference,
    read_servers,
    references_for,
)
from skillwire.sources.background import run_in_background
from skillwire.sources.snapshot import (
    Report,
    Snapshot,
    SnapshotSource,
    Source,
    complete_nested_manifests,
    over_limits,
    possible_skills,
)

# URIs of an upstream's skills: the original ones below a prefix that this server chooses.


PROVENANCE = "skillwire/upstream"
"""The key in `_meta` of an entry's provenance."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first segment of everything that comes from one upstream."""

    text: str

    @classmethod
    def of(cls, label: str) -> "Prefix":
        """Build the prefix of the server with this label, which may be in any script."""
        return cls(SkillUri.build(label.casefold()).root.removeprefix(f"{DEFAULT_SCHEME}://"))

    def served(self, uri: str) -> str:
        """Return the URI at which the upstream's canonical `uri` is served."""
        scheme, _, rest = uri.partition("://")
        inside = rest if scheme == DEFAULT_SCHEME else f"{scheme}/{rest}"
        return f"{DEFAULT_SCHEME}://{self.text}/{inside}"

    def upstream(self, uri: str) -> str:
        """Return the upstream's `skill://` URI for a URI that is served here.

        Raises:
            NotFoundError: It is not below this prefix.
        """
        start = f"{DEFAULT_SCHEME}://{self.text}/"
        if not uri.startswith(start):
            raise NotFoundError(f"nothing is served at {uri}", uri=uri)
        return f"{DEFAULT_SCHEME}://{uri[len(start) :]}"

    def manifest(self, manifest: Manifest) -> Manifest:
        """Return a manifest with the URIs at which the files are served; digests and sizes are unchanged."""
        files = [replace(file, uri=self.served(file.uri), spelling="") for file in manifest.files]
        return Manifest.of(files)

    def entry(self, entry: SkillEntry, provenance: dict[str, JsonValue]) -> SkillEntry:
        """Return an entry as it is served: with the prefix and its provenance, otherwise unchanged."""
        original = entry.extra.get("_meta")
        meta: dict[str, JsonValue] = {
            **(original if isinstance(original, dict) else {}),
            PROVENANCE: provenance,
        }
        return SkillEntry(
            SkillUri(self.served(entry.uri.text)),
            entry.frontmatter,
            None if entry.manifest is None else self.manifest(entry.manifest),
            {**entry.extra, "_meta": meta},
            tuple(self.served(uri) for uri in entry.dynamic_files),
        )


# Upstream errors as clients of a gateway see them: label, URI and code, without the upstream's text.


MAX_LOGGED: Final = 500
"""How many characters of an upstream's text are logged."""

# JSON-RPC reserves this range; any other number is chosen by the upstream and could carry information.
_RESERVED_CODES: Final = range(-32768, -31999)

logger = logging.getLogger(__name__)


@contextmanager
def upstream_errors(label: str, uri: str) -> Generator[None]:
    """Replace the text of errors while `uri`, as served here, is requested from the upstream `label`.

    Raises:
        NotFoundError: The upstream serves nothing there.
        SourceError: Anything else went wrong; the log has the details.
    """
    try:
        yield
    except NotFoundError as error:
        logger.info("%s serves nothing at %s: %s", label, uri, log_text(error))
        raise NotFoundError(f"nothing is served at {uri}", uri=uri) from None
    except SkillError as error:
        logger.warning("%s could not serve %s: %s", label, uri, log_text(error))
        raise SourceError(f"the upstream server {label} could not serve {uri} ({code_of(error)})") from None


def code_of(error: SkillError) -> str:
    """Return the stable name of an error, and its JSON-RPC code if there is one."""
    if isinstance(error, PeerError) and error.peer_code in _RESERVED_CODES:
        return f"{error.refusal} {error.peer_code}"
    return error.refusal


def log_text(error: SkillError) -> str:
    """Return the text of an error for a log: one line, shortened, without control characters."""
    return visible(str(error), most=MAX_LOGGED)


FIRST_LISTING_SECONDS: Final = 5.0
"""How long startup waits for all upstreams together; skills of slower ones are added when they answer."""

_RETRY_SECONDS = 5.0
_MAX_RETRY_SECONDS = 300.0
_UNVERIFIABLE_SECONDS = 60.0
"""How often content without digests is read again."""
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class _UpstreamSkill:
    """One skill: the upstream's entry, the completed one, and the one that is served."""

    original: SkillEntry
    whole: SkillEntry
    served: SkillEntry
    digests: Digests


@dataclass(slots=True)
class _State:
    """The skills of one listing, by the URI they are served at."""

    skills: dict[str, _UpstreamSkill] = field(default_factory=dict[str, _UpstreamSkill])
    failed: dict[str, str] = field(default_factory=dict[str, str])


class Upstream(SnapshotSource):
    """All skills of one server, below a prefix, kept up to date while it is open.

    A server that is slow or unavailable does not affect others: its skills
    known so far stay, a report describes the problem, and it is polled again.
    """

    def __init__(self, server: ServerConfig, cache: ContentCache, *, archives: bool = False) -> None:
        super().__init__(Snapshot.of(()))
        self._server = server
        self._cache = cache
        self._prefix = Prefix.of(server.label)
        self._show_rules = ShowRules({server.label: server.skills})
        self._list_changed = anyio.Event()
        self._listed = anyio.Event()
        formats = frozenset(ArchiveFormat) if archives else frozenset[ArchiveFormat]()
        self.connection = connection_for(server, formats=formats, on_change=self._note_change)
        self._completer = Completer(self.connection, UnpackBudget())
        self._state = _State()
        self._problem = ""
        self._opened = AsyncExitStack()

    @property
    def label(self) -> str:
        return self._server.label

    @property
    def prefix(self) -> Prefix:
        return self._prefix

    async def __aenter__(self) -> "Upstream":
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.connection)
            await stack.enter_async_context(run_in_background(self._poll))
            with anyio.move_on_after(FIRST_LISTING_SECONDS):
                await self._listed.wait()
            self._opened = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, trace)

    async def read_file(self, uri: str) -> bytes:
        """Return the bytes of a served file, from the cache or from the server.

        Raises:
            NotFoundError: No served skill has such a file.
            SourceError: The server cannot be reached, or the bytes do not match their digest.
        """
        entry, line = self.snapshot.locate(uri)
        with upstream_errors(self._server.label, canonical_uri(uri)):
            return await self._content(uri, self._state.skills[entry.uri.text], line)

    async def _content(self, uri: str, known: _UpstreamSkill, line: ManifestFile | None) -> bytes:
        if line is None:
            wanted = self._original_uri(known, canonical_uri(uri))
            own = known.original.uri
            published = own.published if wanted == own.text else wanted
            return await self.connection.read_file(published, max_bytes=MAX_TOTAL_SIZE)
        content = await anyio.to_thread.run_sync(self._cache.get, self._server.origin, line)
        if content is not None:
            return content
        original = (
            known.whole.manifest.find(self._original_uri(known, line.uri)) if known.whole.manifest else None
        )
        if known.digests == "computed" or original is None:
            # The copy was evicted from the cache; what is read now must still match.
            contents = (await self._completer.complete(known.original)).contents
            await self._store(known.served, contents)
            content = contents.get(self._original_uri(known, line.uri))
        else:
            content = await self.connection.read_file(original.published, max_bytes=original.max_bytes)
        if content is None:
            raise NotFoundError(f"nothing is served at {uri} any more", uri=uri)
        line.verify(content)
        await anyio.to_thread.run_sync(self._cache.put, self._server.origin, line, content)
        return content

    def place_of(self, uri: SkillUri) -> str:
        """Return where a published skill comes from, for the operator of the server."""
        return f"{uri.path} (from {self._server.label})"

    def provenance(self, uri: str, dialect: Dialect, digests: Digests) -> dict[str, JsonValue]:
        """Return the provenance that an entry states in `_meta`."""
        return {"server": self._server.label, "uri": uri, "dialect": dialect.value, "digests": digests}

    def _original_uri(self, known: _UpstreamSkill, served: str) -> str:
        """Return the upstream's canonical URI of a file of a skill that is served."""
        return known.original.uri.root + served[len(known.served.uri.root) :]

    # Polling the server

    def _note_change(self) -> None:
        self._list_changed.set()

    async def _poll(self) -> None:
        pause = _RETRY_SECONDS
        while True:
            self._list_changed = anyio.Event()
            try:
                listing = await self.connection.list_skills()
                await self._apply(listing)
                wait, pause = self._fresh_for(listing), _RETRY_SECONDS
            except NotDeclaredError:
                await self._publish(_State(), "the server serves no skills")
                wait = _MAX_RETRY_SECONDS
            except SkillError as error:
                logger.warning("%s: cannot list skills: %s", self._server.label, log_text(error))
                await self._publish(self._state, f"the server cannot be reached ({code_of(error)})")
                wait = max(pause, _retry_in(error))
                pause = min(2 * pause, _MAX_RETRY_SECONDS)
            except Exception:
                logger.exception("%s: unexpected error; retrying later", self._server.label)
                wait = _MAX_RETRY_SECONDS
            finally:
                self._listed.set()
            with anyio.move_on_after(wait):
                await self._list_changed.wait()

    def _fresh_for(self, listing: Listing) -> float:
        fresh = fresh_seconds(listing.ttl_ms)
        if listing.dialect is Dialect.CORE or all(map(_covers_files, listing.entries)):
            return fresh
        return max(fresh, _UNVERIFIABLE_SECONDS)

    async def _apply(self, listing: Listing) -> None:
        shown = self._visible(listing)
        state = _State(failed=self._unusable(listing))
        if listing.dialect is Dialect.CORE:
            state.skills = await anyio.to_thread.run_sync(self._renamed, shown)
        else:
            await self._complete_all(shown, listing.dialect, state)
        problem = ""
        if listing.problem is not None:
            # Skills missing from an incomplete listing may still exist.
            state.skills = {**self._state.skills, **state.skills}
            logger.warning("%s: the listing is incomplete: %s", self._server.label, log_text(listing.problem))
            problem = f"the listing is incomplete ({code_of(listing.problem)})"
        await self._publish(state, problem)

    def _unusable(self, listing: Listing) -> dict[str, str]:
        """Return the finding codes of each refused entry, by its URI; the log has the messages."""
        failed: dict[str, str] = {}
        for refused in listing.refused:
            subject = refused.uri or f"entry {refused.position + 1}"
            failed[subject] = ", ".join(sorted({finding.code for finding in refused.findings}))
            for finding in refused.findings:
                message = visible(finding.message, most=MAX_LOGGED)
                logger.info("%s: %s is not served: %s", self._server.label, quoted(subject), message)
        return failed

    def require_visible(self, entry: SkillEntry) -> None:
        """Check that the settings of this upstream do not hide a skill.

        Raises:
            NotFoundError: They do; the error is the same as for a skill that does not exist.
        """
        if self._show_rules.of(self._record(entry, full_reference)) is ShowRule.OFF:
            uri = self._prefix.served(entry.uri.text)
            raise NotFoundError(f"no skill is served at {uri}", uri=uri)

    def _visible(self, listing: Listing) -> list[SkillEntry]:
        """Return the entries that the settings of this upstream do not hide."""
        references = references_for(self._server.label, {entry.uri.text: entry for entry in listing.entries})
        shown = (self._record(entry, lambda _, uri: references[uri]) for entry in listing.entries)
        return [skill.entry for skill in shown if self._show_rules.of(skill) is not ShowRule.OFF]

    def _record(self, entry: SkillEntry, reference: Callable[[str, str], str]) -> KnownSkill:
        origin, uri = self._server.origin, entry.uri.text
        return KnownSkill(SkillId(origin, uri), reference(origin.label, uri), entry)

    def _renamed(self, entries: list[SkillEntry]) -> dict[str, _UpstreamSkill]:
        """Add the prefix to entries of the released extension; unchanged ones stay the same objects."""
        found: dict[str, _UpstreamSkill] = {}
        for entry in entries:
            known = self._state.skills.get(self._prefix.served(entry.uri.text))
            if known is None or known.original != entry:
                provenance = self.provenance(entry.uri.text, Dialect.CORE, "upstream")
                known = _UpstreamSkill(entry, entry, self._prefix.entry(entry, provenance), "upstream")
            found[known.served.uri.text] = known
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
        known = self._state.skills.get(uri)
        if known is not None and known.original == entry and _covers_files(entry):
            state.skills[uri] = known
            return
        try:
            async with limiter:
                completed = await self._completer.complete(entry)
        except SkillError as error:
            if known is not None and isinstance(error, SourceError):
                logger.info("%s: the previous version stays in use: %s", uri, log_text(error))
                state.skills[uri] = known
            else:
                logger.warning("%s is not served: %s", uri, log_text(error))
                state.failed[entry.uri.text] = code_of(error)
            return
        provenance = self.provenance(entry.uri.text, dialect, completed.digests)
        served = self._prefix.entry(completed.entry, provenance)
        await self._store(served, completed.contents)
        if known is not None and known.served == served:
            served = known.served  # Change detection compares identity.
        state.skills[uri] = _UpstreamSkill(entry, completed.entry, served, completed.digests)

    async def _store(self, served: SkillEntry, contents: Mapping[str, bytes]) -> None:
        """Cache the files that digests were computed from; those that do not fit are read again later."""
        assert served.manifest is not None
        for uri, content in contents.items():
            line = served.manifest.find(self._prefix.served(uri))
            if line is not None:
                await anyio.to_thread.run_sync(self._cache.put, self._server.origin, line, content)

    async def _publish(self, state: _State, problem: str) -> None:
        try:
            entries = complete_nested_manifests(known.served for known in state.skills.values())
        except SkillError as error:
            # A dynamic skill lies inside one with digests, and cannot be served there.
            problem, entries = (
                f"{problem}; {code_of(error)}".lstrip("; "),
                [known.served for known in state.skills.values() if not known.served.is_dynamic],
            )
        refused = over_limits(entries)
        reports = [
            Report(
                f"{self._server.label}: {quoted(uri)}",
                (Finding("upstream-entry", f"cannot be served ({codes})", file=""),),
            )
            for uri, codes in state.failed.items()
        ]
        reports += [
            Report(entry.uri.path, refused[entry.uri.text]) for entry in entries if entry.uri.text in refused
        ]
        if problem:
            reports.append(Report(self._server.label, (Finding("upstream-failed", problem, file=""),)))
        served = [entry for entry in entries if entry.uri.text not in refused]
        self._state = state
        unchanged = [entry.uri.text for entry in served] == [*self.snapshot.by_uri] and all(
            entry == self.snapshot.by_uri[entry.uri.text] for entry in served
        )
        if not unchanged or problem != self._problem or tuple(reports) != self.snapshot.reports:
            self._problem = problem
            self._replace_snapshot(Snapshot.of(served, reports=reports, revision=self.snapshot.revision + 1))


def _covers_files(entry: SkillEntry) -> bool:
    """Return whether an unchanged entry implies unchanged files."""
    return entry.coverage in (Coverage.FILES, Coverage.ARCHIVE)


def _retry_in(error: SkillError) -> float:
    wait = error.retry_in if isinstance(error, UnavailableError) else 0.0
    return wait if wait is not None and math.isfinite(wait) else 0.0


# Skills that an upstream serves but does not list: requested one by one, and passed on.


class UnlistedSource:
    """The unlisted skills of an upstream, in the released extension."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        """Yield nothing: listed skills come from `Upstream`."""
        for entry in ():
            yield entry

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        upstream = self._upstream
        wanted = upstream.prefix.upstream(uri.text)
        if upstream.connection.dialect not in (None, Dialect.CORE):
            raise NotFoundError(f"no skill is served at {uri}", uri=uri.text)
        with upstream_errors(upstream.label, uri.text):
            try:
                entry = await upstream.connection.get_skill(SkillUri.parse(wanted))
            except (InvalidUriError, NotDeclaredError) as error:
                raise NotFoundError(f"no skill is served at {uri}", uri=uri.text) from error
        upstream.require_visible(entry)
        provenance = upstream.provenance(entry.uri.text, Dialect.CORE, "upstream")
        return upstream.prefix.entry(entry, provenance)

    async def read_file(self, uri: str) -> bytes:
        wanted = self._upstream.prefix.upstream(canonical_uri(uri))
        for skill in possible_skills(wanted.rpartition("/")[0]):
            try:
                entry = await self.get_skill(SkillUri(self._upstream.prefix.served(skill.text)))
            except NotFoundError:
                continue
            served = self._upstream.prefix.served(wanted)
            line = None if entry.manifest is None else entry.manifest.require(served)
            most = MAX_TOTAL_SIZE if line is None else line.max_bytes
            with upstream_errors(self._upstream.label, served):
                content = await self._upstream.connection.read_file(wanted, max_bytes=most)
                if line is not None:
                    line.verify(content)
            return content
        raise NotFoundError(f"nothing is served at {uri}", uri=uri)


@dataclass(frozen=True, slots=True)
class Gateway:
    """The servers of a configuration file such as `mcp.json`, served as one.

    It can be pickled; `sources` does not open anything. With
    `archives`, skills that come only as archives are unpacked and served.
    `cache` is where copies are kept.
    """

    config: Path
    archives: bool = False
    cache: Path | None = None

    def servers(self) -> tuple[ServerConfig, ...]:
        """Return the upstreams that can be used; problems with the others are logged.

        Raises:
            ConfigError: The file cannot be read, or is not such a file.
            SkillError: None of its servers can be used.
        """
        found = read_servers(self.config)
        for refusal in found.refused:
            logger.warning("%s is not served: %s", refusal.subject, refusal.detail or refusal.sentence)
        servers = tuple(server for server in found.servers if server.is_enabled and server.skills.is_on)
        if not servers:
            raise SkillError(
                f"{self.config.name} has no upstream server that can be used",
                fix="add one to its `mcpServers`, or serve folders instead",
            )
        return servers

    def sources(self) -> Sequence[Source]:
        """Return the sources to serve, two for each upstream: listed skills and unlisted ones.

        Raises:
            SkillError: There is nothing to serve.
        """
        place = self.cache or Path(platformdirs.user_cache_dir("skillwire")) / "gateway"
        cache = ContentCache(place)
        found: list[Source] = []
        for server in self.servers():
            upstream = Upstream(server, cache, archives=self.archives)
            found += [upstream, UnlistedSource(upstream)]
        return found
