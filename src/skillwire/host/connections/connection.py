"""`Connection`: one MCP server, seen as a place to list, get and read."""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Hashable
from enum import StrEnum
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

import anyio
import anyio.abc

from skillwire.core.archive import ArchiveFormat
from skillwire.core.entry import SkillEntry
from skillwire.core.manifest import MAX_TOTAL_SIZE
from skillwire.core.uri import SkillUri
from skillwire.errors import SkillError, SourceError
from skillwire.host.calls.declaration import Declaration, declared
from skillwire.host.calls.directories import DirectoryItem, read_directory
from skillwire.host.calls.enumeration import Listing
from skillwire.host.calls.paging import Limits
from skillwire.host.calls.resources import ResourceContent, read_resource
from skillwire.host.connections.changes import ChangeSignals
from skillwire.host.connections.endpoints import ServerConfig
from skillwire.host.connections.flights import Flights
from skillwire.host.connections.link import Link
from skillwire.host.connections.patience import Patience
from skillwire.host.connections.sdklogs import make_sdk_logs_inert
from skillwire.host.connections.session import client_for, meaning_of, named
from skillwire.host.connections.throttle import Backoff, ConnectionLimits, RestartBudget
from skillwire.host.dialects.core import CoreVoice
from skillwire.host.dialects.negotiation import negotiate
from skillwire.host.dialects.voice import Found, Hearing, Peer, Voice
from skillwire.host.failures import PeerError, SessionLostError, TooSlowError, UnavailableError
from skillwire.host.origin import Origin
from skillwire.wire.core import GET_SKILL, LIST_SKILLS, READ_DIRECTORY, READ_RESOURCE
from skillwire.wire.dialect import Dialect

MAX_INSTRUCTIONS: Final = 64 * 1024

_CONNECT = "connecting"
_CLOSE_SECONDS = 15.0
# What a listing that runs out of time may take to hand over the pages that came.
_HANDING_OVER = 1.0

T = TypeVar("T")

logger = logging.getLogger(__name__)


class ConnectionState(StrEnum):
    """What a connection is doing. `resting` ends by itself, `failed` when the budget of attempts recovers."""

    IDLE = "idle"
    CONNECTING = "connecting"
    READY = "ready"
    RESTING = "resting"
    FAILED = "failed"
    CLOSED = "closed"


