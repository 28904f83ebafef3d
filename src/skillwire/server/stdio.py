"""Serves the client that started this process, over standard input and output.

Meanwhile standard output is reserved for the protocol: other writes to it go to
standard error.
"""

import logging
import os
import queue
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeAlias

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

from skillwire.core import encode, visible
from skillwire.server.early import NOTHING_READ, Opening, take_opening
from skillwire.server.fast.hot import HotAnswers
from skillwire.server.fast.requests import FastRequest, response
from skillwire.server.handshake import with_fixed_summary
from skillwire.server.limits import MAX_MESSAGE_BYTES, freeze_gc, limit_malloc_arenas
from skillwire.server.messages import MalformedMessageError, parse_message, too_large
from skillwire.server.options import ServeOptions
from skillwire.server.standalone import SkillServer
from skillwire.wire.core import READ_RESOURCE

# `StdioConnection`: one client on a pair of pipes.


_CHUNK = 4 * 1024
_LARGEST_CHUNK = 256 * 1024
_FINISH_SECONDS = 10.0
# How long the SDK may take to close once everything is answered or given up.
_CLOSE_SECONDS = 2.0
_MAX_FETCHES = 64
_LARGE = 16 * 1024
# A stream of changes does not end by itself; it is waited for only if it can be closed.
_ENDLESS = frozenset({"subscriptions/listen"})

Era: TypeAlias = Literal["undecided", "modern", "handshake", "legacy"]
"""What is known of the client: nothing yet, modern, in the handshake, or legacy and initialized."""

logger = logging.getLogger(__name__)


