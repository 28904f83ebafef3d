"""`Connection`: one MCP server, from which skills are listed, requested and read."""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Final, Self, TypeAlias, TypeVar, cast

import anyio
import anyio.abc

from skillwire.core import (
    MAX_TOTAL_SIZE,
    ArchiveFormat,
    Dialect,
    SkillEntry,
    SkillError,
    SkillUri,
    SourceError,
    visible,
)
from skillwire.host.calls import (
    Backoff,
    ConnectionLimits,
    ConnectionState,
    Deadlines,
    Declaration,
    DirectoryItem,
    Listing,
    ListingLimits,
    ResourceContent,
    RestartBudget,
    ServerLink,
    SharedCall,
    SharedCalls,
    declared,
    read_directory,
    read_resource,
)
from skillwire.host.connect.changes import ChangeSignals
from skillwire.host.connect.session import client_for, connection_failure, describe_error, request_failure
from skillwire.host.connect.site import SiteConnection
from skillwire.host.dialects.base import (
    NO_ARGUMENTS,
    Arguments,
    DialectClient,
    DialectMatch,
    DialectOptions,
    Session,
    client_with_arguments,
)
from skillwire.host.dialects.core import CoreDialectClient
from skillwire.host.dialects.negotiation import negotiate
from skillwire.host.model import (
    Origin,
    PeerError,
    ServerConfig,
    SessionLostError,
    SiteEndpoint,
    UnavailableError,
)
from skillwire.wire.core import GET_SKILL, LIST_SKILLS, READ_DIRECTORY, READ_RESOURCE

T = TypeVar("T")


# Escaping of text from servers in the log records of the MCP SDK.


LOGGERS: Final = (
    "mcp.client.auth.oauth2",
    "mcp.client.client",
    "mcp.client.session",
    "mcp.client.stdio",
    "mcp.client.streamable_http",
    "mcp.client.subscriptions",
    "mcp.shared.jsonrpc_dispatcher",
)

_MAX_LINE_LENGTH = 500
_MAX_LINES = 50


class _EscapingFilter(logging.Filter):
    """Escapes control and invisible characters in log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = _escaped(record.getMessage()), ()
        if record.exc_info:
            lines = logging.Formatter().formatException(record.exc_info).splitlines()
            record.exc_text = "\n".join(map(_escaped, lines[-_MAX_LINES:]))
            record.exc_info = None
        return True


_FILTER = _EscapingFilter()


def escape_sdk_logs() -> None:
    """Add the escaping filter to the SDK's loggers; calling it twice has no effect."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)


def _escaped(text: str) -> str:
    return visible(text, most=_MAX_LINE_LENGTH)


MAX_INSTRUCTIONS: Final = 64 * 1024

_CLOSE_SECONDS = 15.0
# Extra time for a listing that timed out to return the pages it has.
_PARTIAL_LISTING_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Connection:
    """A connection to one server. It connects on the first request, and again after a loss.

    `async with` owns a background task, which neither connects nor waits on
    entry and is gone on exit. `epoch` grows with every connection made, so each
    answer of a server belongs to one epoch. All errors are `SkillError`s, raised
    within the server's timeout. `on_change` is called, at most once a second,
    when the server reports that its listing changed. `formats` are the archive
    formats that may be unpacked.
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
        self._deadlines: Deadlines = getattr(server.auth, "deadlines", None) or Deadlines()
        self._signals = ChangeSignals(on_change, gap=limits.change_gap)
        self._backoff = Backoff(limits.backoff_base, limits.backoff_most)
        self._budget = RestartBudget(limits.starts, limits.start_window)
        self._limiter = anyio.CapacityLimiter(limits.in_flight)
        self._calls = SharedCalls(self._deadlines)
        self._tasks: anyio.abc.TaskGroup | None = None
        self._link: ServerLink | None = None
        self._wanted = anyio.Event()
        self._closed = anyio.Event()
        self._is_closed = False
        self._options = DialectOptions(
            formats=formats,
            dialect=server.skills.dialect,
            limits=ListingLimits(limits.max_pages, limits.max_entries, limits.max_listing_bytes),
            seconds=server.seconds,
        )
        self._client: DialectClient | None = None
        self._client_link: ServerLink | None = None
        self.epoch = 0
        self.last_failure: SkillError | None = None

    @property
    def origin(self) -> Origin:
        """The origin of its skills, with the user's label and never the server's own name."""
        return self._server.origin

    @property
    def state(self) -> ConnectionState:
        if self._is_closed:
            return ConnectionState.CLOSED
        if self._link is not None and not self._link.is_over:
            return ConnectionState.READY if self._link.is_ready else ConnectionState.CONNECTING
        if self._budget.remaining:
            return ConnectionState.FAILED
        return ConnectionState.BACKING_OFF if self._backoff.remaining else ConnectionState.IDLE

    @property
    def declaration(self) -> Declaration | None:
        """The server's declaration of the extension; None if it has none or is not connected."""
        return declared(self._link.client) if self._link is not None and self._link.is_ready else None

    @property
    def instructions(self) -> str:
        """The server's instructions: untrusted text, cut off at 64 KiB."""
        if self._link is None or not self._link.is_ready:
            return ""
        text = (self._link.client.instructions or "").encode("utf-8", "replace")
        return text[:MAX_INSTRUCTIONS].decode("utf-8", "ignore")

    @property
    def protocol_version(self) -> str | None:
        """The negotiated protocol revision; None while there is no connection."""
        return self._link.client.protocol_version if self._link is not None and self._link.is_ready else None

    async def __aenter__(self) -> Self:
        escape_sdk_logs()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run_links)
        self._tasks.start_soon(self._signals.run_callbacks)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        self.begin_closing()
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await self._closed.wait()
        self._tasks.cancel_scope.cancel()
        # The tasks raise nothing, and an error of the block should not be wrapped in a group.
        await self._tasks.__aexit__(None, None, None)

    def begin_closing(self) -> None:
        """Start closing without waiting, so that several connections can close concurrently."""
        self._is_closed = True
        if self._link is not None:
            self._link.end(UnavailableError("the connection was closed"))
        self._wanted.set()

    async def connect(self, *, at_once: bool = False) -> None:
        """Connect if there is no connection. `at_once` skips the backoff, because a user asked.

        Raises:
            UnavailableError: The server cannot be reached, or a backoff is in progress.
            SkillError: It was reached, and its answer cannot be used.
        """
        if at_once:
            self._backoff.reset()
            self._budget.reset()
        await self._ready_link()

    async def list_skills(self) -> Listing:
        """Return the server's listing; after a problem, the pages before it and the problem.

        Raises:
            NotDeclaredError: The server has not declared the extension; nothing was sent.
            SkillError: There is no connection, or not even a first page.
        """
        return await self._share(
            (LIST_SKILLS,), LIST_SKILLS, self._list, arguments=None, extra=_PARTIAL_LISTING_SECONDS
        )

    async def _list(self, session: Session, _: object) -> Listing:
        if self._client is not None and self._client_link is session.link:
            return await self._client.list(session, self._options)
        return (await self._negotiate(session)).listing

    async def get_skill(self, uri: SkillUri | str, *, arguments: Arguments = NO_ARGUMENTS) -> SkillEntry:
        """Return the current entry of the skill at `uri`; see `calls.listing.get_skill`.

        Raises:
            SkillError: There is no such skill, the answer is invalid, or there is no connection.
        """
        wanted = uri if isinstance(uri, SkillUri) else SkillUri.parse(uri)
        return await self._share(
            (GET_SKILL, wanted.published, *sorted(arguments.items())),
            GET_SKILL,
            lambda session, client: client.get(session, wanted),
            arguments=arguments,
        )

    async def read_file(self, uri: str, *, max_bytes: int, arguments: Arguments = NO_ARGUMENTS) -> bytes:
        """Return the current bytes of a skill's file, unverified.

        Raises:
            SkillError: There is no such file, it is larger than `max_bytes`, or there is no connection.
        """
        return await self._share(
            (READ_RESOURCE, "file", uri, max_bytes, *sorted(arguments.items())),
            READ_RESOURCE,
            lambda session, client: client.read(session, uri, max_bytes=max_bytes),
            arguments=arguments,
        )

    async def read_resource(self, uri: str) -> ResourceContent:
        """Return any resource of the server, of at most 16 MiB; see `read_resource`.

        Raises:
            SkillError: There is no such resource, it is too large, or there is no connection.
        """

        async def request(session: Session, _: object) -> ResourceContent:
            with session.link.cap.allowing(MAX_TOTAL_SIZE):
                return await read_resource(session.client, uri, max_seconds=None)

        return await self._share((READ_RESOURCE, uri), READ_RESOURCE, request, arguments=None)

    async def read_directory(self, uri: str) -> tuple[DirectoryItem, ...]:
        """Return the items of a directory, if the server declared `directoryRead`.

        Raises:
            NotDeclaredError: It did not; nothing was sent.
            SkillError: There is no such directory, the answer is invalid, or there is no connection.
        """
        return await self._share(
            (READ_DIRECTORY, uri),
            READ_DIRECTORY,
            lambda session, _: read_directory(session.client, uri, max_seconds=None),
            arguments=None,
        )

    async def query(
        self, key: Hashable, method: str, call: Callable[[Session, DialectOptions], Awaitable[T]]
    ) -> T:
        """Make another request; calls with the same `key` are shared, and `method` is for messages.

        Raises:
            SkillError: What `call` raises, or there is no connection.
        """
        return await self._share(
            (method, "consult", key), method, lambda session, _: call(session, self._options), arguments=None
        )

    async def call_once(self, method: str, call: Callable[[Session, DialectClient], Awaitable[T]]) -> T:
        """Make a call that has effects: with its own timeout, not shared and never repeated.

        Raises:
            SkillError: What `call` raises, or there is no connection.
        """
        extra = self._limits.execute_seconds - self._server.seconds
        return await self._share(object(), method, call, extra=extra, attempts=1)

    # The dialect

    @property
    def dialect(self) -> Dialect | None:
        """The dialect that was last negotiated; None before the first negotiation."""
        return None if self._client is None else self._client.dialect

    async def _negotiate(self, session: Session) -> DialectMatch:
        found = await negotiate(session, self._options)
        self._client, self._client_link = found.client, session.link
        self._signals.set_dialect(found.client.dialect)
        return found

    async def _client_for(self, session: Session, arguments: Arguments) -> DialectClient:
        """Return the client for one skill or file, if possible without listing all skills."""
        # Another link may have another dialect.
        client = self._client if self._client_link is session.link else None
        if client is None and self._options.dialect in (None, Dialect.CORE):
            if isinstance(self._client, CoreDialectClient | None) and session.declares_extension:
                client = CoreDialectClient()
        if client is None:
            client = (await self._negotiate(session)).client
        return client_with_arguments(client, arguments) if arguments else client

    # One call

    def _share(
        self,
        key: Hashable,
        method: str,
        request: Callable[[Session, DialectClient], Awaitable[T]],
        *,
        arguments: Arguments | None = NO_ARGUMENTS,
        extra: float = 0.0,
        attempts: int = 2,
    ) -> Awaitable[T]:
        """Make a call, or share an identical one in progress.

        It is repeated if the server lost the session, up to `attempts`. Without
        `arguments`, the request uses no dialect.
        """
        if self._tasks is None or self._is_closed:
            raise self._not_open()
        return self._calls.share(
            self._tasks, key, lambda shared: self._run(shared, method, request, arguments, extra, attempts)
        )

    async def _run(
        self,
        shared: SharedCall,
        method: str,
        request: Callable[[Session, DialectClient], Awaitable[object]],
        arguments: Arguments | None,
        extra: float,
        attempts: int,
    ) -> None:
        """Connect if needed, wait for a free slot, and make the request within the server's timeout."""
        seconds = self._server.seconds
        with shared.running() as values:
            while True:
                attempts -= 1
                link = self._link
                if link is None or not link.is_ready:
                    shared.limit(math.inf)
                    link = await self._ready_link()
                session = Session(link)
                shared.limit(seconds, f"requests before {method}")
                async with self._limiter:
                    shared.limit(seconds + extra, method)
                    try:
                        client = None if arguments is None else await self._client_for(session, arguments)
                        values.append(await request(session, cast(DialectClient, client)))
                        return
                    except SkillError as error:
                        failure = request_failure(error, link) if isinstance(error, PeerError) else error
                    except Exception as error:
                        logger.debug("a request failed unexpectedly", exc_info=error)
                        failure = link.failure or SourceError(f"the request failed: {describe_error(error)}")
                if not attempts or not isinstance(failure, SessionLostError):
                    raise failure

    async def _ready_link(self) -> ServerLink:
        """Return a link that is ready, and start one if there is none."""
        if self._tasks is None or self._is_closed:
            raise self._not_open()
        link = self._link
        if link is None or link.is_over:
            self._require_retry_allowed()
            link = self._link = ServerLink(self._limits, self._link_ended, self._signals.receive_method)
            self._wanted.set()
        with self._deadlines.limit(self._server.connect_seconds) as clock:
            await link.ready.wait()
        if clock.cancelled_caught and not link.is_ready:
            link.end_with_timeout(self._server.connect_seconds)
        if link.failure is not None:
            raise link.failure.with_traceback(None)
        return link

    def _require_retry_allowed(self) -> None:
        """Check that a new attempt is allowed now.

        Raises:
            UnavailableError: There were too many attempts, or a backoff is in progress.
        """
        failed = f": {self.last_failure}" if self.last_failure is not None else ""
        if wait := self._budget.remaining:
            raise UnavailableError(
                f"the server failed {self._limits.starts} times in a short time{failed}",
                retry_in=wait,
                fix="find out why it fails, then connect again",
            )
        if wait := self._backoff.remaining:
            raise UnavailableError(f"backing off after a failure of the server{failed}", retry_in=wait)

    def _not_open(self) -> UnavailableError:
        return UnavailableError("the connection is not open")

    # The background task

    async def _run_links(self) -> None:
        """Run one link after the other: an MCP client must be exited by the task that entered it."""
        try:
            while not self._is_closed:
                await self._wanted.wait()
                self._wanted = anyio.Event()
                if self._link is not None and not self._link.is_over:
                    await self._run_link(self._link)
        finally:
            self._closed.set()

    async def _run_link(self, link: ServerLink) -> None:
        """Connect, and wait until the link has ended."""
        self._budget.record()
        try:
            with self._deadlines.limit(self._server.connect_seconds) as connecting:
                link.begin(connecting)
                async with client_for(self._server, link, self._signals.receive) as client:
                    connecting.deadline = math.inf
                    link.become_ready(client)
                    if link.is_ready:
                        self._link_ready()
                    async with anyio.create_task_group() as tasks:
                        backoff = Backoff(self._limits.backoff_base, self._limits.backoff_most)
                        tasks.start_soon(self._signals.listen, client, backoff)
                        await link.over.wait()
                        tasks.cancel_scope.cancel()
            link.end_with_timeout(self._server.connect_seconds)
        except Exception as error:
            link.end(connection_failure(error, link, self._server))

    def _link_ready(self) -> None:
        self.epoch += 1
        self.last_failure = None

    def _link_ended(self, link: ServerLink) -> None:
        """Record how a link ended, and start the backoff."""
        self.last_failure = link.failure
        if isinstance(link.failure, SessionLostError):
            return
        if link.ready_since is not None and time.monotonic() - link.ready_since > self._limits.backoff_most:
            self._backoff.reset()
        self._backoff.record_failure()


# Creating the connection for a server: MCP, or plain HTTP for a web site.


AnyConnection: TypeAlias = Connection | SiteConnection


def connection_for(
    server: ServerConfig,
    *,
    limits: ConnectionLimits | None = None,
    formats: frozenset[ArchiveFormat] = frozenset(),
    on_change: Callable[[], None] | None = None,
) -> AnyConnection:
    """Return a connection to a server, not yet open. A web site never calls `on_change`."""
    if isinstance(server.endpoint, SiteEndpoint):
        return SiteConnection(server, limits=limits, formats=formats)
    return Connection(server, limits=limits, formats=formats, on_change=on_change)