class Connection:
    """One server. It is connected when something is asked of it, and again after it was lost.

    `async with` owns a background task, which neither connects nor waits on
    entry and leaves nothing behind on exit. `epoch` grows with every
    connection made, so whatever a server said belongs to one epoch. What goes
    wrong is always a `SkillError`, and always within the server's own time.
    `on_change` is called, at most once a second, when the server says that
    its listing changed. `formats` are the archives that may be unpacked.
    """

    def __init__(
        self,
        server: ServerConfig,
        *,
        limits: ConnectionLimits | None = None,
        formats: frozenset[ArchiveFormat] = frozenset(),
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._server = server
        self._limits = limits = limits or ConnectionLimits()
        self._patience: Patience = getattr(server.auth, "patience", None) or Patience()
        self._signals = ChangeSignals(on_change, gap=limits.change_gap)
        self._backoff = Backoff(limits.backoff_base, limits.backoff_most)
        self._budget = RestartBudget(limits.starts, limits.start_window)
        self._limiter = anyio.CapacityLimiter(limits.in_flight)
        self._flights = Flights()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._link: Link | None = None
        self._wanted = anyio.Event()
        self._gone = anyio.Event()
        self._is_closed = False
        self._hearing = Hearing(
            formats=formats,
            dialect=server.skills.dialect,
            limits=Limits(limits.max_pages, limits.max_entries, limits.max_listing_bytes),
            seconds=server.seconds,
        )
        self._voice: Voice | None = None
        self._heard_on: Link | None = None
        self.epoch = 0
        self.last_failure: SkillError | None = None

    @property
    def origin(self) -> Origin:
        """Where its skills come from, by the user's label; never by what the server calls itself."""
        return self._server.origin

    @property
    def state(self) -> ConnectionState:
        if self._is_closed:
            return ConnectionState.CLOSED
        if self._link is not None and not self._link.is_over:
            return ConnectionState.READY if self._link.is_ready else ConnectionState.CONNECTING
        if self._budget.remaining:
            return ConnectionState.FAILED
        return ConnectionState.RESTING if self._backoff.remaining else ConnectionState.IDLE

    @property
    def declaration(self) -> Declaration | None:
        """What the server declared about skills; None while it is not connected, or when it did not."""
        return declared(self._link.client) if self._link is not None and self._link.is_ready else None

    @property
    def instructions(self) -> str:
        """What the server says about its use: a stranger's text, cut off at 64 KiB."""
        if self._link is None or not self._link.is_ready:
            return ""
        text = (self._link.client.instructions or "").encode("utf-8", "replace")
        return text[:MAX_INSTRUCTIONS].decode("utf-8", "ignore")

    @property
    def protocol_version(self) -> str | None:
        """The revision of the protocol that is spoken; None while there is no connection."""
        return self._link.client.protocol_version if self._link is not None and self._link.is_ready else None

    async def __aenter__(self) -> Self:
        make_sdk_logs_inert()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._own)
        self._tasks.start_soon(self._signals.tell)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        self.begin_closing()
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await self._gone.wait()
        self._tasks.cancel_scope.cancel()
        # The tasks keep their errors to themselves, and the block's own error should not come out in a group.
        await self._tasks.__aexit__(None, None, None)

    def begin_closing(self) -> None:
        """Say goodbye without waiting, so that several connections can close side by side."""
        self._is_closed = True
        if self._link is not None:
            self._link.end(UnavailableError("the connection was closed"))
        self._wanted.set()

    async def connect(self, *, at_once: bool = False) -> None:
        """Make sure there is a connection. `at_once`, because a user asked, forgets earlier failures.

        Raises:
            UnavailableError: The server cannot be reached, or is left alone for a while.
            SkillError: It was reached, and what it said cannot be used.
        """
        if at_once:
            self._backoff.reset()
            self._budget.forget()
        await self._reach()

    async def list_skills(self) -> Listing:
        """Return what the server lists; what came before a problem is kept, with the problem.

        Raises:
            NotDeclaredError: The server has not declared the extension; nothing was sent.
            SkillError: There is no connection, or not even a first page.
        """

        async def call(link: Link) -> Listing:
            voice = self._voice_on(link)
            if voice is not None:
                return await voice.list(Peer(link), self._hearing)
            return (await self._negotiated(link)).listing

        return await self._ask((LIST_SKILLS,), LIST_SKILLS, call, extra=_HANDING_OVER)

    async def get_skill(self, uri: SkillUri | str) -> SkillEntry:
        """Return the current entry of the skill at `uri`; see `retrieval.get_skill`.

        Raises:
            SkillError: There is no such skill, the answer is not one, or there is no connection.
        """
        wanted = uri if isinstance(uri, SkillUri) else SkillUri.parse(uri)

        async def call(link: Link) -> SkillEntry:
            return await (await self._voice_for(link)).get(Peer(link), wanted)

        return await self._ask((GET_SKILL, wanted.published), GET_SKILL, call)

    async def read_file(self, uri: str, *, max_bytes: int) -> bytes:
        """Return the bytes of a skill's file as the server sends them now, unverified.

        Raises:
            SkillError: There is no such file, it is larger than `max_bytes`, or there is no connection.
        """

        async def call(link: Link) -> bytes:
            return await (await self._voice_for(link)).read(Peer(link), uri, max_bytes=max_bytes)

        return await self._ask((READ_RESOURCE, "file", uri, max_bytes), READ_RESOURCE, call)

    async def read_resource(self, uri: str) -> ResourceContent:
        """Return any resource the server serves, of at most 16 MiB; see `resources.read_resource`.

        Raises:
            SkillError: There is no such resource, it is too large, or there is no connection.
        """

        async def call(link: Link) -> ResourceContent:
            with link.cap.allowing(MAX_TOTAL_SIZE):
                return await read_resource(link.client, uri, max_seconds=None)

        return await self._ask((READ_RESOURCE, uri), READ_RESOURCE, call)

    async def read_directory(self, uri: str) -> tuple[DirectoryItem, ...]:
        """Return what is in a directory, where the server declared `directoryRead`.

        Raises:
            NotDeclaredError: It did not; nothing was sent.
            SkillError: There is no such directory, the answer is not one, or there is no connection.
        """
        return await self._ask(
            (READ_DIRECTORY, uri),
            READ_DIRECTORY,
            lambda link: read_directory(link.client, uri, max_seconds=None),
        )

    async def consult(self, key: Hashable, method: str, call: Callable[[Peer, Hearing], Awaitable[T]]) -> T:
        """Ask the server something else about its skills; `key` says what, and `method` stands in messages.

        Raises:
            SkillError: What `call` raises, or there is no connection.
        """
        return await self._ask((method, "consult", key), method, lambda link: call(Peer(link), self._hearing))

    async def once(self, method: str, call: Callable[[Peer, Voice], Awaitable[T]]) -> T:
        """Ask, in a time of its own, for what has effects: shared with nobody, and never asked for twice.

        Raises:
            SkillError: What `call` raises, or there is no connection.
        """

        async def made(link: Link) -> T:
            return await call(Peer(link), await self._voice_for(link))

        if self._tasks is None or self._is_closed:
            raise self._not_open()
        extra = self._limits.execute_seconds - self._server.seconds
        return await self._flights.share(self._tasks, object(), lambda: self._attempt(method, made, extra))

    # Its dialect

    @property
    def dialect(self) -> Dialect | None:
        """The dialect the server spoke when it was last asked; None when it spoke none so far."""
        return None if self._voice is None else self._voice.dialect

    def _voice_on(self, link: Link) -> Voice | None:
        """Return the voice that was found on this very connection: a server may come back with another."""
        return self._voice if self._heard_on is link else None

    async def _negotiated(self, link: Link) -> Found:
        found = await negotiate(Peer(link), self._hearing)
        self._voice, self._heard_on = found.voice, link
        self._signals.follow(found.voice.dialect)
        return found

    async def _voice_for(self, link: Link) -> Voice:
        """Return the voice for one skill or file, without asking for all skills where that can be helped."""
        voice = self._voice_on(link)
        if voice is not None:
            return voice
        if self._hearing.dialect in (None, Dialect.CORE) and isinstance(self._voice, CoreVoice | None):
            if declared(link.client) is not None:
                return CoreVoice()
        return (await self._negotiated(link)).voice

    # One call

    async def _ask(
        self,
        key: Hashable,
        method: str,
        call: Callable[[Link], Awaitable[T]],
        *,
        extra: float = 0.0,
    ) -> T:
        """Make a call, or share the one that is under way."""
        if self._tasks is None or self._is_closed:
            raise self._not_open()
        return await self._flights.share(self._tasks, key, lambda: self._make(method, call, extra))

    async def _make(self, method: str, call: Callable[[Link], Awaitable[T]], extra: float) -> T:
        """Make a call, and once more when the server has only forgotten who asks."""
        try:
            return await self._attempt(method, call, extra)
        except SessionLostError:
            return await self._attempt(method, call, extra)

    async def _attempt(self, method: str, call: Callable[[Link], Awaitable[T]], extra: float) -> T:
        """Connect if needed, wait for a turn, and give the server its time to answer."""
        link = await self._reach()
        with self._patience.clock(self._server.seconds) as queue:
            await self._limiter.acquire()
        if queue.cancelled_caught:
            raise self._too_slow(f"earlier requests, before {method}")
        try:
            exchange = _Exchange(link, call)
            assert self._tasks is not None
            self._tasks.start_soon(exchange.run)
            try:
                with self._patience.clock(self._server.seconds + extra) as clock:
                    await exchange.done.wait()
            finally:
                # What the SDK still has to say to a server that hangs is not the caller's to wait for.
                exchange.scope.cancel()
        finally:
            self._limiter.release()
        if clock.cancelled_caught:
            raise self._too_slow(method, extra)
        return exchange.outcome()

    async def _reach(self) -> Link:
        """Return a link that is ready, and begin one if there is none."""
        if self._tasks is None or self._is_closed:
            raise self._not_open()
        link = self._link
        if link is None or link.is_over:
            self._require_rest()
            link = self._link = Link(self._limits, self._ended, self._signals.notice)
            self._wanted.set()
        with self._patience.clock(self._server.seconds) as clock:
            await link.ready.wait()
        if clock.cancelled_caught and not link.is_ready:
            link.end(self._too_slow(_CONNECT))
        if link.failure is not None:
            raise link.failure.with_traceback(None)
        return link

    def _require_rest(self) -> None:
        """Refuse to try again too soon, or too often."""
        failed = f": {self.last_failure}" if self.last_failure is not None else ""
        if wait := self._budget.remaining:
            raise UnavailableError(
                f"the server was tried {self._limits.starts} times in a short time{failed}",
                retry_in=wait,
                fix="find out why it fails, then connect again",
            )
        if wait := self._backoff.remaining:
            raise UnavailableError(f"the server is left alone for a moment{failed}", retry_in=wait)

    def _too_slow(self, method: str, extra: float = 0.0) -> TooSlowError:
        seconds = self._server.seconds + extra
        return TooSlowError(f"the server took more than {seconds:g} seconds over {method}")

    def _not_open(self) -> UnavailableError:
        return UnavailableError("the connection is not open")

    # The background task

    async def _own(self) -> None:
        """Hold one link after the other: an MCP client must be left by the task that entered it."""
        try:
            while not self._is_closed:
                await self._wanted.wait()
                self._wanted = anyio.Event()
                if self._link is not None and not self._link.is_over:
                    await self._hold(self._link)
        finally:
            self._gone.set()

    async def _hold(self, link: Link) -> None:
        """Connect, and stay until the link is over, whatever ends it."""
        self._budget.take()
        try:
            with self._patience.clock(self._server.seconds) as connecting:
                link.begin(connecting)
                async with client_for(self._server, link, self._signals.receive) as client:
                    connecting.deadline = math.inf
                    link.become_ready(client)
                    if link.is_ready:
                        self._arrived()
                    async with anyio.create_task_group() as tasks:
                        backoff = Backoff(self._limits.backoff_base, self._limits.backoff_most)
                        tasks.start_soon(self._signals.listen, client, backoff)
                        await link.over.wait()
                        tasks.cancel_scope.cancel()
            link.end(self._too_slow(_CONNECT))
        except Exception as error:
            link.end(meaning_of(error, link))

    def _arrived(self) -> None:
        self.epoch += 1
        self.last_failure = None

    def _ended(self, link: Link) -> None:
        """Note how a link ended, and leave the server alone for a while."""
        self.last_failure = link.failure
        if isinstance(link.failure, SessionLostError):
            return
        if link.ready_since is not None and time.monotonic() - link.ready_since > self._limits.backoff_most:
            self._backoff.reset()
        self._backoff.failed()


class _Exchange(Generic[T]):
    """One request in a task of its own, so that nobody has to wait until it is cleared away."""

    def __init__(self, link: Link, call: Callable[[Link], Awaitable[T]]) -> None:
        self._link = link
        self._call = call
        self._values: list[T] = []
        self._failure: SkillError | None = None
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()

    async def run(self) -> None:
        try:
            with self.scope:
                self._values.append(await self._call(self._link))
        except SkillError as error:
            self._failure = self._link.failure or error if isinstance(error, PeerError) else error
        except Exception as error:
            logger.debug("a request failed unexpectedly", exc_info=error)
            self._failure = self._link.failure or SourceError(f"the request failed: {named(error)}")
        finally:
            self.done.set()

    def outcome(self) -> T:
        """Return the answer, or raise what came instead; a link that ended says why it did."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        return self._values[0]
