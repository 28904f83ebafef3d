"""`ObservedApp`: the outermost ASGI layer. It measures every request, and assigns request IDs."""

import re
import secrets
import time
from collections.abc import Awaitable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from opentelemetry.propagate import extract
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import (
    INVALID_SPAN,
    NoOpTracer,
    ProxyTracer,
    Span,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    get_tracer,
)

from skillwire.server.fast.requests import App, Message, Receive, Scope, Send
from skillwire.server.ops.accesslog import AccessLog, AccessRecord
from skillwire.server.ops.metrics import (
    MCP_METHODS,
    METHOD_NUMBERS,
    METHODS,
    OTHER,
    STREAM,
    Outcome,
    WorkerMetrics,
)
from skillwire.server.ops.peers import Proxies

_SCOPE: Final = "skillwire"
_MAX_PATH = 256
_VERBS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# The value for unknown methods in the semantic conventions for HTTP spans.
_OTHER_VERB = "_OTHER"
_SERVER_ERROR = 500


def is_tracing() -> bool:
    """Return whether spans are exported; if so, every request has to reach the SDK, which creates them."""
    return not isinstance(get_tracer(_SCOPE), NoOpTracer | ProxyTracer)


@contextmanager
def request_span(scope: Mapping[str, Any]) -> Generator[Span]:
    """Start the span of an HTTP request, or yield the current span if an outer layer has started one."""
    current = get_current_span()
    if current.get_span_context().is_valid:
        yield current
        return
    verb = scope["method"] if scope["method"] in _VERBS else _OTHER_VERB
    attributes = {
        "http.request.method": verb,
        "url.scheme": scope.get("scheme", "http"),
        "url.path": scope["path"][:_MAX_PATH],
        "network.protocol.version": scope.get("http_version", "1.1"),
    }
    with get_tracer(_SCOPE).start_as_current_span(
        verb,
        context=extract(scope["headers"], getter=_HEADERS),
        kind=SpanKind.SERVER,
        attributes=attributes,
        # Exceptions are logged; traces may be readable by more people.
        record_exception=False,
    ) as span:
        yield span


def finish_span(span: Span, *, route: str, method: str, status: int, outcome: str) -> None:
    """Record how the request ended. `route` and `method` come from fixed sets, to bound the span names."""
    span.update_name(route)
    span.set_attributes({"http.route": route, "mcp.method.name": method, "skillwire.outcome": outcome})
    if status:
        span.set_attribute("http.response.status_code", status)
    if status >= _SERVER_ERROR or outcome == "failed":
        span.set_attribute("error.type", str(status or outcome))
        span.set_status(Status(StatusCode.ERROR))


def trace_id_of(span: Span) -> str:
    """Return the trace ID of a span in hexadecimal; empty when there is none."""
    context = span.get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""


class _HeaderGetter(Getter[Sequence[tuple[bytes, bytes]]]):
    """A getter for the headers of an ASGI request."""

    def get(self, carrier: Sequence[tuple[bytes, bytes]], key: str) -> list[str] | None:
        name = key.lower().encode()
        return [value.decode("latin-1") for header, value in carrier if header == name] or None

    def keys(self, carrier: Sequence[tuple[bytes, bytes]]) -> list[str]:
        return [header.decode("latin-1") for header, _ in carrier]


_HEADERS: Final = _HeaderGetter()


# `ObservedApp`: counts, logs and traces each request.


KEY: Final = "skillwire.request"
"""The key of the request in the ASGI scope, for inner layers."""

_OTHER: Final = METHOD_NUMBERS[OTHER]
# Methods whose responses are streams that last until the client disconnects.
_LASTING: Final = frozenset({METHOD_NUMBERS[STREAM], METHOD_NUMBERS["subscriptions/listen"]})
_BY_HEADER: Final = {method.encode(): METHOD_NUMBERS[method] for method in MCP_METHODS}
_WELL_KNOWN: Final = "/.well-known/"
_ROUTES: Final = {"/healthz": "health", "/readyz": "health", "/metrics": "metrics"}
_SESSION_METHODS: Final = {"GET": STREAM, "DELETE": "end-session"}
_PLAIN_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")
# The start of a JSON-RPC error in a response with status 200. Quotes in the id are escaped.
_ERROR: Final = re.compile(
    rb'\{"jsonrpc":"2\.0","id":(?:[0-9-]{1,32}|null|"(?:[^"\\]|\\.){0,256}"),"error":\{"code":(-?\d{1,9})'
)
_ERROR_MARK: Final = b',"error":{"code":'
# Error responses are far shorter, and results often longer.
_MAX_ERROR: Final = 2048
_INTERNAL: Final = b"-32603"
_REFUSALS: Final = frozenset({401, 403, 429})


