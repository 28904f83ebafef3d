"""`Registry`: all skills of all origins, from listings alone.

No skill files are read for it. Servers are listed concurrently, each answer is
used as soon as it arrives, and a server that is slow, broken or unavailable
does not affect the others. There is no polling: whether a listing is still
fresh is checked when it is needed.
"""

import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final

import anyio
import anyio.abc
import anyio.to_thread

from skillwire.core import (
    SKILL_FILE,
    Dialect,
    InvalidUriError,
    NotFoundError,
    SkillEntry,
    SkillError,
    SkillUri,
    SourceError,
    gc_paused,
    quoted,
    visible,
)
from skillwire.host.calls import SharedCall, SharedCalls
from skillwire.host.model import (
    LOCAL,
    AmbiguousReferenceError,
    ConfigError,
    HiddenArchiveError,
    KnownSkill,
    Lookalikes,
    NotDeclaredError,
    Origin,
    Refusal,
    RegistryView,
    ServerStatus,
    SkillId,
    UnknownReferenceError,
    match,
    name_of,
    uri_in,
    view_of,
)
from skillwire.host.registry.local import LocalScan, LocalSkills
from skillwire.host.registry.servers import ListingHistory, RemoteServer, ServerRecord
from skillwire.sources.background import run_in_background

# `ViewBuilder`: builds the registry's view from all origins.


MANY_SKILLS = 1000
"""The number of skills from which on pausing the garbage collector pays off."""


class ViewBuilder:
    """Builds views; keeps the history of local skills and the similar names from one to the next."""

    def __init__(self) -> None:
        self.local_history = ListingHistory()
        self._lookalikes = Lookalikes()

    def build(
        self,
        revision: int,
        scan: LocalScan,
        origins: Collection[ServerRecord],
        servers: tuple[ServerStatus, ...],
    ) -> RegistryView:
        """Return a view of the local skills and those of all servers."""
        skills = [skill for record in origins for skill in record.skills]
        with gc_paused() if len(skills) > MANY_SKILLS else nullcontext():
            return view_of(
                revision,
                [*scan.skills, *skills],
                [*scan.hidden, *(refusal for record in origins for refusal in record.hidden)],
                servers,
                templates=[template for record in origins for template in record.templates],
                changes=self._changes(origins),
                remarks=(remark for record in origins for remark in record.remarks),
                lookalikes=self._lookalikes,
            )

    def _changes(self, origins: Collection[ServerRecord]) -> Iterator[Refusal]:
        """Yield notices about removed and renamed skills, local ones first."""
        yield from self.local_history.notices()
        for record in origins:
            yield from record.history.notices()


# Skill URIs in a server's instructions: hints, to be confirmed with the server before use.


MAX_URIS: Final = 20
MAX_INSPECTED: Final = 65_536

_ENDING = f"/{SKILL_FILE}"
# Characters that no URI contains, so they separate it from the surrounding text.
_GAP = re.compile(r"[\s<>\"`{}|\\^]+")
_SCHEME_END = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*\Z")
_LONGEST_SCHEME = 64
# What may follow a URI: the end, or punctuation that does not continue a file name.
_AFTER_URI = re.compile(r"[.:!?]*(?:[,;)\]'…]|[*_]++(?![A-Za-z0-9])|\Z)")


def uris_in(text: str) -> tuple[str, ...]:
    """Return the URIs of `SKILL.md` files that a text mentions: canonical, each once, at most 20.

    The text is untrusted: only its first 64 KiB are parsed, and each character
    is read a limited number of times. Invalid skill URIs are skipped.
    """
    found: dict[str, None] = {}
    for word in _GAP.split(text[:MAX_INSPECTED]):
        start = 0
        while (end := _end_of_uri(word, start)) is not None:
            uri = _uri_before(word, start, end)
            if uri is not None:
                found[uri] = None
                if len(found) == MAX_URIS:
                    return tuple(found)
            start = end
    return tuple(found)


def _end_of_uri(word: str, start: int) -> int | None:
    """Return the position after the next `/SKILL.md` with which a URI may end."""
    while (ending := word.find(_ENDING, start)) >= 0:
        start = ending + len(_ENDING)
        if _AFTER_URI.match(word, start):
            return start
    return None


def _uri_before(word: str, start: int, end: int) -> str | None:
    """Return the URI that ends at `end` and starts at or after `start`."""
    middle = word.rfind("://", start, end)
    if middle < 0:
        return None
    scheme = _SCHEME_END.search(word[max(start, middle - _LONGEST_SCHEME) : middle])
    if scheme is None:
        return None
    try:
        return SkillUri.parse(scheme.group() + word[middle:end]).text
    except InvalidUriError:
        return None


