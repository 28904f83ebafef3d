"""`StdioConnection`: one client on a pair of pipes.

A thread of its own reads the requests and answers the ordinary ones on the
spot; everything else goes to the SDK, whose answers are written in between.
"""

import json
import logging
import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Literal, TypeAlias, cast

import anyio
import anyio.abc
import anyio.from_thread
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import ListenHandler
from mcp.shared.message import SessionMessage
from mcp_types import PROTOCOL_VERSION_META_KEY
from pydantic_core import PydanticSerializationError

from skillwire.server.hot import HotAnswers
from skillwire.server.requests import Request, response
from skillwire.wire.core import READ_RESOURCE
from skillwire.wire.encoding import encode

_CHUNK = 4 * 1024
_LARGEST_CHUNK = 256 * 1024
_LONGEST_LINE = 4 * 1024 * 1024
_FINISH_SECONDS = 10.0
# How long the SDK may take to close once everything is answered, or nobody waits for the answers any more.
_CLOSE_SECONDS = 2.0
_MAX_FETCHES = 64
_LARGE = 16 * 1024
_TOO_LONG = (
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"The message is longer than 4 MiB"}}\n'
)
# A stream of changes has no end of its own, so nobody waits for it, unless it can be ended.
_ENDLESS = frozenset({"subscriptions/listen"})

Era: TypeAlias = Literal["undecided", "modern", "handshake", "legacy"]
"""What is known of the client: nothing yet, modern, shaking hands, or legacy and ready."""

logger = logging.getLogger(__name__)


