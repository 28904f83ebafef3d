"""Whole requests over HTTP: with the ready answers and by the SDK alone, they are answered alike."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any, cast

from fuzz.lasting import OPEN, portal
from fuzz.properties import json_of
from integration.both_paths import BothPaths, standalone, write_catalog
from integration.odd_requests import HttpRequest, header_value


@cache
def _both() -> BothPaths:
    """Make everything once, in the process that asks."""
    folder = Path(OPEN.enter_context(tempfile.TemporaryDirectory()))
    write_catalog(folder)
    both = BothPaths(lambda is_fast: standalone(folder, is_fast=is_fast), is_stateless=False)
    return OPEN.enter_context(portal().wrap_async_context_manager(both.serving()))


def check(data: bytes) -> None:
    """Each line is the body of a request; the headers say the same as the body."""
    for body in data.split(b"\n")[:5]:
        fast, plain, _ = portal().call(_both().ask, HttpRequest(_headers(body), (body,)))
        assert fast == plain, (fast, plain)


def _headers(body: bytes) -> tuple[tuple[bytes, bytes], ...]:
    value, _ = json_of(body)
    message = cast("dict[str, Any]", value if isinstance(value, dict) else {})
    method, params = message.get("method"), message.get("params")
    headers = [
        (b"host", b"127.0.0.1:8000"),
        (b"accept", b"application/json, text/event-stream"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"mcp-protocol-version", b"2026-07-28"),
    ]
    if isinstance(method, str):
        headers.append((b"mcp-method", header_value(method)))
    uri = cast("dict[str, Any]", params).get("uri") if isinstance(params, dict) else None
    if isinstance(uri, str) and method == "resources/read":
        headers.append((b"mcp-name", header_value(uri)))
    return tuple(headers)
