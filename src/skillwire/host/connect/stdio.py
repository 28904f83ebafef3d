"""The stdio transport: the server's process and its pipes.

The SDK's own transport buffers lines of any length; here lines are limited to
the cap, and parsed only when complete.
"""

import logging
import math
import os
import re
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, cast

import anyio
import mcp_types as types
import orjson
from anyio.abc import ByteReceiveStream, ByteSendStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import RequestId

from skillwire.core import LimitError, gc_paused, quoted
from skillwire.host.calls import MAX_PENDING_WRITES, MessageCap, ServerLink, Streams
from skillwire.host.connect.diagnosis import not_started
from skillwire.host.connect.messages import MIN_LARGE_BYTES, require_bounded, require_small, too_large
from skillwire.host.model import InvalidAnswerError, MessageTooLargeError, StdioEndpoint, UnavailableError

_CHUNK = 64 * 1024
_STDERR_BYTES = 4 * 1024
_POLL = 0.02
_WATCH = 0.2
# How long to wait for the exit code after the output ended, and for the end of output after an exit.
_EXIT_SECONDS = 0.5
# How long to wait for the end of standard error after an exit; a grandchild may keep it open.
_STDERR_SECONDS = 0.25
_KILL_SECONDS = 2.0
_LISTEN = "subscriptions/listen"
_CANCELLED = "notifications/cancelled"
# How many bytes at each end of an invalid line are searched.
_ENDS = 1024
_ID = re.compile(rb'"id"\s*:\s*(?:(\d{1,15})|"([^"\\]{1,100})")')

logger = logging.getLogger(__name__)


@asynccontextmanager
async def stdio_transport(
    endpoint: StdioEndpoint, link: ServerLink, *, write_seconds: float
) -> AsyncGenerator[Streams]:
    """Start the server and connect to it; at the end of the block, its process group is ended.

    Raises:
        UnavailableError: The command cannot be started.
    """
    child = _Child(await _spawn(endpoint), link, write_seconds)
    async with anyio.create_task_group() as tasks:
        for task in (child.read, child.write, child.collect_stderr, child.watch):
            tasks.start_soon(task)
        try:
            yield child.incoming, child.outgoing
        finally:
            with anyio.CancelScope(shield=True):
                await child.stop()
            tasks.cancel_scope.cancel()


async def _spawn(endpoint: StdioEndpoint) -> Process:
    # A cancellation while a process starts would leave an orphan.
    with anyio.CancelScope(shield=True):
        return await _open_process(endpoint)
    raise AssertionError("a shielded scope does not end early")


async def _open_process(endpoint: StdioEndpoint) -> Process:
    try:
        return await anyio.open_process(
            [endpoint.command, *endpoint.args],
            env=get_default_environment() | dict(endpoint.env),
            cwd=endpoint.cwd,
            # In its own session, signals to our terminal do not reach it, and its children end with it.
            start_new_session=True,
        )
    except OSError as error:
        raise not_started(error, endpoint) from error
    except ValueError as error:
        raise UnavailableError("the server's command has an invalid character") from error


class LineBuffer:
    """Splits a stream of bytes into lines, one message each."""

    def __init__(self, cap: MessageCap) -> None:
        self._cap = cap
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes, and yield the complete lines without their line ends.

        Raises:
            MessageTooLargeError: A line is longer than the cap, complete or not.
        """
        *complete, rest = data.split(b"\n")
        for number, piece in enumerate((*complete, rest)):
            self._size += len(piece)
            if self._size > self._cap.current:
                self._pieces.clear()
                raise too_large(self._cap.current)
            self._pieces.append(piece)
            if number < len(complete):
                line = b"".join(self._pieces)
                self._pieces.clear()
                self._size = 0
                yield line


class _Child:
    """The process, its three pipes, and the tasks that serve them."""

    def __init__(self, process: Process, link: ServerLink, write_seconds: float) -> None:
        self._process = process
        self._link = link
        self._write_seconds = write_seconds
        self._stderr_tail = bytearray()
        self._read_over = anyio.Event()
        self._stderr_over = anyio.Event()
        self._pending = _PendingRequests()
        self._has_logged_noise = False
        self._sends: MemoryObjectSendStream[SessionMessage | Exception]
        self.incoming: MemoryObjectReceiveStream[SessionMessage | Exception]
        self._sends, self.incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self.outgoing: MemoryObjectSendStream[SessionMessage]
        self._receives: MemoryObjectReceiveStream[SessionMessage]
        self.outgoing, self._receives = anyio.create_memory_object_stream[SessionMessage](MAX_PENDING_WRITES)

    async def read(self) -> None:
        """Forward the messages of its output, until that ends or exceeds a limit."""
        lines = LineBuffer(self._link.cap)
        try:
            async with self._sends:
                while data := await _received(self._process.stdout):
                    try:
                        await self._forward(lines, data)
                    except (MessageTooLargeError, InvalidAnswerError) as error:
                        self._link.end(error)
                    if self._link.is_over:
                        break
                else:
                    self._link.end(await self._exit_failure())
        finally:
            self._read_over.set()
        # Drain the output: a process that blocks on writing could not exit.
        while await _received(self._process.stdout):
            pass

    async def _forward(self, lines: LineBuffer, data: bytes) -> None:
        for line in lines.feed(data):
            if not self._link.admit():
                return
            message = _message_of(line)
            if message is None and line.strip():
                self._link.note_unexpected_line(line)
                message = self._replacement_for(line)
            if message is not None:
                self._pending.note_answer(message)
                self._link.inspect(message)
                try:
                    await self._sends.send(message)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    self._link.end(_closed())

    def _replacement_for(self, line: bytes) -> SessionMessage | None:
        """Return an error answer for a line that looks like an invalid answer, and None for other output.

        Programs print greetings and logs on their output, which are ignored. A
        line that looks like JSON-RPC but cannot be parsed is a lost answer: its
        request fails at once, or the connection if the request is not known.
        """
        if not _looks_like_answer(line):
            level = logging.DEBUG if self._has_logged_noise else logging.WARNING
            self._has_logged_noise = True
            logger.log(level, "a server wrote output that is not a message: %s", quoted(_shown(line)))
            return None
        identifier = self._pending.matching(line)
        if identifier is not None:
            return _error_answer(identifier, "the answer is not valid JSON")
        if self._pending:
            self._link.end(InvalidAnswerError("the server sent an answer that is not valid JSON"))
        return None

    async def write(self) -> None:
        """Write our messages to its input; end the link if the server does not read them."""
        stdin = cast(ByteSendStream, self._process.stdin)
        with self._receives:
            async for item in self._receives:
                try:
                    data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                except ValueError:
                    logger.warning("a message to a server could not be serialized and was not sent")
                    continue
                if isinstance(item.message, types.JSONRPCRequest):
                    self._link.expect_answer()
                self._pending.note_sent(item)
                with anyio.move_on_after(self._write_seconds) as clock:
                    try:
                        await stdin.send(data)
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                        self._link.end(await self._exit_failure())
                        return
                if clock.cancelled_caught:
                    self._link.end(UnavailableError("the server does not read its input"))
                    return

    async def collect_stderr(self) -> None:
        """Keep the last part of its standard error, for the message when it ends."""
        while data := await _received(self._process.stderr):
            self._stderr_tail += data
            del self._stderr_tail[:-_STDERR_BYTES]
        self._stderr_over.set()

    async def watch(self) -> None:
        """Detect an exit even if a grandchild keeps the output open."""
        await _until(lambda: self._process.returncode is not None, math.inf, _WATCH)
        with anyio.move_on_after(_EXIT_SECONDS):
            await self._read_over.wait()
        self._link.end(await self._exit_failure())

    async def stop(self) -> None:
        """End the process and its group, and reap it; every step has a timeout."""
        self.incoming.close()
        self.outgoing.close()
        stdin = cast(ByteSendStream, self._process.stdin)
        with anyio.move_on_after(_KILL_SECONDS), suppress(anyio.BrokenResourceError, OSError):
            await stdin.aclose()
        # After an exceeded limit there is no grace period.
        if not isinstance(self._link.failure, LimitError):
            await self._exited(self._link.limits.exit_grace)
        for number in _SIGNALS:
            if not _signal_group(self._process, number):
                break
            await _until(lambda: not _signal_group(self._process, 0), _KILL_SECONDS)
        if not await self._exited(_KILL_SECONDS):
            logger.warning("a server's process still exists after it was killed: %d", self._process.pid)
        for stream in (self._process.stdout, self._process.stderr):
            with suppress(anyio.BrokenResourceError, OSError):
                await cast(ByteReceiveStream, stream).aclose()
        _close_transport(self._process)

    async def _exit_failure(self) -> UnavailableError:
        """Return the failure for an ended process, with its exit code if that is known soon."""
        await self._exited(_EXIT_SECONDS)
        code = self._process.returncode
        if code is not None:
            with anyio.move_on_after(_STDERR_SECONDS):
                await self._stderr_over.wait()
        if code is None:
            what = "closed its output"
        elif code < 0:
            what = f"was ended by signal {-code}"
        else:
            what = f"ended with exit code {code}"
        lines = self._stderr_tail.decode(errors="replace").strip().splitlines()
        text = f"; its last output: {quoted(_last_error_line(lines)[-110:])}" if lines else ""
        return UnavailableError(
            f"the server's process {what}{text}{self._link.unexpected_output}",
            fix="run the server's command in a terminal to see why, then correct the command",
        )

    async def _exited(self, seconds: float) -> bool:
        """Wait for the exit code. `Process.wait` would also wait for pipes that a grandchild keeps open."""
        return await _until(lambda: self._process.returncode is not None, seconds)


def _last_error_line(lines: list[str]) -> str:
    """Return the last line that mentions an error, or else the last line."""
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines)[-1].strip()


async def _until(condition: Callable[[], bool], seconds: float, pause: float = _POLL) -> bool:
    """Poll a condition; return whether it became true in time."""
    deadline = anyio.current_time() + seconds
    while not condition():
        if anyio.current_time() >= deadline:
            return False
        await anyio.sleep(pause)
    return True


_SIGNALS = (signal.SIGTERM, signal.SIGKILL) if hasattr(signal, "SIGKILL") else (signal.SIGTERM,)


def _signal_group(process: Process, number: int) -> bool:
    """Send a signal to the process group; return whether it still has members.

    The leader's id stays the id of the group after the leader's exit, and is not
    reused while the group has members.
    """
    if not hasattr(os, "killpg"):
        if process.returncode is None and number:
            process.send_signal(signal.Signals(number))
        return process.returncode is None
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # A member exists that may not be signalled; macOS reports this for zombies as well.
        return True
    return True


async def _received(stream: ByteReceiveStream | None) -> bytes:
    """Return the next bytes; empty at the end of the stream."""
    assert stream is not None
    try:
        return await stream.receive(_CHUNK)
    except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        return b""


def _message_of(line: bytes) -> SessionMessage | None:
    """Parse a line; None if it is not a message, such as a greeting on standard output.

    This is four times faster than the SDK alone, which parses only unusual lines.
    """
    if not line.strip():
        return None
    adapter = types.jsonrpc_message_adapter
    is_large_object = len(line) >= MIN_LARGE_BYTES and line.lstrip()[:1] == b"{"
    if is_large_object:
        require_bounded(line)
    try:
        with gc_paused() if len(line) >= MIN_LARGE_BYTES else nullcontext():
            return SessionMessage(adapter.validate_python(orjson.loads(line), by_name=False))
    except ValueError:
        if is_large_object:
            require_small(line)
    try:
        return SessionMessage(adapter.validate_json(line, by_name=False))
    except ValueError:
        return _broken_answer(line)


def _broken_answer(line: bytes) -> SessionMessage | None:
    """Return an error answer for an invalid response, so that its request does not wait."""
    try:
        value: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    identifier = cast(dict[str, Any], value).get("id") if isinstance(value, dict) else None
    if isinstance(identifier, bool) or not isinstance(identifier, int | str) or "method" in value:
        return None
    return _error_answer(identifier, "the answer is not a JSON-RPC response")


def _error_answer(identifier: RequestId, text: str) -> SessionMessage:
    error = types.ErrorData(code=types.PARSE_ERROR, message=text)
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=identifier, error=error))


def _looks_like_answer(line: bytes) -> bool:
    """Return whether a line that is not JSON looks like a JSON-RPC answer, or a part of one."""
    start = line.lstrip()[:_ENDS]
    if not start.startswith((b"{", b'"jsonrpc"')) or b'"method"' in start:
        return False
    if b'"jsonrpc"' not in start and b'"jsonrpc"' not in line[-_ENDS:]:
        return False
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return True
    return False


def _shown(line: bytes) -> str:
    return line[:200].decode("utf-8", "replace")


class _PendingRequests:
    """The requests without an answer, for finding the one that an invalid answer belongs to."""

    def __init__(self) -> None:
        self._open: dict[RequestId, None] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def note_sent(self, item: SessionMessage) -> None:
        """Record a request that was sent, or the cancellation of one."""
        message = item.message
        if isinstance(message, types.JSONRPCRequest):
            # This request stays open as long as the connection, and gets only notifications.
            if message.method != _LISTEN:
                self._open[message.id] = None
        elif isinstance(message, types.JSONRPCNotification) and message.method == _CANCELLED:
            self._open.pop((message.params or {}).get("requestId", ""), None)

    def note_answer(self, item: SessionMessage) -> None:
        if (
            isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError)
            and item.message.id is not None
        ):
            self._open.pop(item.message.id, None)

    def matching(self, line: bytes) -> RequestId | None:
        """Return the request that an invalid answer belongs to: by the id in it, or the only pending one."""
        for part in (line[:_ENDS], line[-_ENDS:]):
            for number, text in _ID.findall(part):
                identifier = int(number) if number else text.decode("utf-8", "replace")
                if identifier in self._open:
                    return identifier
        return next(iter(self._open)) if len(self._open) == 1 else None


def _close_transport(process: Process) -> None:
    """Close asyncio's transport of a process, which stays open while a child holds a pipe, and warns later.

    There is no public API for it.
    """
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with suppress(PermissionError, ProcessLookupError):
            transport.close()


def _closed() -> UnavailableError:
    return UnavailableError("the connection was closed")