class StdioConnection:
    """One client on a pair of file descriptors.

    Once `is_over`, no more requests are taken: the connection is stopping, or
    nobody is there to read the answers.
    """

    def __init__(
        self,
        server: Server[Any],
        hot: HotAnswers | None,
        *,
        incoming: int,
        outgoing: int,
        listen: ListenHandler | None = None,
    ) -> None:
        self._server = server
        self._hot = hot
        self._reader = None if hot is None else hot.new_reader()
        self._listen = listen
        self._incoming = incoming
        self._outgoing = outgoing
        self._writing = threading.Lock()
        self._outbox: queue.SimpleQueue[tuple[bytes, anyio.Event] | None] = queue.SimpleQueue()
        self._has_left = False
        self.is_over = False
        self._era: Era = "undecided"
        self._handshake: types.RequestId | None = None
        self._unanswered: Counter[object] = Counter()
        self._settled = anyio.Event()
        self._stopping = anyio.Event()

    async def run(self) -> None:
        """Serve until the client closes its end, or `stop` is called; what was asked is answered first.

        A client that does not read its answers is not waited for longer than a few seconds.
        """
        requests, to_sdk = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        from_sdk, answers = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.from_thread.BlockingPortal() as portal, anyio.create_task_group() as group:
            group.start_soon(self._close_when_done, requests, group.cancel_scope)
            reader = _Reader(self, portal, group, requests)
            # Both may block for as long as the client likes, and must not keep the process from ending.
            threading.Thread(target=reader.run, daemon=True, name="stdin").start()
            threading.Thread(target=self._empty_outbox, args=(portal,), daemon=True, name="stdout").start()
            try:
                async with anyio.create_task_group() as writing:
                    writing.start_soon(self._write_answers, answers)
                    await self._server.run(to_sdk, from_sdk, self._server.create_initialization_options())
            finally:
                self.stop()
                self._outbox.put(None)
                await portal.stop(cancel_remaining=True)
                group.cancel_scope.cancel()

    @property
    def is_modern(self) -> bool:
        return self._era == "modern"

    def stop(self) -> None:
        """Take no more requests, and end once those under way are answered."""
        self.is_over = True
        self._stopping.set()

    async def _close_when_done(self, requests: "Outlet", everything: anyio.CancelScope) -> None:
        await self._stopping.wait()
        if self._listen is not None:
            self._listen.close()
        with anyio.move_on_after(_FINISH_SECONDS):
            while self._unanswered:
                self._settled = anyio.Event()
                await self._settled.wait()
        await requests.aclose()
        await anyio.sleep(_CLOSE_SECONDS)
        everything.cancel()

    async def _write_answers(self, answers: "Inlet") -> None:
        async with answers:
            async for item in answers:
                message = item.message
                await self._send(_written(message) + b"\n")
                if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
                    self._note_answer(message.id, refused=isinstance(message, types.JSONRPCError))

    def _note_answer(self, identifier: types.RequestId, *, refused: bool) -> None:
        if identifier == self._handshake and self._era == "handshake" and not refused:
            self._era = "legacy"
        self._note_done(identifier)

    def _note_done(self, token: object) -> None:
        self._unanswered[token] -= 1
        if self._unanswered[token] <= 0:
            del self._unanswered[token]
        self._settled.set()

    def lines(self) -> Generator[bytes]:
        """Yield what the client sends, line by line, until it closes its end."""
        rest = b""
        skipping = False
        room = _CHUNK
        while chunk := os.read(self._incoming, room):
            # Room costs time even if it is not needed; a long message gets more of it.
            room = _CHUNK if len(chunk) < room else _LARGEST_CHUNK
            if not rest and not skipping and chunk.find(b"\n") == len(chunk) - 1:
                yield chunk[:-1]  # One message, and all of it: clients that wait for answers send no other.
                continue
            *lines, remainder = chunk.split(b"\n")
            for line in lines:
                if not skipping:
                    yield rest + line if rest else line
                rest, skipping = b"", False
            rest = b"" if skipping else rest + remainder
            if len(rest) > _LONGEST_LINE:
                self.write(_TOO_LONG)
                rest, skipping = b"", True
        if rest:
            yield rest

    def ordinary(self, line: bytes) -> Request | None:
        """Read a request that needs no more than a look, from a client whose era is known."""
        if self._reader is None or self._era not in ("modern", "legacy"):
            return None
        request = self._reader.read(line)
        if request is None:
            return None
        is_of_this_era = request.has_envelope if self.is_modern else "_meta" not in request.params
        return request if is_of_this_era else None

    def answer(self, line: bytes) -> bool:
        """Write the answer to an ordinary request, if everything for it is at hand."""
        if self._hot is None or self._reader is None:
            return False
        state = self._hot.state
        known = self._reader.recall(line, state)
        if known is not None:
            self.write(known[0] + known[1].rest)
            return True
        request = self.ordinary(line)
        result = None if request is None else self._hot.result(request, modern=self.is_modern)
        if request is None or result is None:
            return False
        parts = (*response(request, result), b"\n")
        if max(map(len, result)) < _LARGE:
            data = b"".join(parts)
            self._reader.remember(line, request, data, state)
            self.write(data)
        else:
            # Sending the pieces as they are takes less time than putting them together.
            self._write_with(os.writev, parts, sum(map(len, parts)))
        return True

    async def fetch(self, request: Request, line: bytes, requests: "Outlet") -> None:
        """Answer a read of a file that is not at hand; the SDK answers when that fails."""
        assert self._hot is not None, "without ready answers no request is ordinary"
        token = object()
        self._unanswered[token] += 1
        try:
            result = await self._hot.fetch(request, modern=self.is_modern)
            if result is None:
                await self.hand_over(line, requests)
            else:
                await self._send(b"".join(response(request, result)) + b"\n")
        finally:
            self._note_done(token)

    async def hand_over(self, line: bytes, requests: "Outlet") -> None:
        """Give a message to the SDK."""
        try:
            message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            refusal = _refusal(line)
            if refusal is not None:
                await self._send(encode(refusal) + b"\n")
            return
        if isinstance(message, types.JSONRPCRequest):
            self._note_request(message)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._note_cancellation(message.params or {})
        await requests.send(SessionMessage(message))

    def _note_request(self, request: types.JSONRPCRequest) -> None:
        if self._listen is not None or request.method not in _ENDLESS:
            self._unanswered[request.id] += 1
        if self._era == "undecided":
            opens_modern = request.method != "initialize" and _has_envelope(request.params)
            self._era = "modern" if opens_modern else "handshake"
        if request.method == "initialize":
            self._handshake = request.id

    def _note_cancellation(self, params: dict[str, Any]) -> None:
        """Expect no answer any more: the SDK gives none to a request that was cancelled in time."""
        identifier = params.get("requestId")
        if isinstance(identifier, int | str):
            self._note_done(identifier)

    async def _send(self, data: bytes) -> None:
        """Write `data` in the thread that is there for it, and return when it is written."""
        written = anyio.Event()
        self._outbox.put((data, written))
        await written.wait()
        if self._has_left:
            self.stop()

    def _empty_outbox(self, portal: anyio.from_thread.BlockingPortal) -> None:
        with suppress(RuntimeError):  # The portal is gone when the server stopped first.
            while (item := self._outbox.get()) is not None:
                self.write(item[0])
                portal.call(item[1].set)

    def write(self, data: bytes) -> None:
        """Write all of `data`, between whole messages of others, unless the client has left."""
        self._write_with(os.write, data, len(data))

    def _write_with(self, write: Callable[[int, Any], int], data: Any, size: int) -> None:
        with self._writing:
            if self._has_left:
                return
            try:
                written = write(self._outgoing, data)
                if written < size:
                    rest = memoryview(data if isinstance(data, bytes) else b"".join(data))[written:]
                    while rest:
                        rest = rest[os.write(self._outgoing, rest) :]
            except OSError as error:
                logger.info("nobody reads what is written to standard output: %s", error.strerror)
                self._has_left = self.is_over = True


