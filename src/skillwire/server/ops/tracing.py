"""Spans of requests, when whoever runs the server collects them.

The SDK makes a span for each message it handles, as a child of the span that is
current, unless the message itself names another parent. What is missing there
is the HTTP request around it: its `traceparent`, its status, and requests that
never become a message. So that is the span we add. Nothing is set up here: a
tracer provider is installed by `opentelemetry-instrument` or not at all.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry.propagate import extract
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import (
    NoOpTracer,
    ProxyTracer,
    Span,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    get_tracer,
)

_SCOPE: Final = "skillwire"
_LONGEST = 256
_VERBS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# What the conventions for spans of HTTP ask for when a stranger has made up a word.
_OTHER_VERB = "_OTHER"
_SERVER_ERROR = 500


def is_tracing() -> bool:
    """Tell whether spans go anywhere. Then every request should reach the SDK, which makes one for each."""
    return not isinstance(get_tracer(_SCOPE), NoOpTracer | ProxyTracer)


@contextmanager
def request_span(scope: Mapping[str, Any]) -> Generator[Span]:
    """Make the span of an HTTP request the current one; where something outside has made one, take that."""
    current = get_current_span()
    if current.get_span_context().is_valid:
        yield current
        return
    verb = scope["method"] if scope["method"] in _VERBS else _OTHER_VERB
    attributes = {
        "http.request.method": verb,
        "url.scheme": scope.get("scheme", "http"),
        "url.path": scope["path"][:_LONGEST],
        "network.protocol.version": scope.get("http_version", "1.1"),
    }
    with get_tracer(_SCOPE).start_as_current_span(
        verb,
        context=extract(scope["headers"], getter=_HEADERS),
        kind=SpanKind.SERVER,
        attributes=attributes,
        # What went wrong is in the log; a trace may go to people who should not read it.
        record_exception=False,
    ) as span:
        yield span


def finish_span(span: Span, *, route: str, method: str, status: int, outcome: str) -> None:
    """Say how the request ended; `route` and `method` are words of ours, so names of spans stay few."""
    span.update_name(route)
    span.set_attributes({"http.route": route, "mcp.method.name": method, "skillwire.outcome": outcome})
    if status:
        span.set_attribute("http.response.status_code", status)
    if status >= _SERVER_ERROR or outcome == "failed":
        span.set_attribute("error.type", str(status or outcome))
        span.set_status(Status(StatusCode.ERROR))


def trace_id_of(span: Span) -> str:
    """Return the id of the trace a span belongs to, as collectors write it; nothing when there is none."""
    context = span.get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""


class _Headers(Getter[Sequence[tuple[bytes, bytes]]]):
    """Finds a header among those of an ASGI request."""

    def get(self, carrier: Sequence[tuple[bytes, bytes]], key: str) -> list[str] | None:
        name = key.lower().encode()
        return [value.decode("latin-1") for header, value in carrier if header == name] or None

    def keys(self, carrier: Sequence[tuple[bytes, bytes]]) -> list[str]:
        return [header.decode("latin-1") for header, _ in carrier]


_HEADERS: Final = _Headers()
