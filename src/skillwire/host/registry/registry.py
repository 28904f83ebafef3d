"""`Registry`: all skills of all origins, from listings alone.

No file of a skill is read to know it. Servers are asked side by side, each
answer counts as soon as it is there, and a server that is slow, broken or away
costs the others nothing. Nothing is asked by a timer: whether a listing is
still good is looked at when somebody needs it.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final

import anyio
import anyio.abc
import anyio.to_thread

from skillwire.core.characters import quoted
from skillwire.core.entry import SkillEntry
from skillwire.core.uri import SkillUri
from skillwire.errors import NotFoundError, SkillError, SourceError
from skillwire.host.failures import (
    AmbiguousReferenceError,
    ConfigError,
    NotDeclaredError,
    UnknownReferenceError,
)
from skillwire.host.origin import Origin, SkillId
from skillwire.host.refusals import Refusal
from skillwire.host.registry.assembling import MANY, Assembly
from skillwire.host.registry.confusables import LOCAL
from skillwire.host.registry.instructions import uris_in
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.local import LocalScan, LocalSkills
from skillwire.host.registry.naming import match, name_of, uri_in
from skillwire.host.registry.remote import Remote
from skillwire.host.registry.served import Served
from skillwire.host.registry.view import RegistryView, ServerStatus
from skillwire.sources.background import running
from skillwire.sources.garbage import collector_paused
from skillwire.wire.dialect import Dialect

__all__ = ["Registry", "RegistryView", "Remote", "ServerStatus"]

logger = logging.getLogger(__name__)

CONFIRM_SECONDS: Final = 15.0
"""How long the URIs in a server's instructions are asked about, altogether."""


