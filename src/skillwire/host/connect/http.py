"""The HTTP transport: the SDK's streamable HTTP, over a client that limits the size of responses.

Compressed bodies are refused, so that the bytes counted are the bytes parsed.
"""

import math
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, cast

import anyio
import httpx2
from mcp.client._transport import ReadStream
from mcp.client.auth import OAuthFlowError
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared.inbound import MCP_METHOD_HEADER
from mcp.shared.message import SessionMessage

from skillwire.core import SkillError, quoted
from skillwire.host.calls import Backoff, ServerLink, Streams
from skillwire.host.connect.diagnosis import network_failure, rejection_of
from skillwire.host.connect.messages import EventBuffer, EventMeter, LargeResults, too_large
from skillwire.host.model import (
    FloodError,
    HttpEndpoint,
    InvalidAnswerError,
    NotSignedInError,
    SessionLostError,
    UnavailableError,
)

_CONNECT_SECONDS = 10.0
_DELETE_SECONDS = 2.0
_MAX_CONNECTIONS = 32
_LISTEN = "subscriptions/listen"


@asynccontextmanager
async def http_transport(
    endpoint: HttpEndpoint, link: ServerLink, *, seconds: float, auth: httpx2.Auth | None = None
) -> AsyncGenerator[Streams]:
    """Connect to the server at `endpoint`, with a read timeout of twice `seconds`."""
    large_results = LargeResults()
    client = _MeasuringClient(endpoint, link, large_results, seconds=seconds, auth=auth)
    async with (
        client,
        # `EventMeter` enforces the current cap instead, which changes over time.
        streamable_http_client(endpoint.url, http_client=client, max_sse_event_size=None) as (read, write),
    ):
        yield cast(ReadStream[SessionMessage | Exception], _CountedStream(read, link, large_results)), write


class _MeasuringClient(httpx2.AsyncClient):
    """An HTTP client for one link, which ends the link when a response exceeds a limit."""

    def __init__(
        self,
        endpoint: HttpEndpoint,
        link: ServerLink,
        large_results: LargeResults,
        *,
        seconds: float,
        auth: httpx2.Auth | None,
    ) -> None:
        self._connect_seconds = min(seconds, _CONNECT_SECONDS)
        timeout = httpx2.Timeout(seconds, connect=self._connect_seconds, read=2 * seconds)
        super().__init__(
            headers=dict(endpoint.headers),
            auth=auth,
            timeout=timeout,
            follow_redirects=False,
            limits=httpx2.Limits(max_connections=_MAX_CONNECTIONS),
            # Accepts no cookies: a server could add them without limit.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            event_hooks={"request": [self._prepare], "response": [self._measure]},
        )
        self._endpoint = endpoint
        self._link = link
        self._large_results = large_results
        self._streams = Backoff(link.limits.backoff_base, link.limits.backoff_most)
        self._opened = -math.inf

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; on failure, end the link with the reason before the error is raised."""
        try:
            return await super().send(request, **options)
        except SkillError as error:
            self._link.end(error)
            raise
        except OAuthFlowError as error:
            self._link.end(
                NotSignedInError(
                    f"signing in to the server failed: {quoted(str(error))}", fix="connect again and sign in"
                )
            )
            raise
        except httpx2.HTTPError as error:
            # The stream for notifications is optional.
            if request.method == "POST":
                self._link.end(network_failure(error, self._endpoint, self._connect_seconds))
            raise

    async def _prepare(self, request: httpx2.Request) -> None:
        request.headers["accept-encoding"] = "identity"
        timeout = cast(dict[str, float | None], request.extensions.get("timeout", {}))
        if request.method == "DELETE":
            request.extensions["timeout"] = dict.fromkeys(timeout, _DELETE_SECONDS)
            return
        if request.method == "GET" and "text/event-stream" in request.headers.get("accept", ""):
            await self._wait_before_stream()
            request.extensions["timeout"] = {**timeout, "read": None}
            return
        self._link.expect_answer()
        if request.headers.get(MCP_METHOD_HEADER) == _LISTEN:
            # Such a stream may be silent for a long time; it ends with the link.
            request.extensions["timeout"] = {**timeout, "read": None}

    async def _wait_before_stream(self) -> None:
        """Wait before a stream is opened again: the SDK does so whenever the server says."""
        if anyio.current_time() - self._opened > self._link.limits.backoff_most:
            self._streams.reset()
        await anyio.sleep(self._streams.remaining)
        self._streams.record_failure()
        self._opened = anyio.current_time()

    async def _measure(self, response: httpx2.Response) -> None:
        """Check the head of a response, and wrap its body for counting."""
        status, request = response.status_code, response.request
        if request.method == "POST":
            self._link.rejection = rejection_of(response, self._endpoint)
            self._link.has_json_body = response.headers.get("content-type", "").startswith("application/json")
        if status == 404 and request.method == "POST" and MCP_SESSION_ID in request.headers:
            self._link.end(SessionLostError("the server lost this session"))
        if not re.fullmatch(r"[ -~]*", response.headers.get("content-type", "")):
            # The SDK would log it unescaped.
            raise InvalidAnswerError("the server's answer has an invalid content type")
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", ""):
            raise InvalidAnswerError(
                f"the server's answer is compressed ({quoted(encoding)}), which was not requested",
                violates="LIM-06",
            )
        response.stream = _CountedBody(response, self._link, self._large_results)


class _CountedBody(httpx2.AsyncByteStream):
    """The body of a response, counted while it is read."""

    def __init__(self, response: httpx2.Response, link: ServerLink, large_results: LargeResults) -> None:
        self._stream = cast(httpx2.AsyncByteStream, response.stream)
        self._link = link
        self._large_results = large_results
        content_type = response.headers.get("content-type", "").strip().lower()
        self._meter = EventMeter(link.cap) if content_type.startswith("text/event-stream") else None
        self._is_answer = self._meter is None and response.request.method == "POST"
        self._is_json_answer = self._is_answer and content_type.startswith("application/json")
        self._size = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            body: list[bytes] = []
            events = EventBuffer(self._large_results) if self._meter is not None else None
            async for data in self._stream:
                self._count(data)
                if self._is_json_answer:
                    body.append(data)
                elif events is None:
                    yield data
                elif ready := events.feed(data):
                    yield ready
            if body:
                yield self._large_results.extract(b"".join(body))
            if events is not None and events.rest:
                yield events.rest
        except SkillError as error:
            self._link.end(error)
            raise
        except httpx2.HTTPError:
            # A broken stream is opened again; a broken answer is lost, and ends the connection.
            if self._is_answer:
                self._link.end(
                    UnavailableError(
                        "the server's answer is incomplete: the connection ended",
                        fix="try again; the server's log may have the reason",
                    )
                )
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _count(self, data: bytes) -> None:
        if self._meter is None:
            self._size += len(data)
            if self._size > self._link.cap.current:
                raise too_large(self._link.cap.current)
        elif not self._link.admit(events=self._meter.feed(data)):
            raise self._link.failure or FloodError("the connection was closed")


class _CountedStream:
    """The SDK's stream of messages, limited in rate."""

    def __init__(
        self,
        stream: ReadStream[SessionMessage | Exception],
        link: ServerLink,
        large_results: LargeResults,
    ) -> None:
        self._stream = stream
        self._link = link
        self._large_results = large_results

    @property
    def last_context(self) -> object:
        """The context in which a message was received; the SDK reads it here."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        item = await self._stream.receive()
        if not self._link.admit():
            raise anyio.EndOfStream
        restored = self._large_results.restore(item)
        self._link.inspect(restored)
        return restored

    def __aiter__(self) -> "_CountedStream":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> "_CountedStream":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> bool | None:
        return await self._stream.__aexit__(*details)