class ObservedRequest:
    """One request in progress; wraps `send` of the application."""

    # Class attributes, because most requests change none of them.
    id = b""
    status = 0
    size = 0
    code = b""
    caller = ""
    is_complete = False
    is_stream = False

    def __init__(self, send: Send, meter: WorkerMetrics, method: int) -> None:
        self._send = send
        self._meter = meter
        self.method = method

    def send(self, message: Message) -> Awaitable[None]:
        """Record a message of the response, and send it."""
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            if not message.get("more_body", False):
                self.is_complete = True
                if len(body) <= _MAX_ERROR and _ERROR_MARK in body and not self.size:
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
        """Return the outcome of the request."""
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
            # A stream only ends when its client disconnects.
            return "ok" if self.is_stream else "aborted"
        return "error" if self.code else "ok"


class ObservedApp:
    """An ASGI application that counts the requests of `app`. With a log, each response has a request ID.

    It is the outermost layer, so that refusals are counted too.
    """

    def __init__(
        self,
        app: App,
        meter: WorkerMetrics,
        *,
        path: str,
        log: AccessLog | None = None,
        proxies: Proxies | None = None,
        spans: bool = False,
    ) -> None:
        """Observe an application whose MCP endpoint is at `path`.

        With `spans`, each request has a span. `proxies` are trusted for the
        address of the client.
        """
        self._app = app
        self._meter = meter
        self._path = path
        self._log = log
        self._proxies = proxies or Proxies()
        self._spans = spans
        self._is_recorded = log is not None or spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = time.perf_counter()
        meter = self._meter
        request = ObservedRequest(send, meter, self._method_of(scope))
        scope[KEY] = request
        if self._is_recorded:
            return await self._observe(scope, receive, request, started)
        meter.requests += 1
        outcome: Outcome = "failed"
        try:
            await self._app(scope, receive, request.send)
            outcome = request.outcome()
        except anyio.get_cancelled_exc_class():
            outcome = "aborted"
            raise
        finally:
            # `send` refers to the scope: without this, the cycle would live until garbage collection.
            del scope[KEY]
            self._count(request, outcome, time.perf_counter() - started)

    async def _observe(
        self, scope: Scope, receive: Receive, request: ObservedRequest, started: float
    ) -> None:
        """Answer a request, and record it in the access log, in a span, or both."""
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
                    self._log.put(self._access_record(scope, request, outcome, seconds, trace_id_of(span)))

    def _count(self, request: ObservedRequest, outcome: Outcome, seconds: float) -> None:
        meter = self._meter
        meter.requests -= 1
        meter.streams -= request.is_stream
        meter.count(request.method, outcome, seconds, request.size)

    def _access_record(
        self, scope: Scope, request: ObservedRequest, outcome: Outcome, seconds: float, trace: str
    ) -> AccessRecord:
        return AccessRecord(
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
        """Return the number of the method, from the request line and the headers."""
        path = scope["path"]
        if path == self._path:
            verb = scope["method"]
            if verb != "POST":
                return METHOD_NUMBERS[_SESSION_METHODS.get(verb, OTHER)]
            for name, value in scope["headers"]:
                if name == b"mcp-method":
                    return _BY_HEADER.get(value, _OTHER)
            return _OTHER
        if path.startswith(_WELL_KNOWN):
            return METHOD_NUMBERS["well-known"]
        return METHOD_NUMBERS[_ROUTES.get(path, "page")]


def note(scope: Mapping[str, Any], *, method: str = "", caller: str = "") -> None:
    """Record the MCP method and the caller of a request, where the headers do not name them."""
    request = scope.get(KEY)
    if not isinstance(request, ObservedRequest):
        return  # The application is not observed.
    if method:
        request.method = METHOD_NUMBERS.get(method, _OTHER)
    request.caller = caller or request.caller


async def note_method(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Record the method of older clients, which do not send it as a header (SDK middleware)."""
    note(getattr(ctx.request, "scope", {}), method=ctx.method)
    return await call_next(ctx)


def _id_of(scope: Scope) -> bytes:
    """Return the request ID that a proxy has set, if it is well-formed, else a new one."""
    given = _header(scope, b"x-request-id")
    return given if _PLAIN_ID.fullmatch(given) else secrets.token_hex(8).encode()


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == wanted), b"")