class StdioConnection:
    """One client on a pair of file descriptors.

    Once `is_over`, no more requests are read: the connection is stopping, or
    the client no longer reads the answers.
    """

    def __init__(
        self,
        server: Server[Any],
        hot: HotAnswers | None,
        *,
        incoming: int,
        outgoing: int,
        listen: ListenHandler | None = None,
        message_bytes: int = MAX_MESSAGE_BYTES,
        opening: Opening = NOTHING_READ,
    ) -> None:
        self._server = server
        self._opening = opening
        self._is_replayed = anyio.Event()
        self._hot = hot
        self._reader = None if hot is None else hot.new_reader()
        self._listen = listen
        self._message_bytes = message_bytes
        self._incoming = incoming
        self._outgoing = outgoing
        self._writing = threading.Lock()
        self._outbox: queue.SimpleQueue[tuple[bytes, anyio.Event] | None] = queue.SimpleQueue()
        self._is_disconnected = False
        self.is_over = False
        self._era: Era = "undecided"
        self._handshake: types.RequestId | None = None
        self._unanswered: Counter[object] = Counter()
        self._settled = anyio.Event()
        self._stopping = anyio.Event()

    async def run(self) -> None:
        """Serve until the client closes its end or `stop` is called; then finish pending requests.

        A client that does not read its answers is waited for a few seconds only.
        """
        requests, to_sdk = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        from_sdk, answers = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.from_thread.BlockingPortal() as portal, anyio.create_task_group() as group:
            group.start_soon(self._close_when_done, requests, group.cancel_scope)
            reader = _StdinReader(self, portal, group, requests)
            # Both may block on the client, and must not keep the process from ending.
            threading.Thread(target=reader.run, daemon=True, name="stdin").start()
            threading.Thread(target=self._write_outbox, args=(portal,), daemon=True, name="stdout").start()
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
        """Read no more requests, and end once the pending ones are answered."""
        self.is_over = True
        self._stopping.set()

    async def _close_when_done(self, requests: "SdkRequests", everything: anyio.CancelScope) -> None:
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

    async def _write_answers(self, answers: "SdkAnswers") -> None:
        async with answers:
            async for item in answers:
                message = item.message
                data = _encode_message(message)
                is_response = isinstance(message, types.JSONRPCResponse | types.JSONRPCError)
                if is_response and self._opening.request and not self._is_replayed.is_set():
                    self._note_replay(data)
                else:
                    await self._send(data + b"\n")
                if is_response and message.id is not None:
                    self._note_answer(message.id, refused=isinstance(message, types.JSONRPCError))

    async def replay(self, requests: "SdkRequests") -> None:
        """Pass the message that was answered early to the SDK, and discard its answer."""
        if self._opening.request:
            await self.pass_to_sdk(self._opening.request, requests)
            await self._is_replayed.wait()

    def _note_replay(self, answer: bytes) -> None:
        self._is_replayed.set()
        if answer != self._opening.answer:
            logger.info("the skills changed since the first answer: %s", visible(answer.decode(), most=1000))

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
        """Yield the lines that the client sends, until it closes its end."""
        rest = b""
        skipping = False
        size = _CHUNK
        received = self._opening.unread
        while chunk := received or os.read(self._incoming, size):
            received = b""
            # A large buffer costs time even if it is not filled, so only a long message gets one.
            size = _CHUNK if len(chunk) < size else _LARGEST_CHUNK
            if not rest and not skipping and chunk.find(b"\n") == len(chunk) - 1:
                yield chunk[:-1]  # Exactly one whole message, the usual case.
                continue
            *lines, remainder = chunk.split(b"\n")
            for line in lines:
                if not skipping and len(rest) + len(line) > self._message_bytes:
                    self._refuse_large()
                elif not skipping:
                    yield rest + line if rest else line
                rest, skipping = b"", False
            rest = b"" if skipping else rest + remainder
            if len(rest) > self._message_bytes:
                self._refuse_large()
                rest, skipping = b"", True
        if rest:
            yield rest

    def _refuse_large(self) -> None:
        self.write(encode(too_large(self._message_bytes)) + b"\n")

    def read_fast(self, line: bytes) -> FastRequest | None:
        """Parse a request of the usual form from a client whose era is known; None for any other."""
        if self._reader is None or self._era not in ("modern", "legacy"):
            return None
        request = self._reader.read(line)
        if request is None:
            return None
        is_of_this_era = request.has_envelope if self.is_modern else "_meta" not in request.params
        return request if is_of_this_era else None

    @property
    def is_shared(self) -> bool:
        """Whether `catch_up` is needed before `answer`."""
        return self._hot is not None and self._hot.is_shared

    async def catch_up(self) -> None:
        """Serve what sources that are shared with other processes contain at this moment."""
        if self._hot is not None:
            await self._hot.catch_up()

    def answer(self, line: bytes) -> bool:
        """Write the answer to a common request if it is cached; return whether it was written."""
        if self._hot is None or self._reader is None:
            return False
        state = self._hot.state
        known = self._reader.cached_reply(line, state)
        if known is not None:
            self.write(known[0] + known[1].rest)
            return True
        request = self.read_fast(line)
        result = None if request is None else self._hot.result(request, modern=self.is_modern)
        if request is None or result is None:
            return False
        parts = (*response(request, result), b"\n")
        if max(map(len, result)) < _LARGE:
            data = b"".join(parts)
            self._reader.cache_reply(line, request, data, state)
            self.write(data)
        else:
            # Writing the pieces is faster than joining them.
            self._write_with(os.writev, parts, sum(map(len, parts)))
        return True

    async def fetch(self, request: FastRequest, line: bytes, requests: "SdkRequests") -> None:
        """Answer a read of a file that is not cached; on failure the SDK answers."""
        assert self._hot is not None, "without hot answers no request is fast"
        token = object()
        self._unanswered[token] += 1
        try:
            result = await self._hot.fetch(request, modern=self.is_modern)
            if result is None:
                await self.pass_to_sdk(line, requests)
            else:
                await self._send(b"".join(response(request, result)) + b"\n")
        finally:
            self._note_done(token)

    async def pass_to_sdk(self, line: bytes, requests: "SdkRequests") -> None:
        """Pass a message to the SDK."""
        if not line.strip():
            return
        try:
            message = parse_message(line)
        except MalformedMessageError as error:
            if not error.is_response:
                await self._send(encode(error.response) + b"\n")
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
        """Stop waiting for an answer: the SDK sends none to a request that was cancelled in time."""
        identifier = params.get("requestId")
        if isinstance(identifier, int | str):
            self._note_done(identifier)

    async def _send(self, data: bytes) -> None:
        """Write `data` in the writer thread, and return when it is written."""
        written = anyio.Event()
        self._outbox.put((data, written))
        await written.wait()
        if self._is_disconnected:
            self.stop()

    def _write_outbox(self, portal: anyio.from_thread.BlockingPortal) -> None:
        with suppress(RuntimeError):  # The portal is gone when the server stopped first.
            while (item := self._outbox.get()) is not None:
                self.write(item[0])
                portal.call(item[1].set)

    def write(self, data: bytes) -> None:
        """Write all of `data` without interleaving other messages, unless the client disconnected."""
        self._write_with(os.write, data, len(data))

    def _write_with(self, write: Callable[[int, Any], int], data: Any, size: int) -> None:
        with self._writing:
            if self._is_disconnected:
                return
            try:
                written = write(self._outgoing, data)
                if written < size:
                    rest = memoryview(data if isinstance(data, bytes) else b"".join(data))[written:]
                    while rest:
                        rest = rest[os.write(self._outgoing, rest) :]
            except OSError as error:
                logger.info("the client closed standard output: %s", error.strerror)
                self._is_disconnected = self.is_over = True


