"""`HttpApp`: everything there is under one address, and who is let in.

`/mcp` is for clients, `/` for people, `/.well-known/` for both, and `/healthz`,
`/readyz` and `/metrics` for who runs the server. A request is judged before
anything is looked up for it: whether it comes under a name of this server, who
sent it, and what they may see. A view of exactly that answers (`views.py`).
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

from skillwire.errors import CredentialError
from skillwire.server.access.admission import Admission, Admitted
from skillwire.server.access.caller import ANONYMOUS, Caller
from skillwire.server.access.metadata import BASIC_CHALLENGE, challenge, metadata, metadata_paths, status_of
from skillwire.server.access.rates import Rates
from skillwire.server.access.settings import Access
from skillwire.server.access.sight import ALL
from skillwire.server.access.standing import Standing
from skillwire.server.asgi import App, FastPath, Receive, Scope, Send
from skillwire.server.endpoint import HOLD, PATH, Endpoint
from skillwire.server.names import Names
from skillwire.server.ops.health import ALIVE_PATH, METRICS_PATH, READY_PATH, Health
from skillwire.server.ops.metrics import Meter
from skillwire.server.ops.observing import note
from skillwire.server.ops.peers import Proxies
from skillwire.server.ops.series import Gauge
from skillwire.server.page import PageApp
from skillwire.server.protocol.limits import ConnectionCounts
from skillwire.server.refusing import refuse
from skillwire.server.skills import Skills
from skillwire.server.standalone import Offer, Standalone
from skillwire.server.views import OneView, TooManyViewsError, View, Views
from skillwire.wire.wellknown import SITE_PATH

_READING = ("GET", "HEAD")
_EVERYONE = Admitted(ANONYMOUS, ALL)

logger = logging.getLogger(__name__)


class HttpApp:
    """The ASGI application of a server: what `access` lets anyone see of `offer`.

    Requests must come under a name of this server (`names.py`): `host` is what it
    listens on, and `access.public_url` how others know it.
    """

    def __init__(
        self,
        offer: Offer,
        *,
        host: str,
        access: Access | None = None,
        is_stateless: bool = False,
        proxies: Proxies | None = None,
        meter: Meter | None = None,
        connections: ConnectionCounts | None = None,
    ) -> None:
        self.access = access or Access()
        self.meter = meter or Meter()
        self._connections = connections or ConnectionCounts()
        self._proxies = proxies or Proxies()
        self._health = Health(self.meter, self._hindrance, lambda: self.meter.refresh(self._gauges()))
        self._names = Names(host, self.access.public_url)
        # The web site is for pages of any origin, unless it is for some callers or this machine only.
        self._is_site_everyones = self.access.is_open and self._names.is_exposed
        new_endpoint = partial(Endpoint, is_stateless=is_stateless)
        self._admission: Admission | None = None
        if not self.access.is_open:
            self._admission = Admission(
                self.access, on_change=lambda is_good: self.meter.reloaded(is_good=is_good)
            )
        self._rates = None if self.access.rate is None else Rates(self.access.rate)
        self._metadata_paths = metadata_paths(self.access)
        self._standing = Standing()
        self._page = PageApp()
        self._is_open = False
        # Where everyone is served the same, what answers at `/mcp`.
        self._everyone: App | None = None
        if self._admission is not None:
            self._views: Views | OneView = Views(offer, new_endpoint)
        else:
            self._views = OneView(View(new_endpoint(Standalone(offer))))
            if self._rates is None:
                self._everyone = self._views.one.endpoint.asgi

    @property
    def skills(self) -> Skills:
        """Everything that is served, to whomever."""
        return self._views.skills

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["HttpApp"]:
        """Serve meanwhile.

        Raises:
            SkillError: The skills, or a file about who may see them, cannot be opened.
        """
        async with AsyncExitStack() as stack:
            if self._admission is not None:
                await stack.enter_async_context(self._admission)
            await stack.enter_async_context(self._views.open())
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            if self._admission is not None:
                group.start_soon(self._standing.keep_checking)
            group.start_soon(self.meter.keep_fresh, self._gauges)
            stack.callback(self.meter.leave)
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
        """Look at the files about who may see what again."""
        if self._admission is not None:
            self._admission.reload()

    def fronted(self, observed: App) -> App:
        """Return what to call instead of `observed`, which is this application and who observes it.

        Where everyone is served the same, that gives ready answers before anything else, and counts them.
        """
        if self._everyone is None or not isinstance(self._views, OneView):
            return observed
        endpoint = self._views.one.endpoint
        if not endpoint.is_fast:
            return observed
        self._everyone = endpoint.plain  # What is not ready is not looked for twice.
        hot, judge = endpoint.standalone.hot, self._names.judged
        return FastPath(observed, hot, path=PATH, judge=judge, meter=self.meter)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == PATH and self._everyone is not None:
            refusal = self._names.refusal(scope["headers"])
            if refusal is not None:
                return await refuse(send, *refusal)
            return await self._everyone(scope, receive, send)
        if path in (ALIVE_PATH, READY_PATH):
            return await self._health.respond(Request(scope))(scope, receive, send)
        if path in self._metadata_paths:
            return await self._tell_metadata(scope, receive, send)
        is_site = path.startswith(SITE_PATH)
        refusal = self._names.refusal(scope["headers"], is_for_any_page=is_site and self._is_site_everyones)
        if refusal is not None:
            return await refuse(send, *refusal)
        is_for_people = path != PATH
        admitted = await self._admitted(scope, send, is_for_people=is_for_people)
        if admitted is None:
            return
        try:
            view = self._views.known(admitted.sight) or await self._views.view(admitted.sight)
        except TooManyViewsError as error:
            return await refuse(send, 503, str(error), {"retry-after": "5"})
        with view.in_use():
            await self._answer(view, admitted, scope, receive, send)

    async def _answer(
        self, view: View, admitted: Admitted, scope: Scope, receive: Receive, send: Send
    ) -> None:
        path = scope["path"]
        if path == PATH:
            return await self._pass_on(view, admitted, scope, receive, send)
        request = Request(scope)
        if path.startswith(SITE_PATH) and view.site is not None:
            response = await view.site.respond(request, is_private=self._admission is not None)
        elif path == METRICS_PATH and admitted.sight.operates:
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
            return await refuse(send, 404, "There is nothing here")
        await response(scope, receive, send)

    async def _pass_on(
        self, view: View, admitted: Admitted, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Let a view answer at `/mcp`, and see to it that nothing outlasts the right to it."""
        admission = self._admission
        if admission is None:
            return await view.endpoint.asgi(scope, receive, send)
        if not admitted.caller.is_anonymous:
            scope["user"] = _user(admitted.caller)
        again = partial(admission.admit, _authorization(scope))
        scope[HOLD] = partial(self._standing.hold, admitted, again)
        await view.endpoint.asgi(scope, receive, send)

    async def _admitted(self, scope: Scope, send: Send, *, is_for_people: bool) -> Admitted | None:
        """Find out who asks; None when they were told that they are not let in."""
        admitted: Admitted | None = _EVERYONE
        if self._admission is not None:
            authorization = _authorization(scope)
            admitted = self._admission.recall(authorization, basic=is_for_people)
            try:
                if admitted is None:
                    # What a stranger makes us look at costs more than what we have seen before.
                    if await self._is_too_fast(self._address(scope), send):
                        return None
                    admitted = await self._admission.admit(authorization, basic=is_for_people)
            except CredentialError as error:
                await self._send_away(error, send, is_for_people=is_for_people)
                return None
        caller = admitted.caller
        note(scope, caller=caller.name)
        name = self._address(scope) if caller.is_anonymous else caller.name
        return None if await self._is_too_fast(name, send) else admitted

    async def _is_too_fast(self, name: str, send: Send) -> bool:
        wait = 0.0 if self._rates is None else self._rates.take(name)
        if wait:
            self.meter.limited()
            await refuse(send, 429, "Too many requests", {"retry-after": str(max(1, round(wait + 0.5)))})
        return bool(wait)

    async def _send_away(self, error: CredentialError, send: Send, *, is_for_people: bool) -> None:
        status = status_of(error)
        if status == 503:
            return await refuse(send, status, "Credentials cannot be checked now", {"retry-after": "5"})
        told = challenge(self.access, error)
        if is_for_people and status == 401:
            told = f"{BASIC_CHALLENGE}, {told}"
        await refuse(send, status, "A credential is needed that is good here", {"www-authenticate": told})

    def _address(self, scope: Scope) -> str:
        """Return who asks as far as only the connection tells; no caller has such a name."""
        return f"address {self._proxies.address_of(scope)}"

    def _hindrance(self) -> str:
        return "" if self._is_open else "stopping"

    def _gauges(self) -> dict[Gauge, float]:
        snapshot = self.skills.catalog.snapshot
        return {
            "revision": snapshot.revision,
            "skills": len(snapshot.entries),
            "quarantined": len(snapshot.quarantined),
            "watchers": sum(getattr(source, "is_watched", False) for source in self.skills.catalog.sources),
            "views": len(self._views),
            "sessions": self._views.sessions,
            "connections": self._connections.open,
        }

    async def _tell_metadata(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell where to get a credential; anyone may ask, from pages of any origin."""
        if scope["method"] not in _READING:
            return await refuse(
                send, 405, "Only GET and HEAD are answered here", {"allow": ", ".join(_READING)}
            )
        headers = {"access-control-allow-origin": "*", "cache-control": "public, max-age=3600"}
        await JSONResponse(metadata(self.access), headers=headers)(scope, receive, send)


def _authorization(scope: Scope) -> bytes | None:
    """Return what a request shows for itself; a second one makes it worthless."""
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    return b", ".join(found) if found else None


@lru_cache(maxsize=1024)
def _user(caller: Caller) -> AuthenticatedUser:
    """Tell the SDK who asks; the credential itself stays outside."""
    return AuthenticatedUser(
        AccessToken(
            token="",
            client_id=caller.name,
            scopes=sorted(caller.scopes),
            subject=caller.subject or None,
            claims={"iss": caller.issuer} if caller.issuer else None,
        )
    )
