"""`HttpApp`: all paths of a server, and who may use them.

`/mcp` is for clients, `/` for people, `/.well-known/` for both, `/catalog/` for
publishers, and `/healthz`, `/readyz` and `/metrics` for operators. Before anything is looked up for a
request, its `Host` and `Origin` are checked, and its caller is authenticated. A
view of exactly what the caller may see answers (`views.py`).
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import lru_cache, partial

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.requests import Request
from starlette.responses import JSONResponse

from skillwire.core import SITE_PATH, CredentialError
from skillwire.server.access.admission import Admission, AdmittedCaller, LiveGrants, RateLimiter
from skillwire.server.access.settings import (
    ANONYMOUS,
    BASIC_CHALLENGE,
    AccessSettings,
    Caller,
    challenge,
    metadata,
    metadata_paths,
    status_of,
)
from skillwire.server.fast.asgi import FastPath, refuse
from skillwire.server.fast.requests import App, Receive, Scope, Send
from skillwire.server.hosts import AllowedHosts
from skillwire.server.http.catalog import CATALOG_PATH, PublishingApp
from skillwire.server.http.observe import note
from skillwire.server.http.views import END_WATCH, PATH, Endpoint, SingleView, TooManyViewsError, View, Views
from skillwire.server.limits import ConnectionCounts
from skillwire.server.ops.metrics import HEALTH_PATHS, METRICS_PATH, Gauge, Health, WorkerMetrics
from skillwire.server.ops.peers import Proxies
from skillwire.server.options import ServeOptions
from skillwire.server.page import PageApp
from skillwire.server.skills import Skills
from skillwire.server.standalone import SkillServer
from skillwire.server.visibility import ALL

_READING = ("GET", "HEAD")
_PATH_WITH_SLASH = f"{PATH}/"
_EVERYONE = AdmittedCaller(ANONYMOUS, ALL)

logger = logging.getLogger(__name__)


class HttpApp:
    """The ASGI application of a server.

    The `Host` header of a request must be a name of this server (`names.py`):
    that of `host`, on which it listens, or of `access.public_url`.
    """

    def __init__(
        self,
        options: ServeOptions,
        *,
        host: str,
        access: AccessSettings | None = None,
        is_stateless: bool = False,
        proxies: Proxies | None = None,
        meter: WorkerMetrics | None = None,
        connections: ConnectionCounts | None = None,
    ) -> None:
        self.access = access or AccessSettings()
        self.meter = meter or WorkerMetrics()
        self._connections = connections or ConnectionCounts()
        self._proxies = proxies or Proxies()
        self._health = Health(
            self.meter,
            self._unready_reason,
            lambda: self.meter.refresh(self._gauges()),
            self._catalog_state,
        )
        self._allowed_hosts = AllowedHosts(host, self.access.public_url)
        # Pages of any origin may read the web site, unless it is for some callers or this machine only.
        self._is_site_public = self.access.is_open and self._allowed_hosts.is_exposed
        new_endpoint = partial(Endpoint, is_stateless=is_stateless)
        self._admission: Admission | None = None
        if not self.access.is_open:
            self._admission = Admission(
                self.access, on_change=lambda is_good: self.meter.reloaded(is_good=is_good)
            )
        # Separate, so that many unknown callers do not use up the buckets of known ones.
        self._limiter = _rate_limiter(self.access)
        self._address_limiter = _rate_limiter(self.access)
        self._metadata_paths = metadata_paths(self.access)
        self._standing = LiveGrants()
        self._page = PageApp(name=options.server_name)
        self._is_stateless = is_stateless
        self._is_open = False
        self._open_publishing = options.publishing
        self._publishing: PublishingApp | None = None
        # What answers at `/mcp` when every caller is served the same.
        self._everyone: App | None = None
        if self._admission is not None:
            self._views: Views | SingleView = Views(options, new_endpoint)
        else:
            self._views = SingleView(View(new_endpoint(SkillServer(options))))
            if self._limiter is None:
                self._everyone = self._views.one.endpoint.asgi

    @property
    def skills(self) -> Skills:
        """Everything that is served, to any caller."""
        return self._views.skills

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["HttpApp"]:
        """Serve while the context is open.

        Raises:
            SkillError: The skills, or a file about access, cannot be opened.
        """
        async with AsyncExitStack() as stack:
            if self._admission is not None:
                await stack.enter_async_context(self._admission)
                if self._open_publishing is not None:
                    catalog = await stack.enter_async_context(self._open_publishing())
                    self._publishing = PublishingApp(catalog, self._standing)
            await stack.enter_async_context(self._views.open())
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            if self._admission is not None:
                group.start_soon(self._standing.keep_checking)
            group.start_soon(self.meter.keep_fresh, self._gauges)
            stack.callback(self.meter.mark_stopped)
            self._is_open = True
            try:
                yield self
            finally:
                self._is_open = False

    def end_streams(self) -> None:
        """End the streams that would otherwise stay open for as long as their clients do."""
        self._is_open = False
        self._views.end_streams()

    def reload(self) -> None:
        """Read the files about access again."""
        if self._admission is not None:
            self._admission.reload()

    def reconfigure(self, access: AccessSettings) -> None:
        """Use other tokens, rules and rates from now on.

        Raises:
            AccessError: A file cannot be used. Nothing is changed then.
        """
        if self._admission is not None:
            self._admission.reconfigure(access)
        if access.rate != self.access.rate:
            self._limiter, self._address_limiter = _rate_limiter(access), _rate_limiter(access)
        self.access = access

    def with_fast_path(self, observed: App) -> App:
        """Return what to call instead of `observed`, which is this application with metrics and logs.

        Where every caller is served the same, the fast path sends prepared answers first, and counts them.
        """
        if self._everyone is None or not isinstance(self._views, SingleView):
            return observed
        endpoint = self._views.one.endpoint
        if not endpoint.is_fast:
            return observed
        self._everyone = endpoint.pass_to_sdk  # The fast path in front has looked for prepared answers.
        hot, check_host = endpoint.skill_server.hot, self._allowed_hosts.check
        return FastPath(observed, hot, path=PATH, check_host=check_host, meter=self.meter)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == PATH and self._everyone is not None:
            refusal = self._allowed_hosts.refusal(scope["headers"])
            if refusal is not None:
                return await refuse(send, *refusal)
            if scope["method"] in _READING and _is_browser(scope):
                return await self._explain_endpoint(scope, receive, send)
            return await self._everyone(scope, receive, send)
        if path in HEALTH_PATHS:
            return await self._health.respond(Request(scope))(scope, receive, send)
        if path in self._metadata_paths:
            return await self._send_metadata(scope, receive, send)
        is_site = path.startswith(SITE_PATH)
        refusal = self._allowed_hosts.refusal(
            scope["headers"], is_for_any_page=is_site and self._is_site_public
        )
        if refusal is not None:
            return await refuse(send, *refusal)
        is_publishing = self._publishing is not None and path.startswith(CATALOG_PATH)
        is_for_people = path != PATH and not is_publishing
        if path in (PATH, _PATH_WITH_SLASH) and scope["method"] in _READING and _is_browser(scope):
            if is_for_people:
                return await refuse(send, 307, f"See {PATH}", {"location": f"..{PATH}"})
            return await self._explain_endpoint(scope, receive, send)
        admitted = await self._admitted(scope, send, is_for_people=is_for_people)
        if admitted is None:
            return
        if is_publishing:
            return await self._publish(admitted, scope, receive, send)
        try:
            view = self._views.known(admitted.of_view) or await self._views.view(admitted.of_view)
        except TooManyViewsError as error:
            return await refuse(send, 503, str(error), {"retry-after": "5"})
        with view.in_use():
            await self._answer(view, admitted, scope, receive, send)

    async def _answer(
        self, view: View, admitted: AdmittedCaller, scope: Scope, receive: Receive, send: Send
    ) -> None:
        path = scope["path"]
        if path == PATH:
            return await self._pass_on(view, admitted, scope, receive, send)
        await view.skills.catch_up()
        request = Request(scope)
        if path.startswith(SITE_PATH) and view.site is not None:
            response = await view.site.respond(request, is_private=self._admission is not None)
        elif path == METRICS_PATH and admitted.visibility.can_operate:
            response = self._health.respond(request)
        elif self._page.owns(path):
            response = await self._page.respond(
                request,
                view.skills,
                public_url=self.access.public_url,
                caller="" if admitted.caller.is_anonymous else admitted.caller.name,
                is_private=self._admission is not None,
            )
        else:
            return await refuse(send, 404, "Not found")
        await response(scope, receive, send)

    async def _pass_on(
        self, view: View, admitted: AdmittedCaller, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Forward a request at `/mcp` to a view, and end long requests when the caller's access ends."""
        admission = self._admission
        if admission is None:
            return await view.endpoint.asgi(scope, receive, send)
        if not admitted.caller.is_anonymous:
            scope["user"] = _user(admitted.caller)
        again = partial(admission.admit, _authorization(scope))
        scope[END_WATCH] = partial(self._standing.track, admitted, again)
        await view.endpoint.asgi(scope, receive, send)

    async def _publish(self, admitted: AdmittedCaller, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._publishing is not None and self._admission is not None
        readmit = partial(self._admission.admit, _authorization(scope))
        try:
            await self._publishing.respond(scope, receive, send, admitted, readmit)
        except CredentialError as error:
            await self._refuse_credential(error, send, is_for_people=False)

    async def _admitted(self, scope: Scope, send: Send, *, is_for_people: bool) -> AdmittedCaller | None:
        """Return the caller and what it may see; None when the request was refused."""
        admitted: AdmittedCaller | None = _EVERYONE
        if self._admission is not None:
            authorization = _authorization(scope)
            admitted = self._admission.cached_result(authorization, basic=is_for_people)
            try:
                if admitted is None:
                    # Checking a new credential costs more than recalling a known one.
                    if await self._is_address_rate_limited(scope, send):
                        return None
                    admitted = await self._admission.admit(authorization, basic=is_for_people)
            except CredentialError as error:
                await self._refuse_credential(error, send, is_for_people=is_for_people)
                return None
        caller = admitted.caller
        note(scope, caller=caller.name)
        if caller.is_anonymous:
            is_limited = await self._is_address_rate_limited(scope, send)
        else:
            is_limited = await self._is_rate_limited(self._limiter, caller.name, send)
        return None if is_limited else admitted

    async def _is_address_rate_limited(self, scope: Scope, send: Send) -> bool:
        """Count a request of a caller that is known by its address alone."""
        if self._address_limiter is None:
            return False
        return await self._is_rate_limited(self._address_limiter, self._proxies.client_of(scope), send)

    async def _is_rate_limited(self, limiter: RateLimiter | None, name: str, send: Send) -> bool:
        wait = 0.0 if limiter is None else limiter.take(name)
        if wait:
            self.meter.limited()
            await refuse(send, 429, "Too many requests", {"retry-after": str(max(1, round(wait + 0.5)))})
        return bool(wait)

    async def _refuse_credential(self, error: CredentialError, send: Send, *, is_for_people: bool) -> None:
        status = status_of(error)
        if status == 503:
            return await refuse(
                send,
                status,
                "Credentials cannot be verified at the moment. Try again later.",
                {"retry-after": "5"},
            )
        challenges = challenge(self.access, error)
        if is_for_people and status == 401:
            challenges = f"{BASIC_CHALLENGE}, {challenges}"
        await refuse(send, status, "A valid access token is required.", {"www-authenticate": challenges})

    def _unready_reason(self) -> str:
        return "" if self._is_open else "stopping"

    def _catalog_state(self) -> str:
        """Return which revision of a catalog is served, and how far it is behind."""
        state = self.skills.source.shared_state
        if state is None:
            return ""
        answered = f"answered {state.silent_seconds:.1f} s ago"
        return f"catalog revision {state.revision}, {state.behind} behind, {answered}"

    def _gauges(self) -> dict[Gauge, float]:
        snapshot, shared = self.skills.source.snapshot, self.skills.source.shared_state
        return {
            "revision": snapshot.revision,
            "skills": len(snapshot.entries),
            "quarantined": len(snapshot.quarantined),
            "watchers": sum(getattr(source, "is_watched", False) for source in self.skills.source.sources),
            "catalog_lag": 0 if shared is None else shared.behind,
            "catalog_silence": 0 if shared is None else shared.silent_seconds,
            "views": len(self._views),
            "sessions": self._views.sessions,
            "connections": self._connections.open,
        }

    async def _explain_endpoint(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a browser's GET at `/mcp` with an explanation and the status of a GET without a session."""
        status = 405 if self._is_stateless else 406
        response = await self._page.explain_endpoint(
            Request(scope),
            public_url=self.access.public_url,
            status=status,
            is_private=self._admission is not None,
        )
        if status == 405:
            response.headers["allow"] = "POST"
        await response(scope, receive, send)

    async def _send_metadata(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the protected resource metadata, to any caller and any origin."""
        if scope["method"] not in _READING:
            return await refuse(send, 405, "Only GET and HEAD are allowed", {"allow": ", ".join(_READING)})
        headers = {"access-control-allow-origin": "*", "cache-control": "public, max-age=3600"}
        await JSONResponse(metadata(self.access), headers=headers)(scope, receive, send)


def _rate_limiter(access: AccessSettings) -> RateLimiter | None:
    return None if access.rate is None else RateLimiter(access.rate)


def _authorization(scope: Scope) -> bytes | None:
    """Return the credential of a request; several are joined, and thereby invalid."""
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    return b", ".join(found) if found else None


def _is_browser(scope: Scope) -> bool:
    """Return whether a request accepts a page, and neither a stream nor an answer of a session."""
    accepts_page = accepts_stream = False
    for name, value in scope["headers"]:
        if name == b"mcp-session-id":
            return False
        if name == b"accept":
            accepts_page = accepts_page or b"text/html" in value.lower()
            accepts_stream = accepts_stream or b"text/event-stream" in value.lower()
    return accepts_page and not accepts_stream


@lru_cache(maxsize=1024)
def _user(caller: Caller) -> AuthenticatedUser:
    """Return the caller as the SDK knows callers, without the credential."""
    return AuthenticatedUser(
        AccessToken(
            token="",
            client_id=caller.name,
            scopes=sorted(caller.scopes),
            subject=caller.subject or None,
            claims={"iss": caller.issuer} if caller.issuer else None,
        )
    )