class _StdinReader:
    """Reads the lines of one client in a thread, and answers those that are cached."""

    def __init__(
        self,
        connection: StdioConnection,
        portal: anyio.from_thread.BlockingPortal,
        group: anyio.abc.TaskGroup,
        requests: "SdkRequests",
    ) -> None:
        self._connection = connection
        self._portal = portal
        self._group = group
        self._requests = requests
        self._fetches = anyio.Semaphore(_MAX_FETCHES)

    def run(self) -> None:
        # The portal is gone when the server stopped first.
        with suppress(RuntimeError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._portal.call(self._connection.replay, self._requests)
            for line in self._connection.lines():
                if self._connection.is_over:
                    break
                self._handle(line)
        with suppress(RuntimeError):
            self._portal.call(self._connection.stop)

    def _handle(self, line: bytes) -> None:
        request = None
        try:
            if self._connection.is_shared:
                self._portal.call(self._connection.catch_up)
            if self._connection.answer(line):
                return
            request = self._connection.read_fast(line)
        except Exception:
            logger.exception("a message is passed to the SDK")  # This thread must go on reading.
        if request is not None and request.method == READ_RESOURCE:
            self._portal.call(self._start_fetch, request, line)
        else:
            self._portal.call(self._connection.pass_to_sdk, line, self._requests)

    async def _start_fetch(self, request: FastRequest, line: bytes) -> None:
        await self._fetches.acquire()
        self._group.start_soon(self._fetch, request, line)

    async def _fetch(self, request: FastRequest, line: bytes) -> None:
        try:
            await self._connection.fetch(request, line, self._requests)
        finally:
            self._fetches.release()


SdkRequests: TypeAlias = MemoryObjectSendStream[SessionMessage | Exception]
SdkAnswers: TypeAlias = MemoryObjectReceiveStream[SessionMessage]


def _encode_message(message: types.JSONRPCMessage) -> bytes:
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode("utf-8")
    except PydanticSerializationError:  # An entry has an unpaired surrogate.
        return encode(message.model_dump(by_alias=True, exclude_unset=True))


def _has_envelope(params: dict[str, Any] | None) -> bool:
    meta = (params or {}).get("_meta")
    return isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta


async def serve_stdio(
    options: ServeOptions, *, on_ready: Callable[[SkillServer], None] = lambda skill_server: None
) -> None:
    """Serve the client that started this process, until it disconnects or SIGTERM or SIGINT arrives.

    Raises:
        SkillError: The skills cannot be opened.
    """
    limit_malloc_arenas()
    skill_server = SkillServer(with_fixed_summary(options))
    with standard_streams() as (incoming, outgoing):
        async with skill_server.skills.open():
            freeze_gc()
            on_ready(skill_server)
            connection = StdioConnection(
                skill_server.server,
                skill_server.hot if options.is_fast else None,
                incoming=incoming,
                outgoing=outgoing,
                listen=skill_server.listen,
                message_bytes=options.message_bytes,
                opening=take_opening(),
            )
            await run_until_signal(connection)


async def run_until_signal(connection: StdioConnection) -> None:
    """Serve a client until it disconnects, or SIGTERM or SIGINT arrives."""
    async with anyio.create_task_group() as group:
        group.start_soon(_stop_on_signal, connection)
        await connection.run()
        group.cancel_scope.cancel()


async def _stop_on_signal(connection: StdioConnection) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            connection.stop()


@contextmanager
def standard_streams() -> Generator[tuple[int, int]]:
    """Reserve standard input and output for the protocol, and replace them meanwhile.

    Yields the descriptors to read from and to write to.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        yield incoming, outgoing
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()  # Buffered output must not be written to the client.
        os.dup2(incoming, 0)
        os.dup2(outgoing, 1)
        os.close(nothing)
        # The other two stay open: a thread may still use them, and their numbers must not be reused.