class Registry:
    """All skills that servers and local folders have, each under one reference.

    It is an async context manager, which owns what goes on in the background;
    entering it asks nobody anything. `on_entries` hears of all entries of a
    server before it can be seen here. `offline` supplies what was approved
    and cached of a server that is away and was never listed. `top_level_only`
    leaves out the skills of servers that lie inside listed ones.

    Raises:
        ConfigError: Two servers have one label, or one has the word for this machine's folders.
    """

    def __init__(
        self,
        remotes: Sequence[Remote],
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
            raise ConfigError(f"no server can be called {LOCAL}", fix="give the server another label")
        self._served = {
            label: Served(remote.origin, top_level_only=top_level_only)
            for label, remote in self._remotes.items()
        }
        self._assembly = Assembly()
        self._local = local
        self._scan = LocalScan()
        self._clock = clock
        self._on_entries = on_entries
        self._offline = offline
        self._revision = 1
        self._view = RegistryView()
        self._flights: dict[str | None, anyio.Event] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> "Registry":
        ready = anyio.Event()
        await self._opened.enter_async_context(running(partial(self._own_tasks, ready)))
        await ready.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, trace)

    @property
    def view(self) -> RegistryView:
        """What is known right now; nobody is asked for it."""
        now = self._clock()
        servers = tuple(
            served.status(self._remotes[label].epoch, now) for label, served in self._served.items()
        )
        if self._view.revision != self._revision:
            self._view = self._assembly.view(self._revision, self._scan, self._served.values(), servers)
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
        """Ask the servers that are due, all or those with `labels` (`local` for the folders), side by side.

        Local folders are looked at whenever someone asks. `force` asks also
        the servers whose listing is still good. `wait_seconds` bounds only the
        waiting: who is slower is heard in the background. A server that is
        being asked already is not asked twice. What goes wrong is in the view,
        not raised.

        Raises:
            UnknownReferenceError: There is no server with such a label.
        """
        wanted = sorted({LOCAL, *self._remotes} if labels is None else set(labels))
        for label in wanted:
            if label != LOCAL:
                self._require(label)
        flights: list[anyio.Event] = []
        for label in wanted:
            if label == LOCAL:
                flights.append(self._start_scan())
            elif force or not self._is_fresh(label):
                flights.append(self._start(label, partial(self._ask, label, at_once)))
        with anyio.move_on_after(wait_seconds):
            for flight in flights:
                await flight.wait()
        return self.view

    def invalidate(self, label: str) -> None:
        """Note that a server's skills may have changed; it is asked when someone needs them.

        Raises:
            UnknownReferenceError: There is no server with this label.
        """
        self._require(label).signals += 1

    async def resolve(self, reference: str) -> KnownSkill:
        """Return the skill that `reference` means, as its origin shows it now.

        Only the server whose label the reference starts with is ever asked.
        When its listing is no longer good, it is asked about the one skill if
        that is known, and else for all. A URI it does not list goes to its
        `skills/get`.

        Raises:
            AmbiguousReferenceError: Several skills of the server could be meant.
            UnknownReferenceError: There is no such skill.
            NotFoundError: The server serves no skill at this URI.
            SkillError: The server could not be asked about the URI, or its answer is no use.
        """
        label, slash, _ = reference.partition("/")
        if not slash:
            await self._start_scan().wait()
            return match(reference, self.view.skills)
        served = self._served.get(label)
        if served is None:
            return match(reference, ())
        if not self._is_fresh(label) and not served.was_tried(self._clock()):
            known = await self._renewed(served, reference)
            if known is not None:
                return known
            await self._start(label, partial(self._ask, label, False)).wait()
        try:
            return await self._in_full(served, match(reference, served.skills))
        except AmbiguousReferenceError:
            raise
        except UnknownReferenceError as error:
            uri = uri_in(reference)
            if uri is None:
                raise self._explained(error, label) from None
        return self._put(served, await self._remotes[label].get_skill(uri))

    def known(self, skill: SkillId) -> KnownSkill | None:
        """Return the record of a skill as it is known now; nobody is asked."""
        served = self._served.get(skill.origin.label) if skill.origin.is_remote else None
        if served is not None:
            return served.find(skill.uri) if served.origin == skill.origin else None
        return next((found for found in self._scan.skills if found.id == skill), None)

    async def renew(self, skill: SkillId) -> KnownSkill:
        """Ask a skill's origin, and nobody else, for its current entry, and return the new record.

        Raises:
            NotFoundError: It is not there any more, and forgotten here.
            SkillError: The server could not be asked, or its answer is no use.
        """
        if not skill.origin.is_remote:
            return await self._renew_local(skill)
        remote = self._remotes.get(skill.origin.label)
        if remote is None or remote.origin != skill.origin:
            raise _not_found(skill)
        served = self._served[skill.origin.label]
        known = served.find(skill.uri)
        try:
            entry = await remote.get_skill(SkillUri.parse(skill.uri) if known is None else known.entry.uri)
        except NotFoundError:
            served.drop(skill.uri)
            self._revision += 1
            raise
        return self._put(served, entry)

    async def _renewed(self, served: Served, reference: str) -> KnownSkill | None:
        """Ask about one listed skill instead of all; None when that does not settle it."""
        known = next((skill for skill in served.skills if skill.reference == reference), None)
        if known is None or not known.is_listed:
            return None
        remote = self._remotes[served.origin.label]
        if served.was_renewed(known.id.uri, remote.epoch, self._clock()):
            return known
        try:
            entry = await remote.get_skill(known.entry.uri)
        except SkillError as error:
            logger.debug("%s is not settled by asking for it alone: %s", reference, error)
            return None
        return self._put(served, entry)

    async def _in_full(self, served: Served, known: KnownSkill) -> KnownSkill:
        """Ask for the digests of a skill whose listing had too many to ask for all of them."""
        if not _may_have_digests(known.dialect, known.entry):
            return known
        return await self._renewed(served, known.reference) or known

    async def _own_tasks(self, ready: anyio.Event) -> None:
        try:
            async with anyio.create_task_group() as self._tasks:
                ready.set()
                await anyio.sleep_forever()
        finally:
            self._tasks = None

    def _start(self, key: str | None, work: Callable[[], Coroutine[Any, Any, None]]) -> anyio.Event:
        """Begin some work, unless it is under way; the event tells when it is over."""
        if self._tasks is None:
            raise SourceError("the registry is not open; use it with `async with`")
        done = self._flights.get(key)
        if done is None:
            done = self._flights[key] = anyio.Event()
            self._tasks.start_soon(self._fly, key, work, done)
        return done

    async def _fly(
        self, key: str | None, work: Callable[[], Coroutine[Any, Any, None]], done: anyio.Event
    ) -> None:
        try:
            await work()
        except Exception:
            logger.exception("unexpected failure while %s was asked", key or "the local folders")
        finally:
            del self._flights[key]
            done.set()

    async def _ask(self, label: str, at_once: bool) -> None:
        """List one server's skills, and confirm those its instructions mention."""
        remote, served = self._remotes[label], self._served[label]
        try:
            await remote.connect(at_once=at_once)
            asked = (remote.epoch, served.signals)
            served.begin_listing()
            listing = served.reconciled(await remote.list_skills())
            # What may have digests all the same is judged when it is asked for by itself.
            told = [entry for entry in listing.entries if not _may_have_digests(listing.dialect, entry)]
            self._see(served.origin, told)
            problem = None if listing.problem is None else Refusal.of(listing.problem, label)
            with collector_paused() if len(listing.entries) > MANY else nullcontext():
                served.take(listing, problem, asked=asked, now=self._clock())
        except NotDeclaredError:
            served.take_none(asked=(remote.epoch, served.signals), now=self._clock())
            return
        except SkillError as error:
            await self._fail(served, Refusal.of(error, label))
            return
        except Exception:
            await self._fail(
                served, Refusal("skill-error", label, "an unexpected failure, which is in the log")
            )
            raise
        finally:
            self._revision += 1
        await self._confirm(remote, served)

    async def _fail(self, served: Served, problem: Refusal) -> None:
        logger.info("%s could not be asked for its skills: %s", served.origin, problem.detail)
        served.fail(problem, self._clock())
        if self._offline is not None and served.was_never_listed:
            served.take_offline(await self._offline(served.origin))

    async def _confirm(self, remote: Remote, served: Served) -> None:
        """Ask about the skills that a server's instructions mention and its listing lacks."""
        if served.dialect is not Dialect.CORE:
            return  # In other dialects only the file itself could confirm it, and nothing is read unasked.
        uris = served.unconfirmed(uris_in(remote.instructions))
        if not uris:
            return
        with anyio.move_on_after(CONFIRM_SECONDS):
            async with anyio.create_task_group() as group:
                for uri in uris:
                    group.start_soon(self._confirm_one, remote, served, uri)

    async def _confirm_one(self, remote: Remote, served: Served, uri: str) -> None:
        try:
            self._put(served, await remote.get_skill(uri))
        except SkillError as error:
            logger.debug("%s mentions %s, which is no skill: %s", served.origin, quoted(uri), error)

    def _put(self, served: Served, entry: SkillEntry) -> KnownSkill:
        self._see(served.origin, [entry])
        self._revision += 1
        known = served.put(entry)
        served.note_renewal(entry.uri.text, self._remotes[served.origin.label].epoch, self._clock())
        return known

    def _see(self, origin: Origin, entries: Sequence[SkillEntry]) -> None:
        if self._on_entries is not None:
            self._on_entries(origin, entries)

    def _start_scan(self) -> anyio.Event:
        return self._start(None, self._look_around)

    async def _look_around(self) -> None:
        if self._local is not None:
            scan = await anyio.to_thread.run_sync(self._local.scan, abandon_on_cancel=True)
            self._revision += scan != self._scan
            self._scan = scan
            self._assembly.aftermath.take(scan.skills)

    async def _renew_local(self, skill: SkillId) -> KnownSkill:
        under_way = self._flights.get(None)
        if under_way is not None:  # It may have passed the skill already.
            await under_way.wait()
        await self._start_scan().wait()
        for found in self._scan.skills:
            if found.id == skill:
                return found
        raise _not_found(skill)

    def _is_fresh(self, label: str) -> bool:
        return self._served[label].is_fresh(self._remotes[label].epoch, self._clock())

    def _require(self, label: str) -> Served:
        served = self._served.get(label)
        if served is None:
            message = f"no server is called {quoted(label)}"
            raise UnknownReferenceError(message, reference=quoted(label), candidates=sorted(self._served))
        return served

    def _explained(self, error: UnknownReferenceError, label: str) -> UnknownReferenceError:
        """Return an error that says too why such a skill is not used, or what is wrong with its server."""
        served, name = self._served[label], name_of(error.reference)
        problem = next((hidden for hidden in served.hidden if name_of(hidden.subject) == name), None)
        words = "and one of that name is not used"
        if problem is None:
            problem, words = served.problem, "and its server is in trouble"
        if problem is None:
            return error
        return UnknownReferenceError(
            f"{error}, {words}: {problem.detail or problem.sentence}",
            reference=error.reference,
            candidates=error.candidates,
            fix=problem.remedy,
        )


def _may_have_digests(dialect: Dialect, entry: SkillEntry) -> bool:
    """Tell whether an entry without digests only comes from a long listing of plain resources."""
    return dialect is Dialect.LIST_MARCH and entry.is_dynamic


def _not_found(skill: SkillId) -> NotFoundError:
    return NotFoundError(f"nothing is served at {quoted(skill.uri)} any more", uri=skill.uri)