class _Reader:
    """Reads what one client sends, in a thread of its own, and answers what it can itself."""

    def __init__(
        self,
        connection: StdioConnection,
        portal: anyio.from_thread.BlockingPortal,
        group: anyio.abc.TaskGroup,
        requests: "Outlet",
    ) -> None:
        self._connection = connection
        self._portal = portal
        self._group = group
        self._requests = requests
        self._fetches = anyio.Semaphore(_MAX_FETCHES)

    def run(self) -> None:
        # The portal is gone when the server stopped first.
        with suppress(RuntimeError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            for line in self._connection.lines():
                if self._connection.is_over:
                    break
                self._take(line)
        with suppress(RuntimeError):
            self._portal.call(self._connection.stop)

    def _take(self, line: bytes) -> None:
        request = None
        try:
            if self._connection.answer(line):
                return
            request = self._connection.ordinary(line)
        except Exception:
            logger.exception("a message is left to the SDK")  # Without this thread, nobody hears the client.
        if request is not None and request.method == READ_RESOURCE:
            self._portal.call(self._start_fetch, request, line)
        else:
            self._portal.call(self._connection.hand_over, line, self._requests)

    async def _start_fetch(self, request: Request, line: bytes) -> None:
        await self._fetches.acquire()
        self._group.start_soon(self._fetch, request, line)

    async def _fetch(self, request: Request, line: bytes) -> None:
        try:
            await self._connection.fetch(request, line, self._requests)
        finally:
            self._fetches.release()


Outlet: TypeAlias = MemoryObjectSendStream[SessionMessage | Exception]
Inlet: TypeAlias = MemoryObjectReceiveStream[SessionMessage]


def _written(message: types.JSONRPCMessage) -> bytes:
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode("utf-8")
    except PydanticSerializationError:  # Half of a surrogate pair, in a stranger's entry.
        return encode(message.model_dump(by_alias=True, exclude_unset=True))


def _refusal(line: bytes) -> dict[str, Any] | None:
    """Return the error for a line that is no message, so that nobody waits for an answer in vain.

    A blank line gets none, and neither does what could be an answer itself.
    """
    if not line.strip():
        return None
    code, message, identifier = types.PARSE_ERROR, "Parse error", None
    try:
        content = json.loads(line)
        code, message = types.INVALID_REQUEST, "The line is not one JSON-RPC message"
        if isinstance(content, dict):
            fields = cast(dict[str, object], content)
            if "method" not in fields and fields.keys() & {"result", "error"}:
                return None
            identifier = fields.get("id")
    except (ValueError, RecursionError):
        pass
    if not isinstance(identifier, str) and type(identifier) is not int:
        identifier = None
    return {"jsonrpc": "2.0", "id": identifier, "error": {"code": code, "message": message}}


def _has_envelope(params: dict[str, Any] | None) -> bool:
    meta = (params or {}).get("_meta")
    return isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta
