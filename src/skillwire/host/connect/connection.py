"""`Connection`: one MCP server, from which skills are listed, requested and read."""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Final, Self, TypeAlias, TypeVar, cast

import anyio
import anyio.abc
from mcp.client import Client
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.types import METHOD_NOT_FOUND
from mcp_types import (
    PromptListChangedNotification,
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    SubscribeRequest,
    SubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from skillwire.core import (
    MAX_TOTAL_SIZE,
    ArchiveFormat,
    Dialect,
    SkillEntry,
    SkillError,
    SkillUri,
    SourceError,
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
    Session,
    SharedCall,
    SharedCalls,
    declared,
    read_directory,
    read_resource,
    send_request,
    within,
)
from skillwire.host.connect.session import (
    client_for,
    connection_failure,
    describe_error,
    escape_sdk_logs,
    request_failure,
)
from skillwire.host.connect.site import SiteConnection
from skillwire.host.dialects.base import (
    NO_ARGUMENTS,
    Arguments,
    DialectClient,
    DialectMatch,
    DialectOptions,
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
from skillwire.wire.index import INDEX_URI

logger = logging.getLogger(__name__)

SKILLS_CHANGED: Final = "notifications/skills/list_changed"

_MAX_FAILURES = 10
_SUBSCRIBE_SECONDS = 30.0
_INDEXES = frozenset({Dialect.INDEX_JUNE, Dialect.INDEX_APRIL})


# Notifications that a server's skills changed, passed on at a limited rate.


class ChangeSignals:
    """Calls `on_change` when a server of either protocol generation reports changes of its listing.

    Which notifications count depends on the server's dialect: an update of the
    index, if it lists the skills; a change of the prompts, if these are skills;
    and always a change of the resources (HOST-19).
    """

    def __init__(self, on_change: Callable[[], None] | None, *, gap: float) -> None:
        self._on_change = on_change
        self._gap = gap
        self._changed = anyio.Event()
        self._dialect: Dialect | None = None
        self._dialect_changed = anyio.Event()

    def mark_changed(self) -> None:
        """Record that the listing changed, or may have."""
        self._changed.set()

    def set_dialect(self, dialect: Dialect) -> None:
        """Set the dialect of the server, which decides what to subscribe to."""
        is_other = _has_own_signals(dialect) or _has_own_signals(self._dialect)
        if is_other and dialect is not self._dialect:
            self._dialect_changed.set()
            self._dialect_changed = anyio.Event()
        self._dialect = dialect

    async def run_callbacks(self) -> None:
        """Call `on_change` after changes, with a pause after each call; runs until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            if self._on_change is not None:
                try:
                    self._on_change()
                except Exception:
                    logger.exception("the callback for changed listings failed")
            await anyio.sleep(self._gap)

    def receive_method(self, method: str) -> None:
        """Process the method of a notification, which the SDK may not know."""
        if method == SKILLS_CHANGED:
            self.mark_changed()

    async def receive(self, message: IncomingMessage) -> None:
        """Process a notification of a server, with or without a subscription."""
        if isinstance(message, ResourceListChangedNotification):
            self.mark_changed()
        elif isinstance(message, ResourceUpdatedNotification):
            if self._dialect in _INDEXES and str(message.params.uri) == INDEX_URI:
                self.mark_changed()
        elif isinstance(message, PromptListChangedNotification):
            if self._dialect is Dialect.PROMPT:
                self.mark_changed()

    async def listen(self, client: Client, backoff: Backoff) -> None:
        """Subscribe to changes if the server supports that; runs until cancelled.

        What is subscribed to depends on the dialect, which is known only after a
        listing. A refused or lost subscription does not affect the connection.
        """
        is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        while True:
            turned = self._dialect_changed
            async with anyio.create_task_group() as tasks:
                if is_modern:
                    tasks.start_soon(self._listen, client, backoff)
                elif self._dialect in _INDEXES:
                    tasks.start_soon(self._subscribe, client)
                await turned.wait()
                tasks.cancel_scope.cancel()

    async def _subscribe(self, client: Client) -> None:
        """Subscribe to changes of the index, on a server of the older generation."""
        resources = client.server_capabilities.resources
        if not (resources and resources.subscribe):
            return
        try:
            with within(_SUBSCRIBE_SECONDS, "resources/subscribe"):
                await send_request(client, SubscribeRequest(params=SubscribeRequestParams(uri=INDEX_URI)))
        except SkillError as error:
            logger.debug("the server refused the subscription to its index: %s", error)

    async def _listen(self, client: Client, backoff: Backoff) -> None:
        """Keep a stream of changes open; a lost one is opened again after a pause.

        Reopening counts as a change, because some may have been missed.
        """
        resources, prompts = client.server_capabilities.resources, client.server_capabilities.prompts
        of_resources = bool(resources and resources.list_changed)
        of_index = bool(resources and resources.subscribe) and self._dialect in _INDEXES
        of_prompts = bool(prompts and prompts.list_changed) and self._dialect is Dialect.PROMPT
        if not (of_resources or of_index or of_prompts):
            return
        is_first = True
        while backoff.failures < _MAX_FAILURES:
            try:
                async with client.listen(
                    resources_list_changed=of_resources,
                    prompts_list_changed=of_prompts,
                    resource_subscriptions=(INDEX_URI,) if of_index else (),
                ) as subscription:
                    if not is_first:
                        self.mark_changed()
                    is_first = False
                    opened = anyio.current_time()
                    async for _ in subscription:
                        # `receive` gets the same event and records it.
                        backoff.reset()
                    if anyio.current_time() - opened > backoff.max_delay:
                        backoff.reset()
            except ListenNotSupportedError:
                return
            except MCPError as error:
                if error.code == METHOD_NOT_FOUND:
                    return
            except (SubscriptionLost, TimeoutError):
                pass
            await anyio.sleep(backoff.record_failure())


def _has_own_signals(dialect: Dialect | None) -> bool:
    return dialect in _INDEXES or dialect is Dialect.PROMPT


T = TypeVar("T")


MAX_INSTRUCTIONS: Final = 64 * 1024

_CLOSE_SECONDS = 15.0
# Extra time for a listing that timed out to return the pages it has.
_PARTIAL_LISTING_SECONDS = 1.0


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
