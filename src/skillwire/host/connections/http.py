"""A server at a URL: the SDK's streamable HTTP, over a client that measures what comes in.

Bodies are asked for as they are and refused when they come compressed, so
that the bytes counted are the bytes parsed.
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

from skillwire.core.characters import quoted
from skillwire.errors import SkillError
from skillwire.host.connections.endpoints import HttpEndpoint
from skillwire.host.connections.framing import EventMeter, too_large
from skillwire.host.connections.link import Link, Streams
from skillwire.host.connections.parcels import Parcels
from skillwire.host.connections.throttle import Backoff
from skillwire.host.failures import (
    FloodError,
    InvalidAnswerError,
    NotSignedInError,
    SessionLostError,
    UnavailableError,
)

_CONNECT_SECONDS = 10.0
_GOODBYE_SECONDS = 2.0
_MOST_CONNECTIONS = 32
_LISTEN = "subscriptions/listen"


@asynccontextmanager
async def http_transport(
    endpoint: HttpEndpoint, link: Link, *, seconds: float, auth: httpx2.Auth | None = None
) -> AsyncGenerator[Streams]:
    """Speak to the server at `endpoint`, which has twice `seconds` to say anything at all."""
    parcels = Parcels()
    client = _MeasuringClient(endpoint, link, parcels, seconds=seconds, auth=auth)
    async with (
        client,
        # The meter knows the cap of the moment, which this limit could not follow.
        streamable_http_client(endpoint.url, http_client=client, max_sse_event_size=None) as (read, write),
    ):
        yield cast(ReadStream[SessionMessage | Exception], _CountedStream(read, link, parcels)), write


class _MeasuringClient(httpx2.AsyncClient):
    """An HTTP client for one link, which ends the link when an answer breaks a limit."""

    def __init__(
        self,
        endpoint: HttpEndpoint,
        link: Link,
        parcels: Parcels,
        *,
        seconds: float,
        auth: httpx2.Auth | None,
    ) -> None:
        timeout = httpx2.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS), read=2 * seconds)
        super().__init__(
            headers=dict(endpoint.headers),
            auth=auth,
            timeout=timeout,
            follow_redirects=False,
            limits=httpx2.Limits(max_connections=_MOST_CONNECTIONS),
            # A jar that takes nothing: a server could fill it without end.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            event_hooks={"request": [self._prepare], "response": [self._measure]},
        )
        self._link = link
        self._parcels = parcels
        self._streams = Backoff(link.limits.backoff_base, link.limits.backoff_most)
        self._opened = -math.inf

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request, and note why it could not be sent before anyone else learns of it."""
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
            # The stream for notifications is a courtesy: without it everything else still works.
            if request.method == "POST":
                self._link.end(
                    UnavailableError(
                        f"the server cannot be reached: {_words_for(error)}: {quoted(str(error))}"
                    )
                )
            raise

    async def _prepare(self, request: httpx2.Request) -> None:
        request.headers["accept-encoding"] = "identity"
        timeout = cast(dict[str, float | None], request.extensions.get("timeout", {}))
        if request.method == "DELETE":
            request.extensions["timeout"] = dict.fromkeys(timeout, _GOODBYE_SECONDS)
            return
        if request.method == "GET" and "text/event-stream" in request.headers.get("accept", ""):
            await self._pace()
            request.extensions["timeout"] = {**timeout, "read": None}
            return
        self._link.expect()
        if request.headers.get(MCP_METHOD_HEADER) == _LISTEN:
            # Silence is what such a stream is for; it ends with the link.
            request.extensions["timeout"] = {**timeout, "read": None}

    async def _pace(self) -> None:
        """Wait before a stream is opened again: the SDK does so as soon, and as often, as the server says."""
        if anyio.current_time() - self._opened > self._link.limits.backoff_most:
            self._streams.reset()
        await anyio.sleep(self._streams.remaining)
        self._streams.failed()
        self._opened = anyio.current_time()

    async def _measure(self, response: httpx2.Response) -> None:
        """Look at the head of an answer, and have its body counted."""
        status, request = response.status_code, response.request
        if status in (401, 403):
            self._link.refused_status = status
        elif status < 400:
            self._link.refused_status = None
        if status == 404 and request.method == "POST" and MCP_SESSION_ID in request.headers:
            self._link.end(SessionLostError("the server no longer knows this session"))
        if not re.fullmatch(r"[ -~]*", response.headers.get("content-type", "")):
            # It would reach the log of the SDK as it is.
            raise InvalidAnswerError("the server's answer has a content type that is none")
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", ""):
            raise InvalidAnswerError(
                f"the server's answer is compressed ({quoted(encoding)}), which was not asked for",
                violates="LIM-06",
            )
        response.stream = _CountedBody(response, self._link, self._parcels)


class _CountedBody(httpx2.AsyncByteStream):
    """The body of an answer, counted before anyone collects it."""

    def __init__(self, response: httpx2.Response, link: Link, parcels: Parcels) -> None:
        self._stream = cast(httpx2.AsyncByteStream, response.stream)
        self._link = link
        self._parcels = parcels
        content_type = response.headers.get("content-type", "").strip().lower()
        self._meter = EventMeter(link.cap) if content_type.startswith("text/event-stream") else None
        self._is_answer = self._meter is None and response.request.method == "POST"
        self._is_parcel = self._is_answer and content_type.startswith("application/json")
        self._size = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            body: list[bytes] = []
            async for data in self._stream:
                self._count(data)
                if self._is_parcel:
                    body.append(data)
                else:
                    yield data
            if body:
                yield self._parcels.pack(b"".join(body))
        except SkillError as error:
            self._link.end(error)
            raise
        except httpx2.HTTPError as error:
            # A stream that breaks is opened again; an answer that breaks is lost, and the connection with it.
            if self._is_answer:
                self._link.end(UnavailableError(f"the server's answer broke off: {_words_for(error)}"))
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _count(self, data: bytes) -> None:
        if self._meter is None:
            self._size += len(data)
            if self._size > self._link.cap.current:
                raise too_large(self._link.cap.current)
        elif not self._link.admit_events(self._meter.feed(data)):
            raise self._link.failure or FloodError("the connection was closed")


class _CountedStream:
    """The SDK's stream of messages, which ends when there are too many of them."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], link: Link, parcels: Parcels) -> None:
        self._stream = stream
        self._link = link
        self._parcels = parcels

    @property
    def last_context(self) -> object:
        """The SDK looks here for the context in which a message was received."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        item = await self._stream.receive()
        if not self._link.admit():
            raise anyio.EndOfStream
        unpacked = self._parcels.unpack(item)
        self._link.overhear(unpacked)
        return unpacked

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


def _words_for(error: httpx2.HTTPError) -> str:
    """Return the name of an error in plain words: `ConnectTimeout` is a connect timeout."""
    name = type(error).__name__.removesuffix("Error")
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
