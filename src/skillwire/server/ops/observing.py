"""`Observed`: the outermost layer of the application. It measures every request, and names it."""

import re
import secrets
import time
from collections.abc import Awaitable, Mapping
from contextlib import nullcontext
from typing import Any, Final

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from opentelemetry.trace import INVALID_SPAN

from skillwire.server.asgi import App, Message, Receive, Scope, Send
from skillwire.server.ops.accesslog import AccessLog, Line
from skillwire.server.ops.metrics import Meter
from skillwire.server.ops.peers import Proxies
from skillwire.server.ops.series import MCP_METHODS, METHOD_NUMBERS, METHODS, OTHER, STREAM, Outcome
from skillwire.server.ops.tracing import finish_span, request_span, trace_id_of

KEY: Final = "skillwire.request"
"""Where the layers inside find the request that is being measured."""

_OTHER: Final = METHOD_NUMBERS[OTHER]
# The methods whose answers last until their clients leave.
_LASTING: Final = frozenset({METHOD_NUMBERS[STREAM], METHOD_NUMBERS["subscriptions/listen"]})
_BY_HEADER: Final = {method.encode(): METHOD_NUMBERS[method] for method in MCP_METHODS}
_WELL_KNOWN: Final = "/.well-known/"
_ROUTES: Final = {"/healthz": "health", "/readyz": "health", "/metrics": "metrics"}
_VERBS: Final = {"GET": STREAM, "DELETE": "end-session"}
_SANE_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")
# How an error begins, in an answer that HTTP calls good. In the id every quote is escaped.
_ERROR: Final = re.compile(
    rb'\{"jsonrpc":"2\.0","id":(?:[0-9-]{1,32}|null|"(?:[^"\\]|\\.){0,256}"),"error":\{"code":(-?\d{1,9})'
)
_ERROR_MARK: Final = b',"error":{"code":'
# Our own are far shorter, and results often longer.
_LONGEST_ERROR: Final = 2048
_INTERNAL: Final = b"-32603"
_REFUSALS: Final = frozenset({401, 403, 429})


class Request:
    """One request while it is answered: stands between the application and who asked."""

    # Most requests change none of these, and an attribute of the class costs nothing to make.
    id = b""
    status = 0
    size = 0
    code = b""
    caller = ""
    is_complete = False
    is_stream = False

    def __init__(self, send: Send, meter: Meter, method: int) -> None:
        self._send = send
        self._meter = meter
        self.method = method

    def send(self, message: Message) -> Awaitable[None]:
        """Look at a part of the answer, and pass it on."""
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            if not message.get("more_body", False):
                self.is_complete = True
                if len(body) <= _LONGEST_ERROR and _ERROR_MARK in body and not self.size:
                    error = _ERROR.match(body)
                    self.code = error[1] if error is not None else b""
            self.size += len(body)
        elif message["type"] == "http.response.start":
            self.status = message["status"]
            if self.id:
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.id)]
            if self.method in _LASTING and self.status == 200:
                self.is_stream = True
                self._meter.streams += 1
        return self._send(message)

    def outcome(self) -> Outcome:
        """Return how it ended."""
        status = self.status
        if status == 200 and self.is_complete and not self.code:
            return "ok"
        if status >= 500 or self.code == _INTERNAL:
            return "failed"
        if status in _REFUSALS:
            return "refused"
        if status >= 400:
            return "invalid"
        if not self.is_complete:
            # A stream has no other end than that its client leaves.
            return "ok" if self.is_stream else "aborted"
        return "error" if self.code else "ok"