logger = logging.getLogger(__name__)

CONFIRM_SECONDS: Final = 15.0
"""The total time for confirming the URIs in a server's instructions."""
_ENTRY_BRINGS_CONTENT: Final = frozenset({Dialect.PRIMITIVE, Dialect.EXEC, Dialect.PROMPT})
# In these dialects, getting one skill returns its text, which is not approved yet; listing does not.


class Registry:
    """All skills that servers and local folders have, each under one reference.

    It is an async context manager that owns the background tasks; entering it
    sends no requests. `on_entries` is called with the entries of a server
    before they appear in the view. `offline` supplies the approved and cached
    skills of a server that is unavailable and was never listed.
    `top_level_only` hides skills of servers that are inside listed ones.

    Raises:
        ConfigError: Two servers have the same label, or one has the reserved label `local`.
    """

    def __init__(
        self,
        remotes: Sequence[RemoteServer],
        local: LocalSkills | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_entries: Callable[[Origin, Sequence[SkillEntry]], None] | None = None,
        offline: Callable[[Origin], Awaitable[Sequence[KnownSkill]]] | None = None,
        top_level_only: bool = False,
    ) -> None:
        self._remotes = {remote.origin.label: remote for remote in remotes}
        if len(self._remotes) < len(remotes):
            raise ConfigError("two servers have the same label", fix="give each server a label of its own")
        if LOCAL in self._remotes:
            raise ConfigError(f"the label {LOCAL} is reserved", fix="give the server another label")
        self._records = {
            label: ServerRecord(remote.origin, top_level_only=top_level_only)
            for label, remote in self._remotes.items()
        }
        self._view_builder = ViewBuilder()
        self._local = local
        self._scan = LocalScan()
        self._clock = clock
        self._on_entries = on_entries
        self._offline = offline
        self._revision = 1
        self._view = RegistryView()
        self._calls = SharedCalls()
        self._warned: set[str] = set()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> "Registry":
        ready = anyio.Event()
        await self._opened.enter_async_context(run_in_background(partial(self._own_tasks, ready)))
        await ready.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, trace)

    @property
    def view(self) -> RegistryView:
        """The current view; no requests are sent."""
        now = self._clock()
        servers = tuple(
            record.status(self._remotes[label].epoch, now) for label, record in self._records.items()
        )
        if self._view.revision != self._revision:
            self._view = self._view_builder.build(self._revision, self._scan, self._records.values(), servers)
        elif self._view.servers != servers:
            self._view = replace(self._view, servers=servers)
        return self._view

    async def refresh(
        self,
        labels: Collection[str] | None = None,
        *,
        force: bool = False,
        at_once: bool = False,
        wait_seconds: float | None = None,
    ) -> RegistryView:
        """List the servers that are due, all or those with `labels` (`local` for the folders), concurrently.

        Local folders are scanned at every call. `force` includes servers whose
        listing is still fresh. `wait_seconds` limits only the waiting: slower
        servers continue in the background. A request that is already running
        is not repeated. Failures are reported in the view, not raised.

        Raises:
            UnknownReferenceError: There is no server with such a label.
        """
        wanted = sorted({LOCAL, *self._remotes} if labels is None else set(labels))
        for label in wanted:
            if label != LOCAL:
                self._require(label)
        started: list[anyio.Event] = []
        for label in wanted:
            if label == LOCAL:
                started.append(self._start_scan())
            elif force or not self._is_fresh(label):
                started.append(self._start(label, partial(self._list_server, label, at_once)))
        with anyio.move_on_after(wait_seconds) as waiting:
            for finished in started:
                await finished.wait()
        if waiting.cancelled_caught and wait_seconds:
            self._warn_of_slow_servers(wait_seconds)
        return self.view

    def _warn_of_slow_servers(self, seconds: float) -> None:
        """Log, once each, the servers that have not answered."""
        for label, record in self._records.items():
            if self._calls.get(label) is not None and record.was_never_listed and label not in self._warned:
                self._warned.add(label)
                logger.warning("%s has not answered in %g seconds; its skills are missing", label, seconds)

    def invalidate(self, label: str) -> None:
        """Mark a server's listing as outdated; it is listed again when needed.

        Raises:
            UnknownReferenceError: There is no server with this label.
        """
        self._require(label).signals += 1

    async def resolve(self, reference: str) -> KnownSkill:
        """Return the skill with this reference, with its current entry.

        Requests go only to the server whose label the reference starts with.
        If its listing is outdated, a known skill is fetched alone, and
        otherwise all are listed. A URI that is not listed is looked up with
        `skills/get`.

        Raises:
            AmbiguousReferenceError: Several skills of the server match.
            UnknownReferenceError: There is no such skill.
            NotFoundError: The server serves no skill at this URI.
            SkillError: The request for the URI failed, or its answer is invalid.
        """
        label, slash, _ = reference.partition("/")
        if not slash:
            await self._start_scan().wait()
            return match(reference, self.view.skills)
        record = self._records.get(label)
        if record is None:
            return match(reference, ())
        now = self._clock()
        if not record.is_fresh(self._remotes[label].epoch, now) and not record.failed_recently(now):
            known = await self._renewed(record, reference)
            if known is not None:
                return known
            await self._start(label, partial(self._list_server, label, False)).wait()
        try:
            known = record.by_reference(reference) or match(reference, record.skills)
            if known.dialect is Dialect.LIST_MARCH and known.entry.is_dynamic:
                # Its listing of plain resources was too long to include the digests.
                return await self._renewed(record, known.reference) or known
            return known
        except AmbiguousReferenceError:
            raise
        except UnknownReferenceError as error:
            uri = uri_in(reference)
            explained = self._explained(error, label, uri)
            if uri is None or isinstance(explained, HiddenArchiveError):
                raise explained from None
        try:
            entry = await self._remotes[label].get_skill(uri)
        except SkillError as error:
            error.server = label
            raise
        return self._store(record, entry)

    def known(self, skill: SkillId) -> KnownSkill | None:
        """Return the current record of a skill; no requests are sent."""
        record = self._records.get(skill.origin.label) if skill.origin.is_remote else None
        if record is not None:
            return record.find(skill.uri) if record.origin == skill.origin else None
        return next((found for found in self._scan.skills if found.id == skill), None)

    async def renew(self, skill: SkillId) -> KnownSkill:
        """Get the current entry of a skill from its origin, and return the new record.

        Raises:
            NotFoundError: It no longer exists, and was removed from the registry.
            SkillError: The request failed, or its answer is invalid.
        """
        if not skill.origin.is_remote:
            return await self._renew_local(skill)
        remote = self._remotes.get(skill.origin.label)
        if remote is None or remote.origin != skill.origin:
            raise _not_found(skill)
        record = self._records[skill.origin.label]
        known = record.find(skill.uri)
        try:
            entry = await remote.get_skill(SkillUri.parse(skill.uri) if known is None else known.entry.uri)
        except NotFoundError:
            record.drop(skill.uri)
            self._revision += 1
            raise
        return self._store(record, entry)

    async def _renewed(self, record: ServerRecord, reference: str) -> KnownSkill | None:
        """Get one listed skill instead of listing all; None when that is not possible."""
        known = record.by_reference(reference)
        if known is None or not known.is_listed or known.dialect in _ENTRY_BRINGS_CONTENT:
            return None
        remote = self._remotes[record.origin.label]
        if record.was_renewed_recently(known.id.uri, remote.epoch, self._clock()):
            return known
        try:
            entry = await remote.get_skill(known.entry.uri)
        except SkillError as error:
            logger.debug("%s could not be renewed alone; listing all skills: %s", reference, error)
            return None
        return self._store(record, entry)

    async def _own_tasks(self, ready: anyio.Event) -> None:
        try:
            async with anyio.create_task_group() as self._tasks:
                ready.set()
                await anyio.sleep_forever()
        finally:
            self._tasks = None

    def _start(self, key: str | None, work: Callable[[], Coroutine[Any, Any, None]]) -> anyio.Event:
        """Start a task, unless it is already running; the event is set when it ends."""
        if self._tasks is None:
            raise SourceError("the registry is not open; use it with `async with`")
        return self._calls.start(self._tasks, key, lambda call: self._run(call, key, work)).done

    async def _run(
        self, call: SharedCall, key: str | None, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        with call.running():
            try:
                await work()
            except Exception:
                logger.exception("unexpected failure while listing %s", key or "the local folders")

    async def _list_server(self, label: str, at_once: bool) -> None:
        """List one server's skills, and confirm those that its instructions mention."""
        remote, record = self._remotes[label], self._records[label]
        try:
            await remote.connect(at_once=at_once)
            asked = (remote.epoch, record.signals)
            record.begin_listing()
            listing = record.reconciled(await remote.list_skills())
            # Entries that may have digests are reported when they are fetched one by one.
            is_short = listing.dialect is not Dialect.LIST_MARCH
            final = [entry for entry in listing.entries if is_short or not entry.is_dynamic]
            self._report_entries(record.origin, final)
            problem = None if listing.problem is None else Refusal.of(listing.problem, label)
            with gc_paused() if len(listing.entries) > MANY_SKILLS else nullcontext():
                record.apply_listing(listing, problem, asked=asked, now=self._clock())
        except NotDeclaredError:
            record.mark_without_skills(asked=(remote.epoch, record.signals), now=self._clock())
            return
        except SkillError as error:
            await self._fail(record, Refusal.of(error, label))
            return
        except Exception:
            await self._fail(record, Refusal("skill-error", label, "an unexpected failure; see the log"))
            raise
        finally:
            self._revision += 1
        await self._confirm(remote, record)

    async def _fail(self, record: ServerRecord, problem: Refusal) -> None:
        level = logging.INFO if record.problem else logging.WARNING
        logger.log(level, "could not list the skills of %s: %s", record.origin, visible(problem.detail))
        record.mark_failed(problem, self._clock())
        if self._offline is not None and record.was_never_listed:
            record.use_offline(await self._offline(record.origin))

    async def _confirm(self, remote: RemoteServer, record: ServerRecord) -> None:
        """Get the skills that a server's instructions mention and its listing lacks."""
        if record.dialect is not Dialect.CORE:
            return  # In other dialects only reading the file could confirm it, and no file is read unasked.
        uris = record.unconfirmed(uris_in(remote.instructions))
        if not uris:
            return
        with anyio.move_on_after(CONFIRM_SECONDS):
            async with anyio.create_task_group() as group:
                for uri in uris:
                    group.start_soon(self._confirm_one, remote, record, uri)

    async def _confirm_one(self, remote: RemoteServer, record: ServerRecord, uri: str) -> None:
        try:
            self._store(record, await remote.get_skill(uri))
        except SkillError as error:
            logger.debug("%s mentions %s, which is not a skill: %s", record.origin, quoted(uri), error)

    def _store(self, record: ServerRecord, entry: SkillEntry) -> KnownSkill:
        self._report_entries(record.origin, [entry])
        self._revision += 1
        known = record.put(entry)
        record.note_renewal(entry.uri.text, self._remotes[record.origin.label].epoch, self._clock())
        return known

    def _report_entries(self, origin: Origin, entries: Sequence[SkillEntry]) -> None:
        if self._on_entries is not None:
            self._on_entries(origin, entries)

    def _start_scan(self) -> anyio.Event:
        return self._start(None, self._scan_local)

    async def _scan_local(self) -> None:
        if self._local is not None:
            scan = await anyio.to_thread.run_sync(self._local.scan, abandon_on_cancel=True)
            self._revision += scan != self._scan
            self._scan = scan
            self._view_builder.local_history.update(scan.skills)

    async def _renew_local(self, skill: SkillId) -> KnownSkill:
        under_way = self._calls.get(None)
        if under_way is not None:  # The running scan may have passed this skill already.
            await under_way.done.wait()
        await self._start_scan().wait()
        for found in self._scan.skills:
            if found.id == skill:
                return found
        raise _not_found(skill)

    def _is_fresh(self, label: str) -> bool:
        return self._records[label].is_fresh(self._remotes[label].epoch, self._clock())

    def _require(self, label: str) -> ServerRecord:
        record = self._records.get(label)
        if record is None:
            message = f"no server is called {quoted(label)}"
            raise UnknownReferenceError(message, reference=quoted(label), candidates=sorted(self._records))
        return record

    def _explained(
        self, error: UnknownReferenceError, label: str, uri: SkillUri | None
    ) -> UnknownReferenceError:
        """Return the error with the reason why such a skill is hidden, or with its server's problem."""
        record, name = self._records[label], name_of(error.reference)
        subject = None if uri is None else f"{label}/{uri.text}"
        problem = next(
            (
                hidden
                for hidden in record.hidden
                if (name_of(hidden.subject) == name if subject is None else hidden.subject == subject)
            ),
            None,
        )
        words = "and a skill of that name is hidden"
        if problem is not None and problem.code == HiddenArchiveError.refusal:
            return HiddenArchiveError(problem.detail, reference=error.reference, fix=problem.remedy)
        if problem is None:
            problem, words = record.problem, "and its server has a problem"
        if problem is None:
            return error
        return UnknownReferenceError(
            f"{error}, {words}: {problem.detail or problem.sentence}",
            reference=error.reference,
            candidates=error.candidates,
            fix=problem.remedy,
        )


def _not_found(skill: SkillId) -> NotFoundError:
    return NotFoundError(f"{quoted(skill.uri)} is no longer served", uri=skill.uri)
