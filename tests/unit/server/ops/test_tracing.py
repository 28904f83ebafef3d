"""Whether spans go anywhere, as far as it shows without a tracer provider for the whole process."""

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import INVALID_SPAN, NoOpTracerProvider, ProxyTracerProvider

from skillwire.server.http.observe import is_tracing, request_span, trace_id_of

SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "path": "/mcp", "headers": []}


@pytest.fixture(autouse=True)
def no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", ProxyTracerProvider)


def test_without_a_provider_nothing_is_traced() -> None:
    assert not is_tracing()


def test_a_provider_that_does_nothing_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", NoOpTracerProvider)

    assert not is_tracing()


def test_a_real_provider_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    assert is_tracing()


def test_a_provider_that_is_switched_off_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    assert not is_tracing()


def test_a_request_that_is_not_traced_has_no_trace() -> None:
    with request_span(SCOPE) as span:
        assert trace_id_of(span) == ""
    assert trace_id_of(INVALID_SPAN) == ""


def test_a_span_from_outside_is_taken_instead_of_a_new_one() -> None:
    tracer = TracerProvider().get_tracer("outside")
    with tracer.start_as_current_span("POST") as outer, request_span(SCOPE) as span:
        assert span is outer
        assert trace_id_of(span) == f"{outer.get_span_context().trace_id:032x}"