class Observed:
    """Counts what `app` answers. With a log, each request has an id, which its answer carries too.

    Stands outside everything else, so that refusals are seen like answers.
    """

    def __init__(
        self,
        app: App,
        meter: Meter,
        *,
        path: str,
        log: AccessLog | None = None,
        proxies: Proxies | None = None,
        spans: bool = False,
    ) -> None:
        """Observe an application whose MCP endpoint is at `path`.

        With `spans`, each request has a span. `proxies` may tell where a
        request comes from.
        """
        self._app = app
        self._meter = meter
        self._path = path
        self._log = log
        self._proxies = proxies or Proxies()
        self._spans = spans
        self._is_told = log is not None or spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = time.perf_counter()
        meter = self._meter
        request = Request(send, meter, self._method_of(scope))
        scope[KEY] = request
        if self._is_told:
            return await self._tell(scope, receive, request, started)
        meter.requests += 1
        outcome: Outcome = "failed"
        try:
            await self._app(scope, receive, request.send)
            outcome = request.outcome()
        except anyio.get_cancelled_exc_class():
            outcome = "aborted"
            raise
        finally:
            # Whoever sends knows the scope, so the two would keep each other until the collector comes by.
            del scope[KEY]
            self._count(request, outcome, time.perf_counter() - started)

    async def _tell(self, scope: Scope, receive: Receive, request: Request, started: float) -> None:
        """Answer, and let a line of the log, a span or both tell of it."""
        if self._log is not None:
            request.id = _id_of(scope)
        self._meter.requests += 1
        outcome: Outcome = "failed"
        with request_span(scope) if self._spans else nullcontext(INVALID_SPAN) as span:
            try:
                await self._app(scope, receive, request.send)
                outcome = request.outcome()
            except anyio.get_cancelled_exc_class():
                outcome = "aborted"
                raise
            finally:
                seconds = time.perf_counter() - started
                del scope[KEY]
                self._count(request, outcome, seconds)
                method = METHODS[request.method]
                route = self._path if scope["path"] == self._path else method
                finish_span(span, route=route, method=method, status=request.status, outcome=outcome)
                if self._log is not None:
                    self._log.put(self._line(scope, request, outcome, seconds, trace_id_of(span)))

    def _count(self, request: Request, outcome: Outcome, seconds: float) -> None:
        meter = self._meter
        meter.requests -= 1
        meter.streams -= request.is_stream
        meter.count(request.method, outcome, seconds, request.size)

    def _line(self, scope: Scope, request: Request, outcome: Outcome, seconds: float, trace: str) -> Line:
        return Line(
            ended=time.time(),
            seconds=seconds,
            id=request.id.decode(),
            remote=self._proxies.address_of(scope),
            verb=scope["method"],
            path=scope["path"],
            method=METHODS[request.method],
            status=request.status,
            size=request.size,
            outcome=outcome,
            caller=request.caller,
            agent=_header(scope, b"user-agent").decode("latin-1"),
            trace=trace,
        )

    def _method_of(self, scope: Scope) -> int:
        """Tell what is asked for, as far as the first line and the headers say it."""
        path = scope["path"]
        if path == self._path:
            verb = scope["method"]
            if verb != "POST":
                return METHOD_NUMBERS[_VERBS.get(verb, OTHER)]
            for name, value in scope["headers"]:
                if name == b"mcp-method":
                    return _BY_HEADER.get(value, _OTHER)
            return _OTHER
        if path.startswith(_WELL_KNOWN):
            return METHOD_NUMBERS["well-known"]
        return METHOD_NUMBERS[_ROUTES.get(path, "page")]


def note(scope: Mapping[str, Any], *, method: str = "", caller: str = "") -> None:
    """Say more about a request than its headers do: its MCP method, and who sent it."""
    request = scope.get(KEY)
    if not isinstance(request, Request):
        return  # Nobody observes.
    if method:
        request.method = METHOD_NUMBERS.get(method, _OTHER)
    request.caller = caller or request.caller


async def note_method(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Middleware of a server: says which method older clients ask for, whose headers do not tell."""
    note(getattr(ctx.request, "scope", {}), method=ctx.method)
    return await call_next(ctx)


def _id_of(scope: Scope) -> bytes:
    """Return the id a proxy has given the request, if it is plain enough to be repeated, or a new one."""
    given = _header(scope, b"x-request-id")
    return given if _SANE_ID.fullmatch(given) else secrets.token_hex(8).encode()


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == wanted), b"")
