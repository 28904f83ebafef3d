"""OpenTelemetry spans of HTTP requests.

The SDK creates a span for each message it handles, as a child of the current
span, unless the message names another parent. This module adds the span of the
HTTP request around it: its `traceparent`, its status, and requests that never
become a message. Nothing is configured here: a tracer provider is installed by
`opentelemetry-instrument` or not at all.
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
