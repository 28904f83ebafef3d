"""A client on one raw connection, of either generation: it takes little CPU from the server it loads."""

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio
import anyio.abc
import orjson

from serving import LEGACY, MODERN
from skillwire.wire.core import EXTENSION

Json: TypeAlias = dict[str, Any]

ANSWERED_WITHIN = 30.0
_LARGEST_ANSWER = 64 * 1024 * 1024
_CHUNK = 256 * 1024
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_SESSION = re.compile(rb"\r\nmcp-session-id:\s*([^\r]+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:\s*close", re.IGNORECASE)
_CLIENT: Json = {"name": "load", "version": "1"}
_CAPABILITIES: Json = {"extensions": {EXTENSION: {}}}
_META: Json = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": _CLIENT,
    "io.modelcontextprotocol/clientCapabilities": _CAPABILITIES,
}


class LostError(Exception):
    """The connection ended before the answer was whole; `began` tells whether any of it had come."""

    def __init__(self, *, began: bool) -> None:
        super().__init__("the connection ended inside an answer" if began else "there was no answer")
        self.began = began


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: the HTTP status, the JSON-RPC message, and how long that took."""

    status: int
    message: Json
    seconds: float

    @property
    def code(self) -> int | None:
        """The JSON-RPC error code; None for a result."""
        error = self.message.get("error")
        return error["code"] if error else None


class Peer:
    """One client; it opens its connection when it has none, and a session when its generation has them."""

    def __init__(self, port: int, *, is_modern: bool, headers: Mapping[str, str] | None = None) -> None:
        self.is_modern = is_modern
        self._port = port
        self._extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self._stream: anyio.abc.SocketStream | None = None
        self._session = ""
        self._number = 0
        self.before_body: Callable[[], Awaitable[None]] | None = None
        """Awaited when the head of an answer has been received and its body has not."""

    async def ask(self, method: str, **params: str) -> Reply:
        """Send a request and return its answer.

        Raises:
            LostError: The connection ended first; the next request opens another.
            TimeoutError: There was no answer in time.
        """
        if self._stream is None:
            await self._open()
        self._number += 1
        body: Json = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        if self.is_modern:
            body["params"] = {**params, "_meta": _META}
        reply = await self._post(body, method, params.get("uri", ""))
        if reply.status == 200 and reply.message.get("id") != self._number:
            raise AssertionError(f"an answer to another request: {reply.message}")
        return reply

    async def close(self) -> None:
        stream, self._stream, self._session = self._stream, None, ""
        if stream is not None:
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    async def _open(self) -> None:
        try:
            with anyio.fail_after(ANSWERED_WITHIN):
                self._stream = await anyio.connect_tcp("127.0.0.1", self._port)
        except OSError:
            raise LostError(began=False) from None
        if not self.is_modern:
            params = {"protocolVersion": LEGACY, "capabilities": _CAPABILITIES, "clientInfo": _CLIENT}
            hello: Json = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
            welcome = await self._post(hello, "initialize", "")
            assert welcome.message["result"]["protocolVersion"] == LEGACY, welcome
            await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"}, "", "")

    async def _post(self, message: Json, method: str, uri: str) -> Reply:
        body = orjson.dumps(message)
        head = (
            f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\ncontent-type: application/json\r\n"
            f"accept: application/json, text/event-stream\r\ncontent-length: {len(body)}\r\n{self._extra}"
        )
        if self.is_modern:
            head += f"mcp-protocol-version: {MODERN}\r\nmcp-method: {method}\r\n"
            if method == "resources/read":
                head += f"mcp-name: {uri}\r\n"
        elif method != "initialize":
            head += f"mcp-protocol-version: {LEGACY}\r\n"
            if self._session:
                head += f"mcp-session-id: {self._session}\r\n"
        started = time.perf_counter()
        try:
            with anyio.fail_after(ANSWERED_WITHIN):
                status, content = await self._exchange(head.encode() + b"\r\n" + body)
        except BaseException:
            await self.close()
            raise
        seconds = time.perf_counter() - started
        return Reply(status, orjson.loads(content) if content.startswith(b"{") else {}, seconds)

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        if self._stream is None:  # A server that stops ends the connection with the answer before.
            raise LostError(began=False)
        received = b""
        try:
            await self._stream.send(request)
            while (end := received.find(b"\r\n\r\n")) < 0:
                received += await self._stream.receive(_CHUNK)
            head = received[:end]
            parts = [received[end + 4 :]]
            length = _LENGTH.search(head)
            missing = (int(length[1]) if length else 0) - len(parts[0])
            assert missing < _LARGEST_ANSWER, "an answer without an end"
            if self.before_body is not None:
                await self.before_body()
            while missing > 0:
                parts.append(await self._stream.receive(_CHUNK))
                missing -= len(parts[-1])
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise LostError(began=bool(received)) from None
        if found := _SESSION.search(head):
            self._session = found[1].decode()
        if _CLOSE.search(head):
            await self.close()
        return int(head[9:12]), b"".join(parts)
