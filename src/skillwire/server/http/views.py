"""`Views`: a server for each set of visible skills, over one catalog that is opened once.

A view contains only the skills that its callers may see. Every method of every
dialect, the page, the search and each notification use the view, so a skill that
is not visible cannot be distinguished from one that does not exist.
"""

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Final, TypeAlias

import anyio
import anyio.abc
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import INVALID_REQUEST, JSONRPCRequest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from skillwire.core import Dialect, JsonDict, SkillError, encode
from skillwire.server.access.visibility import VisibleSource, VisibleUnlistedSource
from skillwire.server.fast.asgi import FastPath, read_body, refuse, until
from skillwire.server.fast.hot import MODERN_VERSION
from skillwire.server.fast.requests import App, Message, Receive, Scope, Send
from skillwire.server.http.observe import is_tracing, note_method
from skillwire.server.messages import MalformedMessageError, not_initialized, parse_message
from skillwire.server.options import ServeOptions
from skillwire.server.outputs import Scripts
from skillwire.server.skills import Skills
from skillwire.server.standalone import SkillServer, skills_for_options, skills_from_sources
from skillwire.server.visibility import Visibility
from skillwire.server.wellknown.app import SiteApp
from skillwire.wire.execute import EXECUTE_METHOD

PATH: Final = "/mcp"
END_WATCH: Final = "skillwire.end_watch"
"""The scope key of the `EndWatch` for requests that may last long."""

EndWatch: TypeAlias = Callable[[], AbstractContextManager[anyio.Event]]
"""Watches a long request while the context is open; the event is set when the request must end."""

_LISTEN: Final = (b"mcp-method", b"subscriptions/listen")
_HANDSHAKE: Final = tuple(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
_ANY_NAME: Final = TransportSecuritySettings(enable_dns_rebinding_protection=False)


class Endpoint:
    """The ASGI application of one `SkillServer`.

    `asgi` is the application to call: the fast path first. The `Host` header and
    the caller have been checked before.
    """

    def __init__(self, skill_server: SkillServer, *, is_stateless: bool) -> None:
        self.skill_server = skill_server
        self._is_stateless = is_stateless
        self._stopping = anyio.Event()
        self._streams = 0
        skill_server.server.middleware.append(note_method)
        self._app = skill_server.server.streamable_http_app(
            streamable_http_path=PATH,
            # A client may refuse an event of more than 1 MiB, and a file may be larger.
            json_response=True,
            stateless_http=is_stateless,
            max_request_body_size=skill_server.options.message_bytes,
            # Without this, the SDK would choose the allowed hosts itself.
            transport_security=_ANY_NAME,
        )
        # Handlers get the caller, and a session belongs to the caller that began it.
        self._sdk: App = AuthContextMiddleware(self._app)
        # Runs take long: disconnection and progress need a stream instead of plain JSON.
        self._runs: StreamableHTTPSessionManager | None = None
        if skill_server.skills.scripts is not None:
            self._runs = StreamableHTTPSessionManager(
                skill_server.server,
                stateless=True,
                security_settings=_ANY_NAME,
                max_request_body_size=skill_server.options.message_bytes,
            )
        # With tracing, every request takes the path that makes spans.
        self.is_fast = skill_server.options.is_fast and not is_tracing()
        self._fast = FastPath(self.pass_to_sdk, skill_server.hot, path=PATH) if self.is_fast else None
        self.asgi: App = self.pass_to_sdk if self._fast is None else self._fast

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Serve while the context is open. The skills are opened too, unless they are open already.

        Raises:
            SkillError: The skills cannot be opened.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.skill_server.skills.open())
            if self._runs is not None:
                await stack.enter_async_context(self._runs.run())
            await stack.enter_async_context(self._app.router.lifespan_context(self._app))
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.asgi(scope, receive, send)

    @property
    def sessions(self) -> int:
        """The number of sessions of older clients, from a private attribute of the SDK."""
        return len(self.skill_server.server.session_manager._server_instances)  # pyright: ignore[reportPrivateUsage]

    @property
    def streams(self) -> int:
        """The number of open streams of change notifications."""
        return self._streams

    @property
    def cached_bytes(self) -> int:
        """The size of the cached answers in bytes."""
        ready = 0 if self._fast is None else self._fast.cached_bytes
        return ready + self.skill_server.skills.cached_bytes

    def end_streams(self) -> None:
        """Close the streams of change notifications."""
        self.skill_server.listen.close()
        self._stopping.set()

    async def pass_to_sdk(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the SDK."""
        # Whitespace around a header value is not part of it.
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        if self._is_stateless and scope["method"] in ("GET", "DELETE") and scope["path"] == PATH:
            return await refuse(send, 405, "This server has no sessions", {"allow": "POST"})
        is_stream = scope["method"] == "GET" or _LISTEN in headers
        self._streams += is_stream
        try:
            await self._watch({**scope, "headers": headers}, receive, send)
        finally:
            self._streams -= is_stream

    async def _watch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the SDK; end it early when the server stops or the caller loses access."""
        stopping = [self._stopping] if scope["method"] == "GET" else []
        end_watch: EndWatch | None = scope.get(END_WATCH)
        if end_watch is not None:
            with end_watch() as ended:
                await self._stream(scope, receive, send, *stopping, ended)
        elif stopping:
            await self._stream(scope, receive, send, *stopping)
        else:
            await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            most = self.skill_server.options.message_bytes
            body = await read_body(receive, most)
            if body is None:
                return  # The client disconnected.
            receive = body.again
            refusal = self._refusal(scope, body.content) if len(body.content) <= most else None
            if refusal is not None:
                return await _answer(send, 400, encode(refusal))
        if self._runs is not None and scope["path"] == PATH and _is_script_run(scope["headers"]):
            return await AuthContextMiddleware(self._runs.handle_request)(scope, receive, send)
        await self._sdk(scope, receive, send)

    def _refusal(self, scope: Scope, body: bytes) -> JsonDict | None:
        """Return the error for a malformed message, or a request that needs a session and has none."""
        try:
            message = parse_message(body)
        except MalformedMessageError as error:
            return error.response
        if self._is_stateless or not isinstance(message, JSONRPCRequest) or message.method == "initialize":
            return None
        headers = dict(scope["headers"])
        version = headers.get(b"mcp-protocol-version", _HANDSHAKE[-1])
        if b"mcp-session-id" in headers or version not in _HANDSHAKE:
            return None
        error = {"code": INVALID_REQUEST, "message": not_initialized(message.method)}
        return {"jsonrpc": "2.0", "id": message.id, "error": error}

    async def _stream(self, scope: Scope, receive: Receive, send: Send, *ends: anyio.Event) -> None:
        """Serve a request that may last; when one of `ends` is set, complete the response."""
        is_unfinished = False

        async def tracking_send(message: Message) -> None:
            nonlocal is_unfinished
            is_unfinished = message["type"] == "http.response.start" or bool(message.get("more_body"))
            await send(message)

        await self._pass_on(scope, until(ends, receive), tracking_send)
        if is_unfinished:
            await send({"type": "http.response.body", "body": b""})


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _is_script_run(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a modern client asks to run a script and accepts a stream."""
    found = dict(headers)
    return (
        found.get(b"mcp-protocol-version") == MODERN_VERSION.encode()
        and found.get(b"mcp-method") == EXECUTE_METHOD.encode()
        and b"text/event-stream" in found.get(b"accept", b"").lower()
    )


# `Views`: the skills that callers with certain rights see, each with an endpoint.


VIEWS_BYTES: Final = 512 * 1024 * 1024
"""The memory limit of all views of a process; idle views are closed to stay below it."""

# The memory of a new view: measured with full-text search and four dialects, and rounded up.
_VIEW_BYTES: Final = 384 * 1024
_SKILL_BYTES: Final = 1024
_CHECK_SECONDS: Final = 5.0
_DRAIN_SECONDS: Final = 5.0

logger = logging.getLogger(__name__)


class TooManyViewsError(SkillError):
    """The memory limit is reached, and all views are answering requests."""


class View:
    """The server for callers that may see the same skills.

    `skills` are the visible skills, and `site` is the web site of the dialect
    `well-known`.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.skills: Skills = endpoint.skill_server.skills
        is_site = Dialect.WELL_KNOWN in self.skills.dialects
        self.site = SiteApp(self.skills) if is_site else None
        self._requests = 0
        self._closing = anyio.Event()
        self._drained = anyio.Event()

    @property
    def is_answering(self) -> bool:
        """Whether a request is being answered, not counting streams of changes."""
        return self._requests > self.endpoint.streams

    @property
    def has_outputs(self) -> bool:
        """Whether outputs of scripts are stored that callers can still read."""
        scripts = self.skills.scripts
        if scripts is None:
            return False
        scripts.outputs.expire()
        return len(scripts.outputs) > 0

    @property
    def size(self) -> int:
        """The estimated memory of this view in bytes."""
        if self.skills.state is None:
            return _VIEW_BYTES  # It has failed and is being removed.
        kept = self.endpoint.cached_bytes + (0 if self.site is None else self.site.cached_bytes)
        snapshot = self.skills.source.snapshot
        return _VIEW_BYTES + (0 if snapshot.is_stored else _SKILL_BYTES * len(snapshot.entries)) + kept

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Count a request while the context is open."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests and self._closing.is_set():
                self._drained.set()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Serve until closed; a failure ends this view alone."""
        is_open = False
        try:
            async with self.endpoint.open():
                is_open = True
                task_status.started()
                await self._closing.wait()
                self.endpoint.end_streams()
                await self._drain()
        except Exception:
            if not is_open:
                raise  # `Views.view` reports it.
            logger.exception("a view of the skills failed unexpectedly")

    def close(self) -> None:
        """Close the streams, then stop serving; later requests get a new view."""
        self._closing.set()

    async def _drain(self) -> None:
        """Wait until all streams are closed."""
        if self._requests:
            with anyio.move_on_after(_DRAIN_SECONDS):
                await self._drained.wait()


class SingleView:
    """The only view of a server where all callers see the same skills."""

    def __init__(self, one: View) -> None:
        self.one = one
        self.skills = one.skills

    def __len__(self) -> int:
        return 1

    @property
    def sessions(self) -> int:
        """The number of sessions of older clients."""
        return self.one.endpoint.sessions

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Serve while the context is open.

        Raises:
            SkillError: The skills cannot be opened.
        """
        async with self.one.endpoint.open():
            yield

    def known(self, visibility: Visibility) -> View:
        return self.one

    async def view(self, visibility: Visibility) -> View:
        return self.one

    def end_streams(self) -> None:
        self.one.endpoint.end_streams()


class Views:
    """The views of one server, opened on first use, and closed to stay within `limit` bytes.

    Views without outputs of scripts are closed first, of them those without
    sessions, and of these those without streams; among equals the least recently
    used one. MCP clients open another stream or session when one ends, but outputs
    are lost. A view that is answering a request is never closed.
    `skills` are all skills, for metrics and health checks.
    """

    def __init__(
        self,
        options: ServeOptions,
        new_endpoint: Callable[[SkillServer], Endpoint],
        *,
        limit: int = VIEWS_BYTES,
    ) -> None:
        # Never used for answers, so dialects and search are not needed.
        self.skills = skills_for_options(replace(options, dialect=(), find=False))
        self._options = options
        self._new_endpoint = new_endpoint
        self._limit = limit
        self._views: OrderedDict[Visibility, View] = OrderedDict()
        self._opening = anyio.Lock()
        self._closing = anyio.Event()
        self._group: anyio.abc.TaskGroup | None = None

    def __len__(self) -> int:
        return len(self._views)

    @property
    def sessions(self) -> int:
        """The number of sessions of older clients."""
        return sum(view.endpoint.sessions for view in self._views.values())

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Serve while the context is open.

        Raises:
            SkillError: The skills cannot be opened.
        """
        async with self.skills.open(), anyio.create_task_group() as group:
            self._group = group
            group.start_soon(self._keep_within_limit)
            if self._options.find and self.skills.source.snapshot.is_stored:
                await self.skills.search.prepare(self.skills.source.snapshot)
            try:
                yield
            finally:
                self._closing.set()
                for view in self._views.values():
                    view.close()
                self._views.clear()
                self._group = None

    def known(self, visibility: Visibility) -> View | None:
        """Return the open view for a visibility, if any."""
        view = self._views.get(visibility)
        if view is not None:
            self._views.move_to_end(visibility)
        return view

    async def view(self, visibility: Visibility) -> View:
        """Return the view for a visibility, opening it if needed.

        Raises:
            TooManyViewsError: The memory limit is reached, and all views are answering requests.
        """
        view = self.known(visibility)
        if view is not None:
            return view
        async with self._opening:
            view = self.known(visibility)
            if view is None:
                self._evict_views(_VIEW_BYTES)
                view = View(self._new_endpoint(SkillServer(self._options, self._part(visibility))))
                assert self._group is not None, "called only while open"
                await self._group.start(self._run, visibility, view)
                self._views[visibility] = view
        return view

    def end_streams(self) -> None:
        """Close the streams of change notifications."""
        for view in self._views.values():
            view.endpoint.end_streams()

    async def _run(
        self, visibility: Visibility, view: View, *, task_status: anyio.abc.TaskStatus[None]
    ) -> None:
        try:
            await view.run(task_status=task_status)
        finally:
            if self._views.get(visibility) is view:
                del self._views[visibility]  # It failed; the next request opens another.

    def _part(self, visibility: Visibility) -> Skills:
        catalog, scripts = self.skills.source, self.skills.scripts
        runner = None if scripts is None or not visibility.runnable else scripts.runner
        runs = None if runner is None else Scripts(runner, may_run=visibility.may_run)
        listed = VisibleSource(catalog, visibility)
        if catalog.snapshot.is_stored:
            return skills_from_sources(self._options, [listed], runs, self.skills.search)
        if not self.skills.has_unlisted:
            return skills_from_sources(self._options, [listed], runs)
        return skills_from_sources(self._options, [listed, VisibleUnlistedSource(catalog, visibility)], runs)

    async def _keep_within_limit(self) -> None:
        """Close views whenever their caches exceed the limit, until this closes."""
        while not self._closing.is_set():
            with suppress(TooManyViewsError):
                self._evict_views(0)
            with anyio.move_on_after(_CHECK_SECONDS):
                await self._closing.wait()

    def _evict_views(self, size: int) -> None:
        """Close views until `size` bytes are free; a single view may exceed the limit.

        Raises:
            TooManyViewsError: The remaining views are answering requests.
        """
        used = size + sum(view.size for view in self._views.values())
        while used > self._limit and len(self._views) > (size == 0):
            idle = [visibility for visibility, view in self._views.items() if not view.is_answering]
            if not idle:
                raise TooManyViewsError(
                    "Too many callers with different access rights at the moment. Try again later."
                )
            # Among equals, the first is the least recently used.
            view = self._views.pop(min(idle, key=self._eviction_key))
            used -= view.size
            view.close()

    def _eviction_key(self, visibility: Visibility) -> tuple[bool, bool, bool]:
        """Return the order in which views are closed, the smallest first."""
        view = self._views[visibility]
        return view.has_outputs, view.endpoint.sessions > 0, view.endpoint.streams > 0
